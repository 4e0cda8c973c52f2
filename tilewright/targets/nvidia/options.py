"""The options of a launch that change a GPU's code, checked, as one record."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from tilewright.errors import CompilationError
from tilewright.passes.grid_axes import SAME_AXES, Axes
from tilewright.targets.nvidia.assemble import AssemblyOptions

OPTION_NAMES = frozenset(
    "num_warps num_stages ctas_per_sm cluster maxnreg enable_fp_fusion launch_cooperative_grid launch_pdl "
    "dependent_launch wait_at_entry ptxas_options opt_level line_info strict".split()
)


@dataclass(frozen=True)
class NvidiaOptions:
    """How a kernel is compiled; all of it is part of the cache key.

    `num_warps` and `cluster` count where the kernel does not say them itself, `num_stages` (0: the compiler's choice)
    for loops that do not.  Without `fuse` every product is rounded before it is added to something.  A kernel with
    `early` may start before the one ahead of it has ended, which with `wait_at_entry` it waits for itself; with
    `late` it does not, even if its code waits.
    With `ctas_per_sm`, a CTA asks for so much shared memory that no more of them are resident on an SM.
    `grid_axes` says which axis of the launch is which of the kernel's grid (`passes.grid_axes`).
    `keep_texts` adds the texts of all stages to the binary.
    """

    num_warps: Any = None  # checked where the kernel is known
    num_stages: int = 0
    cluster: Any = None  # checked where the kernel is known
    fuse: bool = True
    cooperative: bool = False
    early: bool = False
    late: bool = False
    wait_at_entry: bool = False
    ctas_per_sm: int = 0  # 0: as many as fit
    grid_axes: Axes = SAME_AXES
    keep_texts: bool = False
    assembly: AssemblyOptions = field(default_factory=AssemblyOptions)

    @classmethod
    def of_launch(cls, given: Mapping[str, Any]) -> NvidiaOptions:
        """The record of a launch's options; others change nothing.  Raises `CompilationError` for bad values."""
        stages = given.get("num_stages")
        if stages is not None and not (isinstance(stages, int) and stages >= 0):
            raise CompilationError(f"num_stages is 1 or more (0: the compiler's choice), not {stages!r}")
        bound = given.get("ctas_per_sm") or 0
        if not (isinstance(bound, int) and bound >= 0):
            raise CompilationError(f"ctas_per_sm is 1 or more (0: as many as fit), not {bound!r}")
        cluster = given.get("cluster")
        return cls(
            num_warps=given.get("num_warps"),
            num_stages=stages or 0,
            cluster=tuple(cluster) if isinstance(cluster, list) else cluster,
            fuse=bool(given.get("enable_fp_fusion", True)),
            cooperative=bool(given.get("launch_cooperative_grid")),
            early=any(given.get(name) for name in ("dependent_launch", "launch_pdl", "wait_at_entry")),
            late=given.get("dependent_launch") is False,
            wait_at_entry=bool(given.get("wait_at_entry")),
            ctas_per_sm=bound,
            grid_axes=tuple(given.get("grid_axes", SAME_AXES)),
            keep_texts=bool(given.get("keep_texts")),
            assembly=AssemblyOptions.from_options(given),
        )

    @property
    def line_info(self) -> bool:
        """Whether code depends on where its source is."""
        return self.assembly.line_info

    @property
    def key(self) -> str:
        """What code depends on, as a text."""
        return repr(replace(self, keep_texts=False))
