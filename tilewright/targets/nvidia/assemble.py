"""LLVM text of a GPU kernel -> PTX (LLVM) -> cubin (an assembler), with a report of the resources.

Assemblers, the first found is used (`find_assembler`, named by ``tilewright doctor``):

1. ptxas of the package `nvidia-cuda-nvcc`, installed in the same environment as tilewright;
2. ptxas of a CUDA toolkit: on the PATH, or in CUDA_HOME or CUDA_PATH;
3. the driver's own, for the GPU of this machine only.
"""

from __future__ import annotations

import functools
import importlib.util
import logging
import os
import re
import shutil
import subprocess
import tempfile
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from tilewright.errors import CompilationError, MissingDependencyError
from tilewright.runtime.cuda import driver
from tilewright.runtime.cuda.device import current_device
from tilewright.runtime.cuda.link import link_ptx
from tilewright.runtime.gpu_program import Resources
from tilewright.targets.base import Remark
from tilewright.targets.llvm.optimize import MachineOptions, generate_assembly
from tilewright.targets.llvm.symbols import kernel_name
from tilewright.targets.nvidia.target import NvidiaTarget

# Messages of ptxas that tell of code much slower than what was written: setmaxnreg ignored (C7508), and wgmma
# serialised (C7510, C7511, C7514, C7515).
SLOW_CODE = frozenset("C7508 C7510 C7511 C7514 C7515".split())

_PATIENCE = 15.0  # seconds of assembling before a log line tells of it
_log = logging.getLogger(__name__)

_FRAME = re.compile(r"(\d+) bytes stack frame, (\d+) bytes spill stores, (\d+) bytes spill loads")
_USED = re.compile(r"Used (\d+) registers(.*)")
_BARRIERS = re.compile(r"used (\d+) barriers")
_SHARED = re.compile(r"(\d+) bytes smem")
_CODE = re.compile(r"\((C\d{4})\)\s*(.*)")
_PROPERTIES = re.compile(r"Function properties for '?([\w$.]+)'?")
_WARNING = re.compile(r"ptxas warning\s*:\s*(.*)")


@dataclass(frozen=True)
class AssemblyOptions:
    """How a kernel is assembled; all of it is part of the cache key.

    `opt_level` is ptxas' -O0 to -O3, unless `ptxas_options` have one; `maxnreg` the most registers that a thread may
    take; `line_info` keeps source lines for profilers; `ptxas_options` are handed to ptxas as they are; `strict` makes
    spills and slow code errors.
    """

    opt_level: int = 3
    maxnreg: int | None = None
    line_info: bool = False
    ptxas_options: tuple[str, ...] = ()
    strict: bool = False

    @classmethod
    def from_options(cls, options: Mapping[str, Any]) -> AssemblyOptions:
        """Those of a launch's options that concern the assembler; raises `CompilationError` for bad values."""
        level, maxnreg = options.get("opt_level"), options.get("maxnreg")
        level = 3 if level is None else level
        if level not in (0, 1, 2, 3):
            raise CompilationError(f"opt_level is a level of ptxas, 0 to 3, not {level!r}")
        if maxnreg is not None and not (isinstance(maxnreg, int) and 16 <= maxnreg <= 255):
            raise CompilationError(f"maxnreg limits the registers of a thread: 16 to 255, not {maxnreg!r}")
        extra = options.get("ptxas_options") or ()
        if not isinstance(extra, (str, tuple, list)):
            raise CompilationError(f"ptxas_options are a string or a tuple of strings, not {extra!r}")
        extra = tuple(extra.split() if isinstance(extra, str) else map(str, extra))
        return cls(level, maxnreg, bool(options.get("line_info")), extra, bool(options.get("strict")))


@dataclass(frozen=True)
class Assembly:
    """A kernel's machine code, its PTX, what the assembler said, and the seconds that each step took."""

    cubin: bytes
    ptx: str
    resources: Resources
    remarks: tuple[Remark, ...]
    seconds: Mapping[str, float] = field(default_factory=dict)


