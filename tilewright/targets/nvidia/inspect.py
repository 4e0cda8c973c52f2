"""Inspects a compiled GPU kernel: its SASS (machine code as text), instructions by kind, and resources.

The disassembler is NVIDIA's: of the package `nvidia-cuda-nvdisasm`, of a CUDA toolkit, or of an installed Triton.
"""

from __future__ import annotations

import functools
import importlib.util
import re
import subprocess
import tempfile
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from tilewright.errors import MissingDependencyError
from tilewright.runtime.gpu_program import Resources
from tilewright.targets.gpu.binary import GpuBinary
from tilewright.targets.nvidia.assemble import toolkit_files, wheel_files

# "/*0090*/  @!P0 LDG.E.128.CONSTANT R8, desc[UR4][R2.64] ;"
_INSTRUCTION = re.compile(r"^\s*/\*[0-9a-f]{4,}\*/\s+(?:@!?U?P\w+\s+)?([A-Z][\w.]*)", re.MULTILINE)
_GLOBAL_ACCESSES = ("LDG", "STG")
_PADDING = "NOP"


@dataclass(frozen=True)
class KernelInfo:
    """What a kernel's machine code takes and is made of.

    `instructions` counts instructions of the code (not of a run) by opcode without modifiers: ``HGMMA``, ``LDG``.
    `access_bytes` counts loads and stores of global memory by how many bytes each moves for a thread.  Both are
    empty when this machine has no disassembler, which `note` then says.
    """

    architecture: str
    threads: int  # of a CTA
    resources: Resources
    shared: int  # bytes of a CTA, static and dynamic
    code_bytes: int
    instructions: Mapping[str, int]
    access_bytes: Mapping[int, int]
    note: str = ""

    @property
    def registers(self) -> int:
        """Registers of a thread."""
        return self.resources.registers

    @property
    def spills(self) -> int:
        """Bytes of a thread's registers that are stored to local memory."""
        return self.resources.spill_stores

    @property
    def stack(self) -> int:
        """Bytes of a thread's stack frame."""
        return self.resources.stack

    @property
    def barriers(self) -> int:
        """Hardware barriers of a CTA."""
        return self.resources.barriers

    def __str__(self) -> str:
        resources = self.resources
        lines = [
            f"{self.architecture}, {self.threads} threads: {resources.registers} registers, "
            f"{resources.spill_stores}/{resources.spill_loads} bytes spilled (stored/loaded), "
            f"{resources.stack} bytes of stack, {self.shared} bytes of shared memory, {resources.barriers} barriers"
        ]
        if self.instructions:
            most = sorted(self.instructions.items(), key=lambda entry: (-entry[1], entry[0]))
            total = sum(self.instructions.values())
            lines.append(f"{total} instructions: " + ", ".join(f"{name} {count}" for name, count in most))
        if self.access_bytes:
            accesses = (f"{count} of {size} bytes" for size, count in sorted(self.access_bytes.items()))
            lines.append("accesses of global memory: " + ", ".join(accesses))
        return "\n".join(lines + ([self.note] if self.note else []))


def describe(binary: GpuBinary) -> KernelInfo:
    """What a compiled kernel takes and is made of."""
    instructions: Mapping[str, int] = {}
    access_bytes: Mapping[int, int] = {}
    note = ""
    try:
        text = sass(binary.image)
        instructions, access_bytes = instruction_mix(text), access_widths(text)
    except MissingDependencyError as error:
        note = f"instructions are not counted: {error}"
    return KernelInfo(
        architecture=binary.features[0],
        threads=binary.threads,
        resources=binary.resources,
        shared=binary.shared_bytes + binary.resources.shared,
        code_bytes=len(binary.image),
        instructions=instructions,
        access_bytes=access_bytes,
        note=note,
    )


def sass(cubin: bytes) -> str:
    """The machine code of a cubin as text; raises `MissingDependencyError` without a disassembler."""
    path = find_disassembler()
    command = [str(path), "-sass"] if path.stem == "cuobjdump" else [str(path), "-c"]
    with tempfile.TemporaryDirectory(prefix="tilewright-") as folder:
        file = Path(folder) / "kernel.cubin"
        file.write_bytes(cubin)
        done = subprocess.run([*command, str(file)], capture_output=True, text=True)
    if done.returncode:
        raise RuntimeError(f"{path.name} cannot read a cubin: {done.stderr.strip() or done.stdout.strip()}")
    return done.stdout


def instruction_mix(text: str) -> dict[str, int]:
    """Instructions of a text of SASS by opcode without modifiers, padding left out."""
    counts = Counter(opcode.partition(".")[0] for opcode in _INSTRUCTION.findall(text))
    counts.pop(_PADDING, None)
    return dict(counts)


def access_widths(text: str) -> dict[int, int]:
    """Loads and stores of global memory in a text of SASS, by the bytes that each moves for a thread."""
    counts: Counter[int] = Counter()
    for opcode in _INSTRUCTION.findall(text):
        name, *modifiers = opcode.split(".")
        if name in _GLOBAL_ACCESSES:
            counts[_width(modifiers)] += 1
    return dict(counts)


def _width(modifiers: list[str]) -> int:
    """Bytes of an access: 4 where the instruction does not say."""
    for modifier in modifiers:
        if modifier in ("64", "128", "256"):
            return int(modifier) // 8
        if modifier in ("U8", "S8"):
            return 1
        if modifier in ("U16", "S16"):
            return 2
    return 4


@functools.cache
def find_disassembler() -> Path:
    """The first disassembler of this machine; raises `MissingDependencyError` when there is none."""
    for path in _candidates():
        return path
    raise MissingDependencyError(
        "machine code is shown by nvdisasm or cuobjdump, and this machine has neither: pip install "
        "nvidia-cuda-nvdisasm, or set CUDA_HOME to a CUDA toolkit"
    )


def _candidates() -> Iterator[Path]:
    programs = ("nvdisasm", "cuobjdump")
    for program in programs:
        yield from wheel_files(program)
    for program in programs:
        yield from toolkit_files(program)
    spec = importlib.util.find_spec("triton")
    for root in (spec.submodule_search_locations or ()) if spec else ():
        for program in programs:
            file = Path(root) / "backends/nvidia/bin" / program
            if file.is_file():
                yield file
