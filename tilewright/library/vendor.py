"""Products and convolutions by other libraries' functions: cuBLASLt and cuDNN through NVIDIA's Python bindings, and
PyTorch's, where these packages are installed.

They are candidates where the user allows them, and are taken when they were timed and are faster: their estimate is
never the least.  A bias of columns is part of a product, with the bindings relu too, and one of channels of cuDNN's
convolutions; everything else around them is computed by generated kernels.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import cache, partial
from importlib.metadata import PackageNotFoundError, version

from tilewright.errors import MissingDependencyError
from tilewright.graph.core import Graph, Node, Value
from tilewright.graph.fusion import Group
from tilewright.library.candidate import (
    Candidate,
    ExternKernel,
    KernelCall,
    Operand,
    PackedConstant,
    Stage,
    TiledOperand,
)
from tilewright.library.convolution.operands import with_bias_in_epilogue
from tilewright.library.convolution.problem import checked_convolution
from tilewright.library.cost import Cost, expected
from tilewright.library.generated.elementwise import total_bytes
from tilewright.library.matmul.problem import GraphProduct, describe, norm_in_front
from tilewright.library.packing import order_recipe
from tilewright.library.split import split_group
from tilewright.symbolic import Size, lift, product, simplify
from tilewright.targets.base import Target

_HANDICAP = 1.02  # times the least estimate of our own kernels


@dataclass(frozen=True)
class Library:
    """A package, the version that is installed, and its functions: each makes the call for a group with that anchor, or
    raises `NotImplementedError`."""

    name: str
    package: str
    version: str
    calls: Mapping[str, Callable[[Group, Graph], KernelCall]]


@cache
def installed() -> tuple[Library, ...]:
    """The libraries whose packages are there: times are those of one version."""
    found = []
    for name, package, calls in (
        ("cuBLASLt", "nvmath-python", {"matmul": _cublaslt_product}),
        ("cuDNN", "nvidia-cudnn-frontend", {"conv": _cudnn_convolution}),
        ("PyTorch", "torch", {"matmul": _product, "conv": _convolution}),
    ):
        try:
            found.append(Library(name, package, version(package), calls))
        except PackageNotFoundError:
            continue
    return tuple(found)


def library_candidates(group: Group, graph: Graph, target: Target, own_seconds: float) -> list[Candidate]:
    """The libraries' ways to compute a contraction group, none where they have no function for it.

    `own_seconds` is the least estimate of our own kernels.
    """
    assert group.anchor is not None
    if not installed():
        raise MissingDependencyError(
            "calls of other libraries are allowed, and there are none here: install nvmath-python, "
            "nvidia-cudnn-frontend or PyTorch, or build without --vendor allow"
        )
    if norm_in_front(group) is not None:
        return []  # of few rows, which our kernel normalises
    if group.anchor.op != "matmul":
        group = with_bias_in_epilogue(group)
    assert group.anchor is not None
    found = []
    for library in installed():
        if group.anchor.op not in library.calls:
            continue
        whole = partial(_whole, library)
        try:
            try:
                made = whole(group, graph, target)
            except NotImplementedError as reason:
                made = split_group(group, graph, target, whole, str(reason))
        except NotImplementedError:
            continue
        found += [
            replace(
                each,
                name=library.name,
                cost=replace(each.cost, seconds=max(each.cost.seconds, _HANDICAP * own_seconds)),
            )
            for each in made
        ]
    return found


def _whole(library: Library, group: Group, graph: Graph, target: Target) -> list[Candidate]:
    """A product or a convolution, with as much behind it as the library computes; raises `NotImplementedError` for all
    else."""
    anchor = group.anchor
    assert anchor is not None
    if not anchor.output.dtype.is_float or anchor.output.dtype.bits not in (16, 32):
        raise NotImplementedError(f"the library multiplies no {anchor.output.dtype}")
    call = library.calls[anchor.op](group, graph)
    flops = simplify(lift(product(anchor.output.shape)) * _depth(anchor) * 2)
    machine = target.machine()
    peak = machine.processors * machine.dot_rate(anchor.output.dtype, target.tf32) * machine.clock
    rate = peak * 2 / 3  # which libraries reach
    moved = total_bytes(group.inputs, group.outputs)
    seconds = machine.launches.kernel + max(expected(moved) / machine.memory, expected(flops) / rate)
    reasons = {"function": call.kernel.__name__, "version": library.version}
    return [Candidate(library.name, (Stage((call,)),), Cost(moved, flops, seconds), (), reasons)]


def _depth(anchor: Node) -> Size:
    a, w = anchor.inputs[:2]
    assert a is not None and w is not None
    if anchor.op != "matmul":
        return product(w.shape[1:])
    return a.shape[-2 if anchor.attributes["transpose_a"] else -1]


def _call(function: str, operands: dict[str, Operand], **options: object) -> KernelCall:
    return KernelCall(ExternKernel(function), operands, {}, dict(options), (1, 1, 1))


# -- Products ---------------------------------------------------------------------------------------------------------


def _product(group: Group, graph: Graph) -> KernelCall:
    operands, relu = _operands(group, graph)
    if relu:
        raise NotImplementedError("PyTorch's products have no relu")
    return _call("addmm" if "bias" in operands else "mm", operands)


def _cublaslt_product(group: Group, graph: Graph) -> KernelCall:
    operands, relu = _operands(group, graph)
    return _call("cublaslt.product", operands, bias="bias" in operands, relu=relu)


def _operands(group: Group, graph: Graph) -> tuple[dict[str, Operand], bool]:
    """A product's operands, a bias of columns among them if there is one, and whether relu comes behind it."""
    anchor = group.anchor
    assert anchor is not None
    problem = describe(anchor, graph, 0)
    bias, relu = _bias_and_relu(group, anchor)
    operands: dict[str, Operand] = {"a": _left(problem), "b": _right(problem)}
    if bias is not None:
        operands["bias"] = TiledOperand(bias, (problem.columns,), (1,), ())
    operands["out"] = _dense(group.outputs[-1], problem)
    return operands, relu


