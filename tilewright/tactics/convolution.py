"""Convolution groups: pure matrix product, implicit matrix product, runs of few channels, depthwise."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from tilewright.errors import UnsupportedOperationError
from tilewright.graph.core import Graph, Node, Value
from tilewright.graph.fusion import Group
from tilewright.kernels.convolution import convolution, convolution_few_channels, depthwise_convolution
from tilewright.kernels.packing import order_recipe, taps_recipe
from tilewright.symbolic import Size, ceil_divide, lift, product, simplify
from tilewright.tactics.blocks import Blocks, choose_blocks, row_ranges
from tilewright.tactics.contraction import (
    Problem,
    Slots,
    bind_extra,
    bind_sizes,
    divides,
    epilogue_slots,
    gemm_candidate,
)
from tilewright.tactics.core import Candidate, KernelCall, Operand, PackedConstant, Stage
from tilewright.tactics.elementwise import chain_operations, total_bytes
from tilewright.tactics.reduction import rows_per_program
from tilewright.targets.base import Target
from tilewright.tune.cost import estimate, machine_of

FEW_CHANNELS = 8
CHANNEL_BLOCK = 256


def convolution_candidates(group: Group, graph: Graph, target: Target) -> list[Candidate]:
    """The candidates of a group whose anchor is a convolution."""
    group = _with_bias_in_epilogue(_with_two_dimensions(group))
    anchor = group.anchor
    assert anchor is not None
    x, w = anchor.inputs[:2]
    assert x is not None and w is not None
    if anchor.attributes["layout"] != "NHWC":
        raise NotImplementedError("channels-first convolution")
    if w not in graph.constants:
        raise UnsupportedOperationError(
            f"conv (from {anchor.source or 'the graph'}): the weights are computed at run time; "
            "only constant weights have a kernel"
        )
    slots = epilogue_slots(group, graph)
    attributes = anchor.attributes
    groups = attributes["groups"]
    pointwise = w.shape[2:] == (1, 1) and not any(low or high for low, high in attributes["padding"])
    if pointwise and groups == 1 and tuple(attributes["strides"]) == (1, 1):
        width = target.microtile(x.dtype)[1]
        problem = Problem(
            product(x.shape[:-1]), w.shape[0], x.shape[-1], x, PackedConstant(w, taps_recipe(width)), x.shape[-1], 1,
            0, 0, width,
        )  # fmt: skip
        candidate = gemm_candidate(problem, slots, group, target)
        return [replace(candidate, name="pointwise convolution as matmul")]
    if w.shape[1] == 1 and w.shape[0] == groups and groups > 1:
        return [_depthwise(group, slots, target)]
    return [_implicit(group, slots, target)]


def _with_two_dimensions(group: Group) -> Group:
    """A one-dimensional convolution as a two-dimensional one of height 1."""
    anchor = group.anchor
    assert anchor is not None
    x, w = anchor.inputs[:2]
    assert x is not None and w is not None
    if x.rank == 4:
        return group
    raise UnsupportedOperationError(
        f"conv (from {anchor.source or 'the graph'}): only two spatial dimensions have a kernel, "
        f"this one has {x.rank - 2}"
    )


def _with_bias_in_epilogue(group: Group) -> Group:
    """The bias as an addition after the anchor."""
    anchor = group.anchor
    assert anchor is not None
    if len(anchor.inputs) < 3 or anchor.inputs[2] is None:
        return group
    plain = Value(f"{anchor.output.name}.product", anchor.output.dtype, anchor.output.shape)
    inner = Node("conv", anchor.inputs[:2], [plain], anchor.attributes, anchor.source)
    add = Node("add", [plain, anchor.inputs[2]], [anchor.output], {}, anchor.source)
    nodes = [*group.prologue, inner, add, *group.epilogue]
    return Group(group.kind, nodes, group.inputs, group.outputs, inner, group.name)


def window_sizes(x: Value, out: Value) -> dict[str, Size]:
    """The image sizes that window kernels take."""
    return {"pixels": product(out.shape[:-1]), "height": x.shape[1], "width": x.shape[2], "out_height": out.shape[1],
            "out_width": out.shape[2]}  # fmt: skip


def window_constants(kernel: Sequence[Size], attributes: dict[str, Any]) -> dict[str, Any]:
    """The compile-time description of windows: kernel, strides, leading padding, dilation."""
    found: dict[str, Any] = {}
    for position, letter in enumerate("YX"):
        found[f"KERNEL_{letter}"] = kernel[position]
        found[f"STRIDE_{letter}"] = attributes["strides"][position]
        found[f"PAD_{letter}"] = attributes["padding"][position][0]
        found[f"DILATION_{letter}"] = attributes["dilation"][position]
    return found


def _implicit(group: Group, slots: Slots, target: Target) -> Candidate:
    """The implicit matrix product, one variant for each range of output pixels."""
    anchor = group.anchor
    assert anchor is not None
    x, w = anchor.inputs[:2]
    assert x is not None and w is not None
    machine = machine_of(target)
    groups = anchor.attributes["groups"]
    columns, channels = w.shape[0] // groups, w.shape[1]
    depth = channels * w.shape[2] * w.shape[3]
    width = target.microtile(x.dtype)[1]
    pixels = product(anchor.output.shape[:-1])
    calls: list[KernelCall] = []
    reasons: dict[str, Any] = {"epilogue": slots.function.__name__}
    for span in row_ranges(pixels):
        at_most = span.at_most
        blocks = choose_blocks(span.examples, columns, depth, groups, target, machine, width)
        condition = None if at_most is None else (pixels, at_most)
        calls.append(_implicit_call(group, slots, blocks, width, condition))
        reasons["pixels" if at_most is None else f"pixels <= {at_most}"] = str(blocks)
    flops = simplify(lift(pixels) * (2 * columns * groups * depth) + chain_operations(group.epilogue))
    cost = estimate(machine, total_bytes(group.inputs, group.outputs), flops, product(calls[-1].grid), x.dtype, 0.75)
    return Candidate("implicit matmul", (Stage(tuple(calls)),), cost, (), reasons)


def _implicit_call(
    group: Group, slots: Slots, blocks: Blocks, width: int, condition: tuple[Size, int] | None
) -> KernelCall:
    anchor = group.anchor
    assert anchor is not None
    x, w = anchor.inputs[:2]
    assert x is not None and w is not None
    attributes, groups = anchor.attributes, anchor.attributes["groups"]
    channels, columns = w.shape[1], w.shape[0] // groups
    assert isinstance(channels, int)
    sizes = {**window_sizes(x, anchor.output), "columns": columns}
    pixels = sizes["pixels"]
    constants: dict[str, Any] = {
        **window_constants(w.shape[2:], attributes), "CHANNELS": channels, "BLOCK_M": blocks.rows,
        "BLOCK_N": blocks.columns, "WIDTH": width, "MASK_M": not divides(blocks.rows, pixels),
        "MASK_N": columns % blocks.columns != 0,
        "MASK_PANEL": -(-columns // width) % (blocks.columns // width) != 0, "EPILOGUE": slots.function,
    }  # fmt: skip
    if channels <= FEW_CHANNELS and groups == 1 and attributes["dilation"][1] == 1:
        kernel = convolution_few_channels
        del constants["DILATION_X"]
    else:
        kernel = convolution
        constants |= {"GROUPS": groups, "BLOCK_C": _channel_block(channels),
                      "PADDED": any(low or high for low, high in attributes["padding"])}  # fmt: skip
    operands: dict[str, Operand] = {
        "x": x, "w": PackedConstant(w, taps_recipe(width, groups)), "out": slots.stored,
    }  # fmt: skip
    types: dict[str, str] = {}
    bind_sizes(sizes, operands, types, constants)
    bind_extra(slots.extra, operands, types)
    grid = (ceil_divide(pixels, blocks.rows), ceil_divide(columns, blocks.columns), groups)
    return KernelCall(kernel, operands, types, constants, grid, condition)


def _channel_block(channels: int) -> int:
    """The largest divisor of the channels that is not above `CHANNEL_BLOCK`."""
    return next(block for block in range(min(channels, CHANNEL_BLOCK), 0, -1) if channels % block == 0)


def _depthwise(group: Group, slots: Slots, target: Target) -> Candidate:
    anchor = group.anchor
    assert anchor is not None
    x, w = anchor.inputs[:2]
    assert x is not None and w is not None
    columns = w.shape[0]
    assert isinstance(columns, int)
    block = min(columns, CHANNEL_BLOCK)
    sizes = {**window_sizes(x, anchor.output), "columns": columns}
    rows = max(1, rows_per_program(sizes["pixels"], block) // 4)
    constants: dict[str, Any] = {**window_constants(w.shape[2:], anchor.attributes), "ROWS": rows, "BLOCK": block,
                                 "MASK": columns % block != 0, "EPILOGUE": slots.function}  # fmt: skip
    operands: dict[str, Operand] = {
        "x": x, "w": PackedConstant(w, order_recipe((2, 3, 1, 0))), "out": slots.stored,
    }  # fmt: skip
    types: dict[str, str] = {}
    bind_sizes(sizes, operands, types, constants)
    bind_extra(slots.extra, operands, types)
    grid = (ceil_divide(sizes["pixels"], rows), ceil_divide(columns, block), 1)
    call = KernelCall(depthwise_convolution, operands, types, constants, grid)
    flops = simplify(lift(product(anchor.output.shape)) * (2 * w.shape[2] * w.shape[3]))
    cost = estimate(machine_of(target), total_bytes(group.inputs, group.outputs), flops, product(grid), x.dtype, 0.2)
    return Candidate("depthwise", (Stage((call,)),), cost, (), {"block": f"{rows} pixels x {block} channels"})
