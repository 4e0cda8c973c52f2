"""A compiled GPU kernel."""

from __future__ import annotations

from dataclasses import dataclass

from tilewright.runtime.gpu_program import Program, Resources, TensorMapUse
from tilewright.targets.base import Binary


@dataclass(frozen=True, kw_only=True)
class GpuBinary(Binary):
    """A cubin and what its launch needs.

    `symbol` is a kernel entry, whose parameters are those of `parameters` in order, each of its own size and
    alignment: an address, a number, or the 128 bytes of a tensor map (64-byte aligned) that is made of the
    argument as the entry of `tensor_maps` for this parameter says.  It is started with `threads` threads in a CTA,
    clusters of `cluster` CTAs along x, y, z, and `shared_bytes` of dynamic shared memory; the grid counts CTAs, and
    is a multiple of `cluster`.
    """

    warps: int
    warp_threads: int  # of a warp
    shared_bytes: int
    resources: Resources
    cluster: tuple[int, int, int] = (1, 1, 1)
    tensor_maps: tuple[TensorMapUse, ...] = ()
    dependent_launch: bool = False
    cooperative: bool = False

    @property
    def threads(self) -> int:
        """Threads of a CTA."""
        return self.warps * self.warp_threads

    def program(self, name: str) -> Program:
        """The part that the runtime works with; `name` is the kernel's, for errors."""
        return Program(
            name=name,
            image=self.image,
            symbol=self.symbol,
            parameters=self.parameters,
            architecture=self.features[0],
            threads=self.threads,
            shared_bytes=self.shared_bytes,
            cluster=self.cluster,
            tensor_maps=self.tensor_maps,
            dependent_launch=self.dependent_launch,
            cooperative=self.cooperative,
        )