def _bias_and_relu(group: Group, anchor: Node) -> tuple[Value | None, bool]:
    """A bias of the last axis, and whether relu comes behind it, where that is all there is; raises
    `NotImplementedError` where there is more."""
    value, bias, relu = anchor.output, None, False
    for node in group.nodes[1:] if group.nodes[0] is anchor else ():
        others = [item for item in node.inputs if item is not value]
        if node.op == "add" and bias is None and not relu and len(others) == 1 and others[0] is not None:
            bias = others[0]
            if bias.shape != value.shape[-1:] or bias.dtype != value.dtype:
                break
        elif node.op == "relu" and not relu:
            relu = True
        else:
            break
        value = node.output
    if group.outputs != [value] or len(group.nodes) != 1 + (bias is not None) + relu:
        raise NotImplementedError("the library has no such epilogue")
    return bias, relu


def _left(problem: GraphProduct) -> TiledOperand:
    shape, strides = (problem.rows, problem.depth), (problem.a_row, problem.a_depth)
    if problem.batches == 1:
        return TiledOperand(problem.a, shape, strides, ())
    return TiledOperand(problem.a, (problem.batches, *shape), (_batch(problem.a_batch), *strides), ())


def _right(problem: GraphProduct) -> TiledOperand:
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


def _dense(out: Value, problem: GraphProduct) -> TiledOperand:
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
    if attributes["exact"]:
        raise NotImplementedError("the library chooses how it adds")
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


def _alone(anchor: Node) -> Group:
    inputs = [value for value in anchor.inputs if value is not None]
    return Group("contraction", [anchor], inputs, [anchor.output], anchor)


def _cudnn_convolution(group: Group, graph: Graph) -> KernelCall:
    anchor, x, w = checked_convolution(group)
    bias, relu = _bias_and_relu(group, anchor)
    if anchor.output.dtype.bits != 16:
        raise NotImplementedError("cuDNN rounds float32 to tf32")
    call = _convolution(_alone(anchor), graph)
    *given, (_, out) = call.operands.items()
    operands = dict(given)
    if bias is not None:
        channels = bias.shape[0]
        operands["bias"] = TiledOperand(bias, (1, channels, 1, 1), (channels, 1, channels, channels), ())
    assert isinstance(out, TiledOperand)
    operands["out"] = replace(out, value=group.outputs[-1])
    return _call("cudnn.convolution", operands, **call.constants, bias=bias is not None, relu=relu)


def _channels_last(value: Value | PackedConstant, shape: tuple[Size, ...]) -> TiledOperand:
    """A tensor [n, h, w, c] as the library sees it: [n, c, h, w] with strides."""
    n, h, w, c = shape
    row = simplify(lift(w) * c)
    return TiledOperand(value, (n, c, h, w), (simplify(lift(h) * row), 1, row, c), ())
