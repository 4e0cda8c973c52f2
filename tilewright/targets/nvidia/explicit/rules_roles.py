"""Rules of warp roles, of their waits, and of clusters."""

from __future__ import annotations

from dataclasses import replace

from tilewright.errors import CompilationError
from tilewright.ir.core import Operation, Region
from tilewright.targets.gpu.lowering import ThreadGroup
from tilewright.targets.llvm.builder import LLVMValue
from tilewright.targets.nvidia.explicit import barriers, cluster, dependent_launch, ptx, roles
from tilewright.targets.nvidia.explicit.lowering import FIRST_BARRIER, ExplicitLowering, ExplicitRule
from tilewright.targets.nvidia.explicit.ptx import offset
from tilewright.targets.nvidia.explicit.views import scaled
from tilewright.targets.nvidia.target import WARP_THREADS

_HARDWARE_BARRIERS = 16  # of a CTA


# Barriers ----------------------------------------------------------------------------------------


def _barrier_alloc(lowering: ExplicitLowering, operation: Operation) -> None:
    """Where they lie; `entry` has initialised them."""
    lowering.define(operation.result, [lowering.i32(lowering.places.tiles[operation])])


def _barrier_index(lowering: ExplicitLowering, operation: Operation) -> None:
    several, number = operation.operands
    builder = lowering.builder
    distance = scaled(builder, lowering.scalar(number), barriers.BARRIER_BYTES)
    lowering.define(operation.result, [offset(builder, lowering.scalar(several), distance)])


def _arrive(lowering: ExplicitLowering, operation: Operation) -> None:
    place, *rank = [lowering.scalar(value) for value in operation.operands]
    with lowering.first_lane():
        if rank:
            barriers.arrive_remote(lowering.builder, place, rank[0])
        else:
            barriers.arrive(lowering.builder, place)


def _expect(lowering: ExplicitLowering, operation: Operation) -> None:
    count = operation.attributes["bytes"]
    assert isinstance(count, int)
    with lowering.leader(operation):
        barriers.arrive_expect(lowering.builder, lowering.scalar(operation.operands[0]), count)


def _wait(lowering: ExplicitLowering, operation: Operation) -> None:
    place, parity = (lowering.scalar(value) for value in operation.operands)
    barriers.wait(lowering.builder, place, parity)


def _fence_async(lowering: ExplicitLowering, operation: Operation) -> None:
    barriers.fence_async(lowering.builder)


def _group_sync(lowering: ExplicitLowering, operation: Operation) -> None:
    lowering.synchronize()


def _named_sync(lowering: ExplicitLowering, operation: Operation) -> None:
    threads = operation.attributes["threads"]
    assert isinstance(threads, int)
    barriers.named_sync(lowering.builder, lowering.scalar(operation.operands[0]), threads)


def _named_arrive(lowering: ExplicitLowering, operation: Operation) -> None:
    threads = operation.attributes["threads"]
    assert isinstance(threads, int)
    barriers.named_arrive(lowering.builder, lowering.scalar(operation.operands[0]), threads)


# Clusters ----------------------------------------------------------------------------------------


def _cluster_rank(lowering: ExplicitLowering, operation: Operation) -> None:
    lowering.define(operation.result, [cluster.rank(lowering.builder)])


def _cluster_arrive(lowering: ExplicitLowering, operation: Operation) -> None:
    cluster.arrive(lowering.builder, relaxed=bool(operation.attributes["relaxed"]))


def _cluster_wait(lowering: ExplicitLowering, operation: Operation) -> None:
    cluster.wait(lowering.builder)


def _grid_wait(lowering: ExplicitLowering, operation: Operation) -> None:
    dependent_launch.grid_wait(lowering.builder)


def _launch_dependents(lowering: ExplicitLowering, operation: Operation) -> None:
    dependent_launch.launch_dependents(lowering.builder)


def _warp_any(lowering: ExplicitLowering, operation: Operation) -> None:
    builder = lowering.builder
    found, *others = lowering.registers(operation.operands[0])
    for other in others:
        found = builder.binary("or", found, other)
    everyone = builder.integer(-1, "i32")
    lowering.define(operation.result, [ptx.call(builder, "vote.any.sync", everyone, found, result="i1")])


# Roles -------------------------------------------------------------------------------------------


