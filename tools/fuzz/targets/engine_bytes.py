"""Engine files with flipped bits, missing ends, other pieces: each is refused, or gives exactly the right answer."""

from __future__ import annotations

import contextlib
import random
from pathlib import Path

import numpy as np

from tests.host.handmade import COLUMNS, expected, make_package
from tilewright import Engine
from tools.fuzz.engine_files import BYTES
from tools.fuzz.target import Base, Failed

INPUT = np.linspace(-3, 3, 7 * COLUMNS, dtype=np.float32).reshape(7, COLUMNS)


class Target(Base):
    megabytes = 500

    def prepare(self, folder: Path) -> None:
        self.path = folder / "mutant.engine"
        Engine(make_package()).save(self.path)
        self.original = self.path.read_bytes()

    def run(self, seed: int) -> str:
        draw = random.Random(seed)
        data = self.original
        for _ in range(draw.choice([1, 1, 1, 2])):
            with contextlib.suppress(Exception):  # what takes a zip apart finds a damaged one
                data = draw.choice(BYTES)(data, draw)
        self.path.write_bytes(data)
        engine = Engine.load(self.path, mmap=draw.random() < 0.3)
        engine.plan  # noqa: B018 - the steps are read when asked for
        y, cache = engine(INPUT, np.zeros(4, np.int64))
        if not (np.array_equal(y, expected(INPUT)) and (cache == 1).all()):
            raise Failed("wrong", "another answer than the undamaged engine's", "answer")
        return "right"


TARGET = Target()