class Assembler(Protocol):
    """What turns PTX into a cubin."""

    @property
    def identity(self) -> str:
        """Who it is and its version: the same identity gives the same code."""
        ...

    @property
    def description(self) -> str:
        """What it is and where it was found, for people."""
        ...

    def assemble(self, ptx: str, architecture: str, options: AssemblyOptions) -> tuple[bytes, str]:
        """The cubin, and the messages with the `-v` report; raises `CompilationError` with the messages."""
        ...


def assemble(text: str, symbol: str, target: NvidiaTarget, options: AssemblyOptions) -> Assembly:
    """Machine code of the kernel `symbol` in a module of LLVM text.

    Raises `CompilationError` when the assembler refuses the code, and with `strict` when registers spill or when
    it warns of slow code (`SLOW_CODE`); `MissingDependencyError` when there is no assembler.
    """
    ptx, seconds = to_ptx(text, target)
    if options.maxnreg is not None:
        ptx = _limit_registers(ptx, symbol, options.maxnreg)
    started = time.perf_counter()
    with _logged_when_slow(symbol, ptx):
        cubin, log = find_assembler().assemble(ptx, target.architecture, options)
        resources, remarks = parse_report(log, symbol)
        tried = ptx
        while (roomier := _roomier(tried, symbol, resources, target)) is not None:
            tried = roomier
            other, other_log = find_assembler().assemble(tried, target.architecture, options)
            better, other_remarks = parse_report(other_log, symbol)
            if better.spill_stores < resources.spill_stores:
                ptx, cubin, log, resources, remarks = tried, other, other_log, better, other_remarks
    seconds["ptxas"] = time.perf_counter() - started
    if options.strict:
        _check(symbol, resources, log)
    return Assembly(cubin, ptx, resources, remarks, seconds)


@contextmanager
def _logged_when_slow(symbol: str, ptx: str) -> Iterator[None]:
    """Log why nothing seems to happen where an assembler takes long, as it does for blocks that fit no registers."""
    text = (
        "the assembler has been working on kernel '%s' for %g s (%d lines of PTX): blocks of thousands of elements a "
        "thread take it minutes; smaller blocks or more warps (num_warps) would not"
    )
    warning = threading.Timer(_PATIENCE, _log.warning, (text, kernel_name(symbol), _PATIENCE, ptx.count("\n")))
    warning.daemon = True
    warning.start()
    try:
        yield
    finally:
        warning.cancel()


def to_ptx(text: str, target: NvidiaTarget) -> tuple[str, dict[str, float]]:
    """PTX of a module of LLVM text, and the seconds of each step."""
    code = generate_assembly(text, machine_options(target))
    assert code.assembly is not None
    return code.assembly, dict(code.seconds)


def machine_options(target: NvidiaTarget) -> MachineOptions:
    """LLVM's options for a GPU architecture."""
    return MachineOptions(target.triple, target.architecture, f"+ptx{target.ptx_version}")


def _limit_registers(ptx: str, symbol: str, registers: int) -> str:
    """The same with the directive `.maxnreg` on the kernel: it stands between its parameters and its body."""
    head = re.search(rf"\.entry\s+{re.escape(symbol)}\s*\(", ptx)
    if head is None:
        raise ValueError(f"the PTX has no kernel '{symbol}'")
    body = ptx.index("{", head.end())
    return f"{ptx[:body]}.maxnreg {registers}\n{ptx[body:]}"