def _roles(lowering: ExplicitLowering, operation: Operation) -> None:
    """Sibling branches on the number of the warp or warpgroup, made uniform.

    Where nothing follows, every role ends by itself.  Did the thread of an elected role come back to its warp, ptxas
    would have it run in vector registers, and moves from there for every copy.
    """
    builder = lowering.builder
    table = roles.table(operation)
    unit = 4 if all(role.warps % 4 == 0 for role in table) else 1
    shift = builder.integer(lowering.lane_bits + unit.bit_length() - 1, "i32")
    number = ptx.uniform(builder, builder.binary("lshr", lowering.group.thread, shift))
    ends = lowering.function.region.operations[-2] is operation
    after = builder.new_block("roles.end")
    for role, region in zip(table, operation.regions, strict=True):
        inside, outside = builder.new_block("role"), builder.new_block("role.next")
        last = role is table[-1]
        if last:
            builder.branch(inside)
        else:
            builder.branch_if(builder.compare("ult", number, role.end // unit), inside, outside)
        builder.start(inside)
        _role(lowering, role, region, number, unit, ends)
        if ends:
            builder.ret()
        else:
            builder.branch(after)
        builder.start(after if last else outside)
    if not ends:
        lowering.reconverge()


_CLUSTER = frozenset(("cluster_arrive", "cluster_wait"))


def _role(
    lowering: ExplicitLowering, role: roles.RoleCopies, region: Region, number: LLVMValue, unit: int, ends: bool
) -> None:
    """One role: its registers, the number of the copy, and its code, with which the kernel `ends` or not.

    An elected role's is run by the first thread, but for the cluster's barrier at its end, where all threads count.
    """
    builder = lowering.builder
    roles.set_registers(builder, role, lowering.warps, lowering.target)
    # Of a single copy too: with the constant 0 ptxas finds no use for the uniform number of the warp for the branch,
    # branches on the thread's instead, and keeps everything after that in vector registers.
    copy = _divided(lowering, builder.subtract(number, role.first // unit), role.warps // unit)
    group = _group(lowering, role, copy)
    together = region.operations[:-1]
    lowering.define(region.arguments[0], [copy])
    if role.elected:
        count = next((i for i, entry in enumerate(together) if entry.opcode in _CLUSTER), len(together))
        alone, together = together[:count], together[count:]
        with builder.when(builder.compare("eq", group.thread, 0), hint="elected"):
            with lowering.in_group(replace(group, block=builder.block)):
                lowering.operations(alone)
            if ends and not together:
                builder.ret()
    with lowering.in_group(replace(group, elected=False)):
        lowering.operations(together)


def _group(lowering: ExplicitLowering, role: roles.RoleCopies, copy: LLVMValue) -> ThreadGroup:
    """The threads of a role's copy, counted from its first."""
    builder, threads = lowering.builder, WARP_THREADS * role.warps
    if threads & (threads - 1) or WARP_THREADS * role.first % threads:
        begin = builder.add(scaled(builder, copy, threads), WARP_THREADS * role.first)
        thread = builder.subtract(lowering.group.thread, begin)
    else:
        thread = builder.binary("and", lowering.group.thread, lowering.i32(threads - 1))
    warp = builder.binary("lshr", thread, lowering.i32(lowering.lane_bits))
    return ThreadGroup(
        warps=role.warps,
        thread=thread,
        lane=lowering.group.lane,
        warp=warp,
        barrier=_hardware_barrier(lowering, role, copy),
        elected=role.elected,
        scratch=scaled(builder, copy, lowering.places.role_bytes.get(role.number, 0)),
        block=builder.block,
    )


def _hardware_barrier(lowering: ExplicitLowering, role: roles.RoleCopies, copy: LLVMValue) -> LLVMValue | None:
    """One of the compiler's hardware barriers for each copy of more than one warp; others need none."""
    if role.elected or role.warps == 1:
        return None
    first = lowering.next_barrier
    lowering.next_barrier += role.copies
    if lowering.next_barrier > _HARDWARE_BARRIERS:
        raise CompilationError(
            f"kernel '{lowering.function.name}': its roles have more copies of several warps than there are hardware "
            f"barriers for them ({_HARDWARE_BARRIERS - FIRST_BARRIER}); use fewer copies of more warps"
        )
    return offset(lowering.builder, lowering.i32(first), copy)


def _divided(lowering: ExplicitLowering, value: LLVMValue, divisor: int) -> LLVMValue:
    if divisor == 1:
        return value
    if divisor & (divisor - 1):
        return lowering.builder.emit(f"udiv {value}, {divisor}", "i32")
    return lowering.builder.binary("lshr", value, lowering.i32(divisor.bit_length() - 1))


RULES: dict[str, ExplicitRule] = {
    "barrier_alloc": _barrier_alloc,
    "barrier_index": _barrier_index,
    "barrier_arrive": _arrive,
    "barrier_expect": _expect,
    "barrier_wait": _wait,
    "fence_async": _fence_async,
    "group_sync": _group_sync,
    "named_sync": _named_sync,
    "named_arrive": _named_arrive,
    "cluster_rank": _cluster_rank,
    "cluster_arrive": _cluster_arrive,
    "cluster_wait": _cluster_wait,
    "grid_wait": _grid_wait,
    "grid_launch_dependents": _launch_dependents,
    "warp_any": _warp_any,
    "warp_roles": _roles,
}
