"""`triton.tools.disasm`: the machine code of a kernel as text."""

from __future__ import annotations

from tilewright.targets.nvidia.inspect import sass


def get_sass(cubin_asm: bytes, fun: str | None = None) -> str:
    """The instructions of a kernel for an NVIDIA GPU (``compiled.asm["cubin"]``).

    Raises `MissingDependencyError` on a machine without a disassembler.  ``compiled.asm["asm"]`` is the CPU's text.
    """
    return sass(cubin_asm)


def extract(file_path: str, fun: str | None = None) -> str:
    """The same of a file."""
    with open(file_path, "rb") as file:
        return get_sass(file.read(), fun)
