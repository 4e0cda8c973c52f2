"""The ways in which a program is compiled: for fixed sizes, for a range of sizes, by torch.compile as sizes change."""

from __future__ import annotations

import functools
import gc
import logging
import os
import typing
from pathlib import Path
from typing import Any

import torch
import torch._export.utils
import torch.export.decomp_utils
import torch.export.exported_program

import tilewright
from tilewright.errors import CompilationError, TilewrightError
from tilewright.importers.torch_compile import backend
from tools.fuzz.programs.compare import Reference
from tools.fuzz.programs.program import Program, draw
from tools.fuzz.target import Base, Failed

DEVICE = os.environ.get("FUZZ_DEVICE", "cpu")


class Log(logging.Handler):
    """What tilewright logs during a case."""

    def __init__(self) -> None:
        super().__init__()
        self.lines: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.lines.append(record.getMessage())


class Programs(Base):
    """Random programs compiled for the sizes of their inputs."""

    seconds = 60.0  # PyTorch's own export of some programs takes seconds on a busy machine
    dynamic = False

    def prepare(self, folder: Path) -> None:
        torch.set_num_threads(1)
        _quicken_export()
        os.environ.setdefault("TILEWRIGHT_CACHE_DIRECTORY", str(folder / "cache"))
        logger = logging.getLogger("tilewright")
        logger.propagate = False
        self.log = Log()
        logger.addHandler(self.log)

    def run(self, seed: int) -> str:
        program, sizes = draw(seed, self.dynamic, DEVICE != "cpu")
        if not program.steps:
            return "empty"
        self.log.lines.clear()
        return self.check(program, sizes, seed)

    def check(self, program: Program, sizes: list[int], seed: int) -> str:
        example = program.inputs(sizes[0], seed, DEVICE)
        dynamic = _dynamic(program, max(sizes)) if self.dynamic else None
        try:
            effort = seed % 2 if DEVICE == "cpu" else 0  # CPUs: both tiers of machine code; GPUs: nothing is timed
            engine = tilewright.compile(program.eval(), tuple(example), dynamic, _target(), effort=effort)
        except TilewrightError as error:
            raise _judged(error, program) from error
        refused = 0
        for size in sizes:
            inputs = program.inputs(size, seed, DEVICE)
            reference = Reference(program, inputs)
            try:
                results = engine(*inputs)
            except TilewrightError:
                refused += 1  # a size outside of the model's own conditions
                continue
            reference.check(results if isinstance(results, (tuple, list)) else (results,), f"size {size}\n{program}")
        return "right" if not refused else "right where not refused" if refused < len(sizes) else "refused: sizes"


class DynamicPrograms(Programs):
    """Random programs compiled for a range of sizes, at five of them."""

    dynamic = True


class CompiledPrograms(Programs):
    """Random programs under torch.compile, at five sizes after each other."""

    seconds = 120.0
    dynamic = True

    def check(self, program: Program, sizes: list[int], seed: int) -> str:
        torch._dynamo.reset()
        compiled = torch.compile(program.eval(), backend=backend)
        with torch.no_grad():
            for size in sizes:
                inputs = program.inputs(size, seed, DEVICE)
                reference = Reference(program, inputs)
                try:
                    results = compiled(*inputs)
                except Exception as error:
                    text = f"{type(error).__name__}: {error}"[:600]
                    raise Failed("uncaught", f"{text}\nsize {size}\n{program}", text[:70]) from error
                reference.check(results, f"size {size}\n{program}")
        stayed = [line for line in self.log.lines if "stays with PyTorch" in line]
        for line in stayed:
            if "import rule failed" in line or ("the engine was not built" in line and "Error(" in line):
                raise Failed("uncaught", f"{line}\n{program}", "an internal error, in the log")
        return "right, with PyTorch's help" if stayed else "right"


def _quicken_export() -> None:
    """Let PyTorch list its operations once, not twice in each export: a quarter of the time of a case."""
    found = functools.cache(torch._export.utils._collect_all_valid_cia_ops)
    torch.export.exported_program._collect_all_valid_cia_ops = found
    torch.export.decomp_utils._collect_all_valid_cia_ops = found
    torch._ops.Callable = typing.Callable  # evaluated in 10,000 annotations in each export; this one is cached
    gc.freeze()
    gc.set_threshold(100_000, 20, 20)


def _target() -> str:
    return "auto" if DEVICE == "cpu" else DEVICE


def _dynamic(program: Program, high: int) -> dict[str, Any]:
    """The range of the dynamic size, wherever inputs have it."""
    axes = {}
    for name, argument in zip("xyz", program.arguments, strict=False):
        found = {axis: ("n", 1, high) for axis, extent in enumerate(argument.shape) if extent is None}
        if found:
            axes[name] = found
    return axes


def _judged(error: TilewrightError, program: Program) -> Exception:
    """A refusal as it is; an error of ours that a user cannot have caused is a failure."""
    text = str(error)
    if isinstance(error, CompilationError) or "import rule failed" in text:
        return Failed("uncaught", f"{text}\n{program}", f"{type(error).__name__}: {_reason(text)}")
    return error


def _reason(text: str) -> str:
    """The part of an error that groups those of one cause."""
    for line in text.splitlines():
        if "import rule failed" in line:
            return line.partition("import rule failed: ")[2][:70]
    return "".join(letter for letter in text.splitlines()[0].rpartition(": ")[2] if not letter.isdigit())[:70]
