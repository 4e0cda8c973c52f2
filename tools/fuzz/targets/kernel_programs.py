"""Random kernels of the Tile IR over the whole op table: machine code leaves the bytes that the interpreter
leaves."""

from __future__ import annotations

import random
from pathlib import Path

from tests.host.kernel_support import run_compiled
from tests.host.random_kernels import GRID, arguments_of, outputs_of, random_kernel, run_kernel
from tilewright.errors import ExecutionError
from tilewright.settings import settings
from tools.fuzz.target import Base, Failed


class Target(Base):
    seconds = 30.0  # a kernel is compiled

    def prepare(self, folder: Path) -> None:
        settings.cache_directory = folder

    def run(self, seed: int) -> str:
        draw = random.Random(seed)
        length, rewrites = draw.randint(1, 12), draw.random() < 0.5
        function = random_kernel(draw, length, exact=True, rewrites=rewrites)
        try:
            expected = run_kernel(function)
        except ExecutionError as error:
            raise Failed("wrong", f"a kernel that is right by construction: {error}", "interpreter") from error
        arguments = arguments_of()
        run_compiled(function, arguments, GRID)
        found = outputs_of(arguments)
        for name, output in expected.items():
            if output.tobytes() != found[name].tobytes():
                raise Failed("wrong", f"{name} of\n{function}", "machine code")
        return "right"


TARGET = Target()
