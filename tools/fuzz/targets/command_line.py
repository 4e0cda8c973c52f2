"""The command line with random arguments and files, in this process: a message and a code, no traceback."""

from __future__ import annotations

import contextlib
import io
import os
import random
from pathlib import Path

from tools.fuzz.target import Base, Failed

COMMANDS = ("build", "compile", "run", "bench", "inspect", "tune show", "tune merge", "cache show", "", "no")
OPTIONS = (
    "-o",
    "--output",
    "--shapes",
    "--target",
    "--effort",
    "--timing-cache",
    "--reproducible",
    "--vendor",
    "-q",
    "--trust",
    "--input",
    "--size",
    "--seed",
    "--compare",
    "--model",
    "--tolerance",
    "--save",
    "--vs",
    "--seconds",
    "--threads",
    "--json",
    "--evidence",
    "--html",
    "--profile",
    "-n",
    "-s",
    "-c",
    "--help",
    "--",
    "-",
)
VALUES = (
    "x",
    "x:1",
    "x:1..2x3",
    "x:²",
    "x:" + "9" * 400,
    ":",
    "x=1",
    "x=²",
    "=",
    "cpu",
    "cpu:",
    "cuda",
    "cuda:sm_90a+tf32",
    "",
    ",",
    "-1",
    "0",
    "1",
    "1e400",
    "nan",
    "\udcff",
    "../x",
    ".",
    "folder",
    "text.onnx",
    "text.engine",
    "text.pt2",
    "text.npy",
    "x=text.npy",
    "text.py",
    "loop",
    "fifo.txt/x",
    "missing.engine",
    "x" * 300,
    "[bold]x[/bold]",
    "\x1b[31mred",
    "allow",
    "reference",
    "torch",
)


class CommandLine(Base):
    def prepare(self, folder: Path) -> None:
        place = folder / "files"
        place.mkdir(exist_ok=True)
        (place / "folder").mkdir(exist_ok=True)
        for name in ("text.onnx", "text.engine", "text.pt2", "text.npy", "fifo.txt"):
            (place / name).write_bytes(b"\xff\x00PK\x03\x04text")
        (place / "text.py").write_text("raise ValueError('of the file')\n")
        if not (place / "loop").is_symlink():
            (place / "loop").symlink_to("loop")
        os.chdir(place)

    def run(self, seed: int) -> str:
        from tilewright.cli import main

        draw = random.Random(seed)
        arguments = draw.choice(COMMANDS).split()
        for _ in range(draw.randrange(6)):
            arguments.append(draw.choice(draw.choice((OPTIONS, VALUES, VALUES))))
        output, errors = (io.TextIOWrapper(io.BytesIO(), encoding="utf-8") for _ in range(2))
        with contextlib.redirect_stdout(output), contextlib.redirect_stderr(errors), main_arguments(arguments):
            try:
                main.main()
                code: object = 0
            except SystemExit as end:
                code = end.code or 0
        if code not in (0, 1, 2, 3):
            raise Failed("wrong", f"exit code {code}", "exit code")
        errors.flush()
        if b"tilewright/cli" in errors.buffer.getvalue():  # type: ignore[attr-defined]
            raise Failed("uncaught", f"a traceback for {arguments}", "traceback")
        return f"code {code}"


@contextlib.contextmanager
def main_arguments(arguments: list[str]):  # type: ignore[no-untyped-def]
    import sys

    saved, sys.argv = sys.argv, ["tilewright", *arguments]
    try:
        yield
    finally:
        sys.argv = saved


TARGET = CommandLine()
