"""The CPU compiler as one object."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from tilewright.errors import ExecutionError
from tilewright.graph.target_passes import TargetPasses
from tilewright.ir.core import Function, Operation
from tilewright.ir.memory import Extent
from tilewright.runtime.failure_record import Failure
from tilewright.targets.base import Binary, CFunction
from tilewright.targets.cpu.assemble import assemble
from tilewright.targets.cpu.options import OPTION_NAMES, CPUOptions
from tilewright.targets.cpu.stored import load_binary
from tilewright.targets.cpu.target import CPUTarget


class CPUBackend:
    """See `targets.base.Backend`.  The compiler is imported where it is needed: cached kernels come without it."""

    option_names = OPTION_NAMES

    def __init__(self, target: CPUTarget) -> None:
        self.target = target

    @property
    def key(self) -> str:
        """The target's: LLVM assembles, whose version is in all keys."""
        return self.target.key

    def options(self, given: Mapping[str, Any]) -> CPUOptions:
        """The record of a launch's options."""
        return CPUOptions.of_launch(given)

    @property
    def graph_passes(self) -> TargetPasses:
        """The table of `graph_passes.py`."""
        from tilewright.targets.cpu.graph_passes import graph_passes

        return graph_passes(self.target)

    def prepare(self) -> None:
        """Import what `compile` needs."""
        import tilewright.targets.cpu.compile  # noqa: F401

    def compile(self, function: Function, options: CPUOptions) -> Binary:
        """The binary of a verified kernel, of the cache where it is there."""
        from tilewright.targets.cpu.compile import compile_function

        return compile_function(function, self.target, options)

    def explain(self, function: Function, options: CPUOptions) -> str:
        """What the lowering of a verified kernel decides, line by line of its source."""
        from tilewright.targets.cpu.pipeline import lower

        return lower(function, self.target, options).explanation()

    def load(self, key: str) -> Binary | None:
        """The binary of a key from the cache; None when it is not there."""
        return load_binary(key, self.target)

    def assemble_plan(self, text: str) -> bytes:
        """See `targets.base.HostBackend`."""
        return assemble(text, self.target).image

    def failed_operation(
        self, function: Function, failure: Failure, extents: Sequence[Extent]
    ) -> tuple[Operation, ExecutionError]:
        """See `targets.base.HostBackend`."""
        from tilewright.targets.cpu.failed import failed_operation

        return failed_operation(function, failure, extents)

    def c_function(self, function: Function, name: str) -> CFunction:
        """See `targets.base.HostBackend`."""
        from tilewright.targets.cpu.c_function import c_function

        return c_function(function, name, self.target)
