"""Damaged ONNX files: bytes changed, cut off, left out, repeated, and taken from another file."""

from __future__ import annotations

import random
from pathlib import Path

from tools.fuzz.onnx_models import check_import, models, run_some
from tools.fuzz.target import Base

RUN_ONE_OF = 100  # imported models are built and run as well


def damage(data: bytes, generator: random.Random) -> bytes:
    """The data with one to four kinds of damage."""
    found = bytearray(data)
    for _ in range(generator.choice([1, 1, 1, 2, 4])):
        # Most damage is one byte with another value: the rest mostly ends in a file that no reader can take apart.
        kind = generator.choices(range(7), weights=[12, 4, 1, 1, 1, 2, 1])[0]
        place = generator.randrange(len(found) + 1)
        length = generator.choice([1, 1, 1, 1, 2, 8, 64])
        if kind == 0:
            for _ in range(length):
                if found:
                    found[generator.randrange(len(found))] ^= 1 << generator.randrange(8)
        elif kind == 1:
            found[place : place + length] = bytes(generator.randrange(256) for _ in range(length))
        elif kind == 2:
            del found[place:]
        elif kind == 3:
            del found[place : place + length]
        elif kind == 4:
            found[place:place] = found[place : place + length] * generator.choice([1, 1, 3, 100])
        elif kind == 5:
            found[place : place + length] = b"\xff" * (length - 1) + b"\x7f"  # the largest numbers there are
        else:
            other = generator.choice(models())[1]
            start = generator.randrange(len(other))
            found[place : place + length] = other[start : start + generator.choice([8, 64, 512])]
    return bytes(found)


class Target(Base):
    megabytes = 1500

    def prepare(self, folder: Path) -> None:
        self.folder = folder
        models()

    def run(self, seed: int) -> str:
        generator = random.Random(seed)
        path = self.folder / "model.onnx"
        path.write_bytes(damage(generator.choice(models())[1], generator))
        graph = check_import(path)
        return run_some(graph, generator) if generator.randrange(RUN_ONE_OF) == 0 else "imported"


TARGET = Target()
