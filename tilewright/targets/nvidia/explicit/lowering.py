"""Lowers explicit kernels: what `NvidiaLowering` does, and what it knows besides the registers of values."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager

from tilewright.ir.core import Operation, Parameter, Region, SSAValue
from tilewright.ir.explicit import is_explicit
from tilewright.ir.ops import is_pure
from tilewright.ir.types import SharedType, TensorMapType
from tilewright.targets.gpu.layouts import Assignment
from tilewright.targets.gpu.lowering import Rule
from tilewright.targets.llvm.builder import LLVMValue, Module
from tilewright.targets.nvidia.explicit import barriers, entry, matrix_moves
from tilewright.targets.nvidia.explicit.allocation import ExplicitAllocation
from tilewright.targets.nvidia.explicit.views import SharedView, whole
from tilewright.targets.nvidia.lowering import NvidiaLowering
from tilewright.targets.nvidia.target import WARP_THREADS, NvidiaTarget

# What one thread of a group does: neighbours of them share a branch.
LEADERS = frozenset("barrier_expect tma_load tma_store tma_commit tma_wait prefetch tma_prefetch".split())
FIRST_BARRIER = 8  # hardware barriers of roles; 1 to 7 are the author's


class ExplicitLowering(NvidiaLowering):
    """The lowering of a kernel with explicit operations.

    `distances` are the bytes between the panels of tiles and between their rows, `pinned` the registers that pending
    products read still, `places` where tiles and barriers are, `cluster` the CTAs of a cluster along x, y and z.
    """

    def __init__(
        self,
        assignment: Assignment,
        target: NvidiaTarget,
        module: Module,
        symbol: str,
        allocation: ExplicitAllocation,
        warps: int,
        rules: Mapping[str, Rule],
        cluster: tuple[int, int, int],
        *,
        fuse: bool,
    ) -> None:
        self.cluster = cluster
        self.cluster_size = cluster[0] * cluster[1] * cluster[2]
        self.places = allocation
        self.distances: dict[SSAValue, tuple[int, int]] = {}
        self.pinned: dict[SSAValue, tuple[LLVMValue, ...]] = {}
        self.next_barrier = FIRST_BARRIER
        # Of each load of the region that may be under way a word, an i32: of this CTA's shared memory, and of others'.
        self.loading: dict[bool, list[LLVMValue]] = {False: [], True: []}
        self._following: dict[Operation, Operation] = {}
        super().__init__(assignment, target, module, symbol, allocation, warps, rules, fuse=fuse)
        self._index(self.function.region)

    def _index(self, region: Region) -> None:
        """Remember what follows each operation that only a leader runs, values in between left out."""
        later: Operation | None = None
        for operation in reversed(region.operations):
            if later is not None and operation.opcode in LEADERS:
                self._following[operation] = later
            if is_explicit(operation.opcode) or not is_pure(operation) or operation.regions:
                later = operation
            for inner in operation.regions:
                self._index(inner)

    # The kernel ----------------------------------------------------------------------------------

    def parameter(self, argument: SSAValue, parameter: Parameter) -> tuple[str, str]:
        if isinstance(argument.type.handle, TensorMapType):
            return "ptr", 'byval([128 x i8]) align 64 "nvvm.grid_constant"'
        return super().parameter(argument, parameter)

    def attributes(self) -> str:
        """One CTA has a multiprocessor alone: without saying so, setmaxnreg would be ignored."""
        attributes = f'{super().attributes()} "nvvm.minctasm"="1"'
        if self.cluster_size == 1:
            return attributes
        return f'{attributes} "nvvm.cluster_dim"="{",".join(map(str, self.cluster))}"'

    def body(self) -> None:
        entry.enter(self)
        super().body()

    def operations(self, operations: Sequence[Operation]) -> None:
        """What a region loads is awaited in it, or not at all."""
        outer, self.loading = self.loading, {False: [], True: []}
        super().operations(operations)
        self.loading = outer

    # Tiles ---------------------------------------------------------------------------------------

    def view(self, value: SSAValue) -> SharedView:
        """The tile that a handle stands for, in the place that its registers say."""
        kind = value.type.handle
        assert isinstance(kind, SharedType)
        shape = (*kind.shape[:-2], kind.shape[-1], kind.shape[-2]) if kind.transposed else kind.shape
        start, *peer = self.registers(value)
        view = whole(start, shape, kind.element, kind.swizzle)
        panel_bytes, row_bytes = self.distances.get(value, (view.panel_bytes, 0))
        rank = peer[0] if peer else None
        return SharedView(start, shape, kind.element, kind.swizzle, panel_bytes, kind.transposed, rank, row_bytes)

    def define_view(self, value: SSAValue, view: SharedView) -> None:
        """Bind a handle to a tile."""
        self.define(value, [view.start] if view.peer is None else [view.start, view.peer])
        self.distances[value] = view.panel_bytes, view.row_bytes

    # Threads -------------------------------------------------------------------------------------

    @property
    def threads(self) -> matrix_moves.Threads:
        """What addresses are computed from."""
        return matrix_moves.Threads(self.group.lane, self.group.warp)

    def synchronize(self) -> None:
        """Among the threads of a role by the hardware barrier that is its own."""
        if self.group.elected or self.group.warps == 1 or self.group.barrier is None:
            super().synchronize()
        else:
            barriers.named_sync(self.builder, self.group.barrier, WARP_THREADS * self.group.warps)

    @contextmanager
    def leader(self, operation: Operation) -> Iterator[None]:
        """Code that one thread of the group runs; the warp joins again after it.

        Behind all of them, where several follow each other: LLVM then makes one branch of theirs.
        """
        if self.group.elected:
            yield
            return
        first = self.once(("leader",), lambda: self.builder.compare("eq", self.group.thread, self.i32(0)))
        with self.builder.when(first, hint="leader"):
            yield
        later = self._following.get(operation)
        if later is None or later.opcode not in LEADERS:
            self.reconverge()

    @contextmanager
    def first_lane(self) -> Iterator[None]:
        """Code that lane 0 of every warp runs, or the one thread of an elected role."""
        if self.group.elected:
            yield
            return
        with self.builder.when(self.builder.compare("eq", self.group.lane, self.i32(0)), hint="lane"):
            yield


ExplicitRule = Callable[[ExplicitLowering, Operation], None]