def _roomier(ptx: str, symbol: str, resources: Resources, target: NvidiaTarget) -> str | None:
    """The same with more registers for a thread, where some spill that need not; else None.

    That is where `.minnctapersm` asks for more than one CTA on a multiprocessor, an estimate (`recompute`), which then
    is for one less; and where half the registers are free and nothing limits them: on sm_80 ptxas takes 32 registers
    and spills 8 KB of a large kernel that takes 255 and spills 1 KB when it is told its limit.
    """
    threads = re.search(r"^\.reqntid (\d+)", ptx, re.MULTILINE)
    if not resources.spill_stores or threads is None or re.search(r"^\.maxnreg", ptx, re.MULTILINE):
        return None
    several = re.search(r"^\.minnctapersm (\d+)\n", ptx, re.MULTILINE)
    if several is not None:
        fewer = f".minnctapersm {int(several[1]) - 1}\n" if int(several[1]) > 2 else ""
        return ptx.replace(several[0], fewer, 1) if int(several[1]) > 1 else None
    free = min(target.registers_per_thread, target.registers_per_multiprocessor // int(threads[1]) // 8 * 8)
    return _limit_registers(ptx, symbol, free) if resources.registers <= free // 2 else None


def parse_report(log: str, symbol: str) -> tuple[Resources, tuple[Remark, ...]]:
    """What the code of the kernel takes, by the assembler's `-v` report, and its warnings as remarks.

    Spills are summed over the kernel and the functions that it calls; the stack is the kernel's own frame.
    """
    current, stack, stores, loads = symbol, 0, 0, 0
    registers = barriers = shared = 0
    remarks = []
    for line in log.splitlines():
        if match := _PROPERTIES.search(line):
            current = match[1]
        elif match := _FRAME.search(line):
            stores, loads = stores + int(match[2]), loads + int(match[3])
            if current == symbol:
                stack = int(match[1])
        elif (match := _USED.search(line)) and current == symbol:
            registers = int(match[1])
            barriers = sum(int(count) for count in _BARRIERS.findall(match[2]))
            shared = sum(int(count) for count in _SHARED.findall(match[2]))
        elif match := _CODE.search(line):
            remarks.append(Remark("warning", f"ptxas {match[1]}: {match[2]}"))
        elif match := _WARNING.search(line):
            remarks.append(Remark("warning", f"ptxas: {match[1]}"))
    if stores or loads:
        remarks.append(Remark("warning", f"registers spill to local memory: {stores} bytes stored, {loads} loaded"))
    return Resources(registers, stores, loads, stack, shared, barriers), tuple(remarks)


def _check(symbol: str, resources: Resources, log: str) -> None:
    """Raise for what a kernel of the library must not do."""
    slow = [line.strip() for line in log.splitlines() if (match := _CODE.search(line)) and match[1] in SLOW_CODE]
    if resources.spill_stores or resources.spill_loads:
        slow.append(
            f"registers spill to local memory: {resources.spill_stores} bytes stored, {resources.spill_loads} loaded "
            f"({resources.registers} registers a thread)"
        )
    if slow:
        raise CompilationError(
            f"kernel '{kernel_name(symbol)}' compiles to slow code:\n  " + "\n  ".join(slow) + "\n"
            "Use smaller blocks or more warps, or compile without strict=True to accept it."
        )


@functools.cache
def find_assembler() -> Assembler:
    """The first assembler of this machine; raises `MissingDependencyError` when there is none."""
    for path, origin in ptxas_candidates():
        try:
            return Ptxas(path, origin, _version(path))
        except (OSError, subprocess.SubprocessError, ValueError):
            continue  # a file that does not run here: the next candidate serves
    if driver.is_available():
        return DriverAssembler()
    raise MissingDependencyError(
        "assembling GPU code needs ptxas, or a GPU with its driver: pip install 'tilewright[cuda]', or set CUDA_HOME "
        "to a CUDA toolkit of version 12.8 or newer"
    )


def ptxas_candidates() -> Iterator[tuple[Path, str]]:
    """Files named ptxas, with the words for where each was found, in the order of preference."""
    for path in wheel_files("ptxas"):
        yield path, "the package nvidia-cuda-nvcc"
    for path in toolkit_files("ptxas"):
        yield path, "a CUDA toolkit"


def wheel_files(program: str) -> Iterator[Path]:
    """Programs of NVIDIA's Python packages of this environment."""
    spec = importlib.util.find_spec("nvidia")
    for root in (spec.submodule_search_locations or ()) if spec else ():
        for folder in sorted(Path(root).glob("cu*"), reverse=True):  # cu13, cuda_nvcc
            yield from _existing(folder / "bin", program)


def toolkit_files(program: str) -> Iterator[Path]:
    """Programs of a CUDA toolkit."""
    if found := shutil.which(program):
        yield Path(found)
    for variable in ("CUDA_HOME", "CUDA_PATH"):
        if root := os.environ.get(variable):
            yield from _existing(Path(root) / "bin", program)


def _existing(folder: Path, program: str) -> Iterator[Path]:
    for name in (program, f"{program}.exe"):
        if (folder / name).is_file():
            yield folder / name


def _version(path: Path) -> str:
    answer = subprocess.run([path, "--version"], capture_output=True, text=True, timeout=30, check=True).stdout
    match = re.search(r"release \S+, V(\S+)", answer)
    if match is None:
        raise ValueError(f"{path} --version answered {answer!r}")
    return match[1]


@dataclass(frozen=True)
class Ptxas:
    """The stand-alone assembler."""

    path: Path
    origin: str
    version: str

    @property
    def identity(self) -> str:
        return f"ptxas{self.version}"

    @property
    def description(self) -> str:
        return f"ptxas {self.version} of {self.origin}"

    def assemble(self, ptx: str, architecture: str, options: AssemblyOptions) -> tuple[bytes, str]:
        with tempfile.TemporaryDirectory(prefix="tilewright-") as folder:
            source, result = Path(folder) / "kernel.ptx", Path(folder) / "kernel.cubin"
            source.write_text(ptx, encoding="utf-8")
            command = [str(self.path), f"-arch={architecture}", "-v"]
            if not any(option.lstrip("-").startswith(("O", "opt-level")) for option in options.ptxas_options):
                command += [f"-O{options.opt_level}"]
            command += ["-lineinfo"] if options.line_info else []
            command += [*options.ptxas_options, str(source), "-o", str(result)]
            done = subprocess.run(command, capture_output=True, text=True)
            log = done.stdout + done.stderr
            if done.returncode or not result.exists():
                raise _refused(self.description, log.replace(str(source), "kernel.ptx"), ptx, options.ptxas_options)
            return result.read_bytes(), log


@dataclass(frozen=True)
class DriverAssembler:
    """The assembler inside the driver, which knows the GPUs that it drives."""

    @property
    def identity(self) -> str:
        return f"driver{driver.version()}"

    @property
    def description(self) -> str:
        major, minor = divmod(driver.version(), 1000)
        return f"the driver's assembler (CUDA {major}.{minor // 10})"

    def assemble(self, ptx: str, architecture: str, options: AssemblyOptions) -> tuple[bytes, str]:
        if options.ptxas_options:
            raise CompilationError(
                "ptxas_options need ptxas, and this machine has the driver's assembler only: "
                "pip install nvidia-cuda-nvcc"
            )
        ours = NvidiaTarget.for_capability(current_device().capability).architecture
        if architecture != ours:
            raise MissingDependencyError(
                f"compiling for {architecture} on a machine with {ours} needs ptxas: pip install 'tilewright[cuda]'"
            )
        cubin, log = link_ptx(ptx, options.opt_level, options.line_info)
        if cubin is None:
            raise _refused(self.description, log, ptx)
        return cubin, log


def _refused(assembler: str, log: str, ptx: str, given: Sequence[str] = ()) -> CompilationError:
    """The error of code that does not assemble, with the lines of PTX that they name; `given`: ptxas_options."""
    lines = ptx.splitlines()
    named = sorted({int(number) for number in re.findall(r"kernel\.ptx, line (\d+)", log)})[:5]
    excerpt = "".join(f"\n  line {number}: {lines[number - 1].strip()}" for number in named if number <= len(lines))
    return CompilationError(
        f"{assembler} refuses the kernel's code:\n{_shortened(log.splitlines())}{excerpt}\n"
        + (f"It was given ptxas_options={' '.join(given)!r}: try without. " if given else "")
        + "If the kernel has inline assembly or asks for much shared memory, look there; else this is a bug of "
        "tilewright: please report it with the text of kernel.dump('ptx')."
    )


def _shortened(lines: Sequence[str]) -> str:
    error_lines = [line.strip() for line in lines if "error" in line or "fatal" in line] or list(lines)
    return "\n".join(f"  {line}" for line in error_lines[:12])
