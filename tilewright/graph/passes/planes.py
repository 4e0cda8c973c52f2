"""Channels-first images on GPUs: convolutions that stay channels-first, and pools of images with one channel each.

Where a GPU multiplies and adds on ordinary units, neighbouring pixels suit its threads nearly as well as neighbouring
channels do, and nothing has to be permuted: such convolutions get the layout "planes", which `to_channels_last` leaves
alone.  In networks of many convolutions only the images at the ends would be permuted, and channels-last convolutions
are faster: their reads are 16 bytes wide whatever the window.  Those of groups are not: with any of them, all stay.
Groups of few channels are nothing for tensor cores either: where a graph has no other convolutions, they stay in 16
bits too, but for depthwise ones with windows so large that threads share more of them than a permute costs.
Convolutions of single pixels are products of images as they lie, on tensor cores too: they stay where all of their
region are such, or of groups of few channels (`image_regions`).

`to_channels_last` puts a permute before a pool, which cancels where a convolution comes before that.  Where it has
stayed, it moves more memory than the pool itself.  Each channel's plane is then an image of its own, whose elements lie
side by side as a GPU's threads read them, and what is permuted is the result, if at all; CPUs vectorise over channels
and keep the permute.
"""

from __future__ import annotations

from collections.abc import Set
from functools import partial

from tilewright.dtypes import bfloat16, float16, float32
from tilewright.graph.core import Graph, Node, Value
from tilewright.graph.kernel_facts import KernelFacts
from tilewright.graph.ops import kind_of
from tilewright.graph.passes.image_regions import products_of_planes
from tilewright.graph.rewrite import GraphRewriter, apply_rules
from tilewright.symbolic import fits_32_bits, lift, product, simplify

_POOLS = ("max_pool", "average_pool")


def convolutions_of_planes(graph: Graph, kernels: KernelFacts) -> Graph:
    """The graph with convolutions that stay channels-first; the same graph when it has none."""
    if all(_is_of_few_channels(node, kernels) for node in graph.nodes if node.op == "conv"):
        return apply_rules(graph, {"conv": [_planes]})
    products = products_of_planes(graph, kernels, partial(_is_of_planes, kernels=kernels))
    if products:
        graph = apply_rules(graph, {"conv": [partial(_product, products)]})
    if not kernels.exact:  # tensor cores multiply float32
        return graph
    images = [node for node in graph.nodes if node.op == "conv" and node.output.rank == 4]
    network = len(images) >= kernels.channels_last_convolutions and all(
        node.attributes["groups"] == 1 for node in images
    )
    return apply_rules(graph, {"conv": [partial(_convolution, network=network)]})


def _convolution(node: Node, rewriter: GraphRewriter, network: bool) -> Value | None:
    x, w = node.inputs[:2]
    assert x is not None and w is not None
    return None if x.dtype != float32 or network and x.rank == 4 else _planes(node, rewriter)


def _product(products: Set[Value], node: Node, rewriter: GraphRewriter) -> Value | None:
    return _planes(node, rewriter) if node.output in products else None


def _is_of_few_channels(node: Node, kernels: KernelFacts) -> bool:
    """Whether each of a convolution's groups has few output channels, for which it has kernels of any floats."""
    x, w = node.inputs[:2]
    assert x is not None and w is not None
    groups, taps = node.attributes["groups"], product(w.shape[2:])
    if groups == 1 or x.dtype not in (float32, float16, bfloat16) or not isinstance(taps, int):
        return False
    small = kernels.least_shared_taps < taps <= kernels.shared_taps
    shares = x.dtype != float32 and x.rank == 4 and w.shape[:2] == (groups, 1) and small
    line = w.shape[-1]
    short = isinstance(line, int) and line <= kernels.plane_taps
    return not shares and short and isinstance(w.shape[0], int) and w.shape[0] <= groups * kernels.plane_columns


def _is_of_planes(node: Node, kernels: KernelFacts) -> bool:
    return _has_planes(node) and _is_of_few_channels(node, kernels)


def _has_planes(node: Node) -> bool:
    """Whether a convolution is one of channels-first images that kernels of planes take."""
    x, w = node.inputs[:2]
    assert x is not None and w is not None
    if node.attributes["layout"] != "NCHW" or x.rank > 5:
        return False
    if not all(isinstance(extent, int) for extent in w.shape) or all(extent == 1 for extent in node.output.shape[2:]):
        return False
    return all(fits_32_bits(product(value.shape[1:])) for value in (x, node.output))


def _planes(node: Node, rewriter: GraphRewriter) -> Value | None:
    if not _has_planes(node):
        return None
    rewriter.remark(f"{node.op} %{node.output.name} stays channels-first")
    return rewriter.op("conv", node.inputs, **{**node.attributes, "layout": "planes"})


