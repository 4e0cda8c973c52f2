"""Products and convolutions by another library's functions: PyTorch's, with cuBLAS and cuDNN behind them.

They are candidates where the user allows them, and are taken when they were timed and are faster: their estimate is
never the least.  A bias of columns is part of a product; everything else around it is computed by generated kernels.
"""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from importlib.metadata import PackageNotFoundError, version

from tilewright.graph.core import Graph, Node, Value
from tilewright.graph.fusion import Group
from tilewright.kernels.packing import order_recipe
from tilewright.symbolic import Size, lift, product, simplify
from tilewright.tactics.contraction import Problem, describe
from tilewright.tactics.convolution import checked_convolution, with_bias_in_epilogue
from tilewright.tactics.core import Candidate, ExternKernel, KernelCall, Operand, PackedConstant, Stage, TiledOperand
from tilewright.tactics.elementwise import total_bytes
from tilewright.tactics.split import split_group
from tilewright.targets.base import Target
from tilewright.tune.cost import Cost, expected
from tilewright.tune.gpu import LAUNCH, gpu_of

_BEHIND = 1.02  # times the least estimate of our own kernels


def library_candidates(group: Group, graph: Graph, target: Target, own_seconds: float) -> list[Candidate]:
    """The library's ways to compute a contraction group, none where it has no function for it.

    `own_seconds` is the least estimate of our own kernels.
    """
    assert group.anchor is not None
    if group.anchor.op != "matmul":
        group = with_bias_in_epilogue(group)
    try:
        try:
            found = _whole(group, graph, target)
        except NotImplementedError as reason:
            found = split_group(group, graph, target, _whole, str(reason))
    except NotImplementedError:
        return []
    return [
        replace(each, name="PyTorch", cost=replace(each.cost, seconds=max(each.cost.seconds, _BEHIND * own_seconds)))
        for each in found
    ]


def _whole(group: Group, graph: Graph, target: Target) -> list[Candidate]:
    """A product, with a bias behind it, or a convolution; raises `NotImplementedError` for all else."""
    anchor = group.anchor
    assert anchor is not None
    if not anchor.output.dtype.is_float or anchor.output.dtype.bits not in (16, 32):
        raise NotImplementedError(f"the library multiplies no {anchor.output.dtype}")
    call = _product(group, graph) if anchor.op == "matmul" else _convolution(group, graph)
    flops = simplify(lift(product(anchor.output.shape)) * _depth(anchor) * 2)
    gpu = gpu_of(target)
    rate = gpu.processors * gpu.rate(anchor.output.dtype) * 1e9
    moved = total_bytes(group.inputs, group.outputs)
    seconds = LAUNCH + max(expected(moved) / gpu.memory, expected(flops) / rate)
    reasons = {"function": call.kernel.__name__, "version": _version()}
    return [Candidate("PyTorch", (Stage((call,)),), Cost(moved, flops, seconds), (), reasons)]


@cache
def _version() -> str:
    """The version of PyTorch that is installed: times are those of one version."""
    try:
        return version("torch")
    except PackageNotFoundError:
        return "none"


def _depth(anchor: Node) -> Size:
    a, w = anchor.inputs[:2]
    assert a is not None and w is not None
    return a.shape[-1] if anchor.op == "matmul" else product(w.shape[1:])


def _call(function: str, operands: dict[str, Operand], **options: object) -> KernelCall:
    return KernelCall(ExternKernel(function), operands, {}, dict(options), (1, 1, 1))


# -- Products ---------------------------------------------------------------------------------------------------------


def _product(group: Group, graph: Graph) -> KernelCall:
    anchor = group.anchor
    assert anchor is not None
    problem = describe(anchor, graph, 0)
    bias = _bias(group)
    out = group.outputs[-1]
    operands: dict[str, Operand] = {"a": _left(problem), "b": _right(problem)}
    if bias is not None:
        operands["bias"] = TiledOperand(bias, (problem.columns,), (1,), ())
    operands["out"] = _dense(out, problem)
    return _call("mm" if bias is None else "addmm", operands)


def _bias(group: Group) -> Value | None:
    """The bias of columns that is all there is behind a product; raises `NotImplementedError` where there is more."""
    anchor = group.anchor
    assert anchor is not None
    if group.nodes == [anchor] and group.outputs == [anchor.output]:
        return None
    if len(group.nodes) == 2 and group.nodes[0] is anchor and len(group.outputs) == 1:
        node = group.nodes[1]
        others = [value for value in node.inputs if value is not anchor.output]
        bias = others[0] if node.op == "add" and len(others) == 1 else None
        if bias is not None and bias.shape == anchor.output.shape[-1:]:
            if bias.dtype == node.output.dtype == anchor.output.dtype:
                return bias
    raise NotImplementedError("the library's product has no such neighbours")


def _left(problem: Problem) -> TiledOperand:
    shape, strides = (problem.rows, problem.depth), (problem.a_row, problem.a_depth)
    if problem.batches == 1:
        return TiledOperand(problem.a, shape, strides, ())
    return TiledOperand(problem.a, (problem.batches, *shape), (_batch(problem.a_batch), *strides), ())


def _right(problem: Problem) -> TiledOperand:
    b = problem.b
    assert isinstance(b, (Value, PackedConstant))
    shape, strides = (problem.depth, problem.columns), (problem.b_depth, problem.b_column)
    if problem.batches == 1:
        return TiledOperand(b, shape, strides, ())
    return TiledOperand(b, (problem.batches, *shape), (_batch(problem.b_batch), *strides), ())


def _batch(strides: tuple[Size, Size]) -> Size:
    """The one stride from batch to batch; raises `NotImplementedError` for two."""
    if strides[0] != 0:
        raise NotImplementedError("the library's products have one batch dimension")
    return strides[1]


def _dense(out: Value, problem: Problem) -> TiledOperand:
    rows, columns = problem.rows, problem.columns
    if problem.batches == 1:
        return TiledOperand(out, (rows, columns), (columns, 1), ())
    strides = (simplify(lift(rows) * columns), columns, 1)
    return TiledOperand(out, (problem.batches, rows, columns), strides, ())


# -- Convolutions -----------------------------------------------------------------------------------------------------


def _convolution(group: Group, graph: Graph) -> KernelCall:
    anchor, x, w = checked_convolution(group)
    if group.nodes != [anchor] or x.rank != 4 or w not in graph.constants or len(anchor.inputs) > 2:
        raise NotImplementedError("the library's convolution has no neighbours")
    attributes = anchor.attributes
    padding = [low for low, _ in attributes["padding"]]
    if any(low != high for low, high in attributes["padding"]):
        raise NotImplementedError("the library pads both sides alike")
    packed = PackedConstant(w, order_recipe((0, 2, 3, 1)))
    operands: dict[str, Operand] = {
        "x": _channels_last(x, x.shape),
        "w": _channels_last(packed, tuple(w.shape[axis] for axis in (0, 2, 3, 1))),
        "out": _channels_last(anchor.output, anchor.output.shape),
    }
    return _call(
        "convolution", operands, padding=padding, strides=list(attributes["strides"]),
        dilation=list(attributes["dilation"]), groups=attributes["groups"],
    )  # fmt: skip


def _channels_last(value: Value | PackedConstant, shape: tuple[Size, ...]) -> TiledOperand:
    """A tensor [n, h, w, c] as the library sees it: [n, c, h, w] with strides."""
    n, h, w, c = shape
    row = simplify(lift(w) * c)
    return TiledOperand(value, (n, c, h, w), (simplify(lift(h) * row), 1, row, c), ())
