"""The compiler for NVIDIA GPUs as one object."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tilewright.graph.target_passes import TargetPasses
from tilewright.ir.core import Function
from tilewright.targets.gpu.binary import GpuBinary
from tilewright.targets.nvidia.assemble import find_assembler
from tilewright.targets.nvidia.inspect import KernelInfo, describe, sass
from tilewright.targets.nvidia.options import OPTION_NAMES, NvidiaOptions
from tilewright.targets.nvidia.target import NvidiaTarget


class NvidiaBackend:
    """See `targets.base.Backend`.  The compiler is imported where it is needed: cached kernels come without it."""

    option_names = OPTION_NAMES

    def __init__(self, target: NvidiaTarget) -> None:
        self.target = target

    @property
    def key(self) -> str:
        """The target's, and who assembles; raises `MissingDependencyError` where there is no assembler."""
        return f"{self.target.key}-{find_assembler().identity}"

    def options(self, given: Mapping[str, Any]) -> NvidiaOptions:
        """The record of a launch's options."""
        return NvidiaOptions.of_launch(given)

    @property
    def graph_passes(self) -> TargetPasses:
        """The table of `graph_passes.py`."""
        from tilewright.targets.nvidia.graph_passes import graph_passes

        return graph_passes(self.target)

    def prepare(self) -> None:
        """Import what `compile` needs."""
        import tilewright.targets.nvidia.compile  # noqa: F401

    def compile(self, function: Function, options: NvidiaOptions) -> GpuBinary:
        """The cubin of a verified kernel, of the cache where it is there; raises `CompilationError`."""
        from tilewright.targets.nvidia.compile import compile_function

        return compile_function(function, self.target, options)

    def explain(self, function: Function, options: NvidiaOptions) -> str:
        """What a kernel takes of a CTA, and the remarks of the compiler and the assembler, one a line."""
        from tilewright.targets.nvidia.compile import explain_function

        return explain_function(function, self.target, options)

    def describe(self, binary: GpuBinary) -> KernelInfo:
        """See `targets.base.DeviceBackend`."""
        return describe(binary)

    def disassemble(self, image: bytes) -> str:
        """See `targets.base.DeviceBackend`."""
        return sass(image)

    def load(self, key: str) -> GpuBinary | None:
        """The binary of a key from the cache; None when it is not there."""
        from tilewright.targets.nvidia.compile import load_binary

        return load_binary(key, self.target)