def pools_of_volumes(graph: Graph, kernels: KernelFacts) -> Graph:
    """The graph with pools of volumes that one kernel does; the same graph when it has none.

    Others become one over the depth and one over the images (`decompose`), which reads less where windows overlap much.
    In graphs with convolutions, whose images are channels-last, all do.
    """
    if any(node.op == "conv" for node in graph.nodes):
        return graph
    return apply_rules(graph, {op: [partial(_of_volumes, kernels=kernels)] for op in _POOLS})


def _of_volumes(node: Node, rewriter: GraphRewriter, kernels: KernelFacts) -> Value | None:
    """A pool of [N, C, depth, height, width], each channel as a volume with one channel."""
    (x,) = node.inputs
    if x is None or x.rank != 5 or node.attributes["layout"] != "NCHW" or _is_separate(node, kernels):
        return None
    if not fits_32_bits(product(x.shape[2:])):
        return None
    planes = simplify(lift(x.shape[0]) * x.shape[1])
    volumes = rewriter.op("reshape", [x], shape=(planes, *x.shape[2:], 1))
    result = rewriter.op(node.op, [volumes], **{**node.attributes, "layout": "NHWC"})
    rewriter.remark(f"{node.op} %{node.output.name} reads volumes channel by channel")
    return rewriter.op("reshape", [result], shape=node.output.shape)


def _is_separate(node: Node, kernels: KernelFacts) -> bool:
    """Whether a pool of volumes is better done along the depth first, by what both read for an element of a slice; or
    as reductions, whose threads share windows of more than `pooled_taps`."""
    deep, *across = node.attributes["kernel"]
    taps, step = product(across), product(node.attributes["strides"][1:])
    alone = deep == 1 or taps == 1  # it has one of both steps only
    return alone or deep * taps > min(kernels.pooled_taps, kernels.separate_reads * (step * deep + taps))


def pools_of_planes(graph: Graph) -> Graph:
    """The graph with such pools; the same graph when it has none."""
    if not any(node.op in _POOLS for node in graph.nodes):
        return graph
    return apply_rules(graph, {**{op: [_of_permuted] for op in _POOLS}, "permute": [_permuted_back]})


def _of_permuted(node: Node, rewriter: GraphRewriter) -> Value | None:
    """A pool of an image that was channels-first, or of a line, which is an image of one row."""
    image = node.inputs[0]
    assert image is not None
    line = rewriter.producer(image, "reshape")
    permuted = image if line is None or rewriter.uses(image) > 1 else line.inputs[0]
    before = rewriter.producer(permuted, "permute")
    if before is None or permuted is None or rewriter.uses(permuted) > 1:
        return None
    x, rank = before.inputs[0], permuted.rank
    if x is None or rank not in (3, 4) or before.attributes["order"] != (0, *range(2, rank), 1):
        return None
    if image.shape != (x.shape[0], *(1,) * (4 - rank), *x.shape[2:], x.shape[1]):
        return None
    planes = (simplify(lift(x.shape[0]) * x.shape[1]), *image.shape[1:3], 1)
    result = rewriter.op(node.op, [rewriter.op("reshape", [x], shape=planes)], **node.attributes)
    first = rewriter.op("reshape", [result], shape=(*x.shape[:2], *result.shape[1:3]))
    rewriter.remark(f"{node.op} %{node.output.name} reads channels-first images plane by plane")
    return rewriter.op("permute", [first], order=(0, 2, 3, 1))


def _permuted_back(node: Node, rewriter: GraphRewriter) -> Value | None:
    """What is permuted to channels-last, goes through elementwise ops alone and is permuted back stays as it is; the
    ops come before the reshape of planes, in the pool's own shape, so that it can take them."""
    value, chain = node.inputs[0], list[Node]()
    if value is None or value.rank not in (3, 4):
        return None
    if node.attributes["order"] != (0, value.rank - 1, *range(1, value.rank - 1)):
        return None
    while value is not None and rewriter.uses(value) == 1:
        producer = rewriter.producer(value)
        if producer is not None and producer.op == "permute" and producer.attributes["order"] == (0, 2, 3, 1):
            reshape = rewriter.producer(producer.inputs[0], "reshape")
            result = reshape.inputs[0] if reshape is not None else producer.inputs[0]
            for each in reversed(chain):
                result = rewriter.op(each.op, [item if item in _numbers(each) else result for item in each.inputs],
                                     **each.attributes)  # fmt: skip
            return rewriter.op("reshape", [result], shape=node.output.shape)
        if producer is not None and producer.op == "reshape" and _is_line(value, producer.inputs[0]):
            value = producer.inputs[0]
            continue
        if producer is None or kind_of(producer.op) != "elementwise":
            return None
        chain.append(producer)
        rest = [item for item in producer.inputs if item not in _numbers(producer)]
        value = rest[0] if len(set(rest)) == 1 else None
    return None


def _numbers(node: Node) -> list[Value | None]:
    """The inputs of an op that are one number each."""
    return [item for item in node.inputs if item is not None and item.rank == 0]


def _is_line(value: Value, image: Value | None) -> bool:
    """Whether a value is an image of one row without its height."""
    return image is not None and image.rank == 4 and image.shape == (value.shape[0], 1, *value.shape[1:])
