"""The NVIDIA compiler's steps for an explicit kernel, after the common passes."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from math import prod
from typing import Any, cast

from tilewright.errors import CompilationError
from tilewright.ir.core import Function
from tilewright.ir.diagnostics import explicit_error
from tilewright.ir.explicit import is_explicit
from tilewright.ir.types import TensorMapType
from tilewright.passes.hazards import CtaLimits, check_hazards
from tilewright.targets.gpu.layouts import assign
from tilewright.targets.gpu.lowering import Rule
from tilewright.targets.gpu.scratch import scratch_sizes
from tilewright.targets.llvm.builder import Module
from tilewright.targets.nvidia.dot import scratch_rules
from tilewright.targets.nvidia.explicit import rules_products, rules_roles, rules_shared
from tilewright.targets.nvidia.explicit.allocation import allocate_explicit
from tilewright.targets.nvidia.explicit.localize import localize
from tilewright.targets.nvidia.explicit.lowering import ExplicitLowering
from tilewright.targets.nvidia.explicit.roles import table
from tilewright.targets.nvidia.intrinsics import NvidiaIntrinsics
from tilewright.targets.nvidia.layout_rules import layout_rules
from tilewright.targets.nvidia.lowered import LoweredKernel, TensorMapUse
from tilewright.targets.nvidia.options import NvidiaOptions
from tilewright.targets.nvidia.rules import RULES as PLAIN_RULES
from tilewright.targets.nvidia.target import NvidiaTarget

# Only `ExplicitLowering` runs those of this package; what the compiler writes into plain kernels has other rules there.
_PLAIN = {opcode: rule for opcode, rule in PLAIN_RULES.items() if not is_explicit(opcode)}
RULES = {**_PLAIN, **cast(dict[str, Rule], {**rules_shared.RULES, **rules_products.RULES, **rules_roles.RULES})}
DEFAULT_WARPS = 4
GREATEST_CLUSTER = 16


def lower_explicit(function: Function, target: NvidiaTarget, symbol: str, options: NvidiaOptions) -> LoweredKernel:
    """LLVM text of an explicit kernel.

    Of `options`, `num_warps` counts for kernels without roles, and it and `cluster` where the kernel does not say them.
    Raises `CompilationError` for targets other than sm_90a, and for what cannot be lowered.
    """
    if not target.wgmma:
        for operation in function.walk():
            if is_explicit(operation.opcode):
                raise explicit_error(operation, target.architecture)
        raise CompilationError(
            f"kernel '{function.name}' takes tensor maps, which {target.architecture} does not have: they are for "
            "explicit kernels of sm_90a; pass pointers, or a descriptor to a parameter without the annotation"
        )
    # What cannot work is told at the user's line, before anything is made of it.
    warps = warps_of(function, options)
    limits = CtaLimits(target.warp_threads, target.registers_per_multiprocessor, target.shared_bytes)
    check_hazards(function, limits, warps)
    # Threads of a role are numbered anew: blocks from outside are computed again.
    function = localize(function)
    # Every block gets registers of its role's threads; products say where theirs are.
    assignment = assign(
        function, target, warps, layout_rules(target, warpgroups=False)
    )  # shared memory is the author's
    # Tiles and barriers live as long as the kernel; scratch comes after them.
    allocation = allocate_explicit(assignment.function, scratch_sizes(assignment, scratch_rules(target)))
    # One rule for each operation.
    module = Module(header=NvidiaIntrinsics.header)
    cluster = cluster_of(function, options)
    fuse = options.fuse
    lowering = ExplicitLowering(assignment, target, module, symbol, allocation, warps, RULES, cluster, fuse=fuse)
    if options.assembly.line_info:
        lowering.keep_lines()
    lowering.run()
    return LoweredKernel(
        text=module.text,
        symbol=symbol,
        warps=warps,
        shared_bytes=allocation.size,
        cluster=cluster,
        tensor_maps=tuple(tensor_maps(function, lowering.tensor_maps)),
        remarks=tuple(lowering.remarks),
        assigned=assignment.function,
        # One that lets others start early, and waits for nobody, does not start early itself.
        dependent_launch=any(operation.opcode == "grid_wait" for operation in function.walk()),
    )


def tensor_maps(function: Function, used: Sequence[TensorMapUse]) -> Iterator[TensorMapUse]:
    """How each tensor map is used; one that is not used is still passed, with the least box."""
    known = {use.parameter: use for use in used}
    for number, argument in enumerate(function.region.arguments):
        kind = argument.type.handle
        if isinstance(kind, TensorMapType):
            least = (*(1,) * (len(kind.block) - 1), 16 // kind.element.itemsize)
            yield known.get(number, TensorMapUse(number, least, kind.element))


def warps_of(function: Function, options: NvidiaOptions) -> int:
    """Warps of a CTA: those of all roles; else what the kernel itself states, the launch's `num_warps`, or four.

    As in Triton, what Tile IR states (`{num_warps = 8}`) counts before the launch: its author counted with it.
    Raises `CompilationError` for a number that is none of 1, 2, 4, 8, 16 and 32.
    """
    for operation in function.region.operations:
        if operation.opcode == "warp_roles":
            return table(operation)[-1].end
    found = function.attributes.get("num_warps", options.num_warps)
    warps = DEFAULT_WARPS if found is None else found
    if not isinstance(warps, int) or warps not in (1, 2, 4, 8, 16, 32):
        raise CompilationError(f"num_warps is 1, 2, 4, 8, 16 or 32, not {warps!r}")
    return warps


def cluster_of(function: Function, options: NvidiaOptions) -> tuple[int, int, int]:
    """CTAs of a cluster along x, y and z; raises `CompilationError` for an option that is none."""
    given: Any = function.attributes.get("cluster") or options.cluster or (1, 1, 1)
    counted = isinstance(given, (tuple, list)) and 1 <= len(given) <= 3 and all(isinstance(n, int) for n in given)
    if not counted or min(given) < 1 or prod(given) > GREATEST_CLUSTER:
        raise CompilationError(
            f"cluster is CTAs along one to three axes, 1 to {GREATEST_CLUSTER} in all, not {given!r}"
        )
    x, y, z = (*given, 1, 1)[:3]
    return x, y, z
