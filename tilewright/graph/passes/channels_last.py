"""Convolutions and pools in channels-last layout, over whole regions of the graph.

Every conv and pool becomes `permute -> NHWC op -> permute back`.  The permutes back to channels-first
then sink through elementwise ops, pools, reductions, concats and pads until they meet the next
`permute` to channels-last and cancel (in `canonicalize`).  Ops along one dimension become ops on
images of one row, so that kernels know two spatial dimensions only.  What is left are permutes at the region's
borders.  Kernels prefer this layout: the channels of a pixel are one dense row, so a convolution is a
sum of matrix products.

Statistics of channels (batch, group and instance norms) are of columns then: where the target has kernels for
neighbouring rows together, each pixel's channels are read side by side, and those of a group meet as few numbers.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from tilewright.dtypes import float32
from tilewright.graph.core import Graph, Node, Value
from tilewright.graph.kernel_facts import NO_KERNELS, KernelFacts
from tilewright.graph.ops import OPS
from tilewright.graph.rewrite import GraphRewriter, Rules, apply_rules
from tilewright.symbolic import Size, floor_divide, lift, product, simplify

_SECTOR = 32  # bytes that memory is read in
_WINDOWED = ("conv", "max_pool", "average_pool")


def to_channels_last(graph: Graph, kernels: KernelFacts = NO_KERNELS) -> Graph:
    """The graph with NHWC convolutions and pools; the same graph when it has none."""
    if not any(node.op in _WINDOWED for node in graph.nodes):
        return graph
    return apply_rules(graph, _rules(kernels))


def _last(rank: int) -> tuple[int, ...]:
    """The order that makes channels-first channels-last: 0 2 3 1."""
    return (0, *range(2, rank), 1)


def _first(rank: int) -> tuple[int, ...]:
    """The order that makes channels-last channels-first: 0 3 1 2."""
    return (0, rank - 1, *range(1, rank - 1))


def _windowed(node: Node, rewriter: GraphRewriter) -> Value | None:
    image = node.inputs[0]
    if node.attributes["layout"] != "NCHW" or image is None:
        return None
    rewriter.remark(f"{node.op} %{node.output.name} is channels-last")
    inner = rewriter.op("permute", [image], order=_last(image.rank))
    if image.rank == 3:
        return _as_image(node, inner, rewriter)
    result = rewriter.op(node.op, [inner, *node.inputs[1:]], **{**node.attributes, "layout": "NHWC"})
    return rewriter.op("permute", [result], order=_first(image.rank))


def _as_image(node: Node, line: Value, rewriter: GraphRewriter) -> Value:
    """A convolution or pool along one dimension [N, L, C], as one over an image of one row."""
    attributes = {**node.attributes, "layout": "NHWC"}
    for name, neutral in (("strides", 1), ("dilation", 1), ("kernel", 1), ("padding", (0, 0))):
        if name in attributes:
            attributes[name] = (neutral, *attributes[name])
    rest = list(node.inputs[1:])
    if rest and rest[0] is not None:
        weight = rest[0]
        rest[0] = rewriter.op("reshape", [weight], shape=(*weight.shape[:2], 1, weight.shape[2]))
    image = rewriter.op("reshape", [line], shape=(line.shape[0], 1, *line.shape[1:]))
    result = rewriter.op(node.op, [image, *rest], **attributes)
    result = rewriter.op("reshape", [result], shape=(result.shape[0], *result.shape[2:]))
    return rewriter.op("permute", [result], order=_first(3))


def _source(value: Value | None, rewriter: GraphRewriter) -> Value | None:
    """The channels-last value of which `value` is the channels-first permutation."""
    node = rewriter.producer(value, "permute")
    if node is None or value is None or value.rank < 3 or node.attributes["order"] != _first(value.rank):
        return None
    return node.inputs[0]


def _permute_cancels(node: Node, rewriter: GraphRewriter) -> Value | None:
    """Back to channels-last: the value itself."""
    if node.inputs[0] is None or node.attributes["order"] != _last(node.inputs[0].rank):
        return None
    return _source(node.inputs[0], rewriter)


def _elementwise(node: Node, rewriter: GraphRewriter) -> Value | None:
    """An elementwise op on channels-first permutations, numbers and per-channel constants."""
    rank = node.output.rank  # an operand of lower rank has its channels elsewhere
    sources = [_source(item, rewriter) if item is not None and item.rank == rank else None for item in node.inputs]
    if all(source is None for source in sources):
        return None
    inputs: list[Value | None] = []
    for item, source in zip(node.inputs, sources, strict=True):
        assert item is not None
        moved = source if source is not None else _moved(item, node.output.rank, rewriter)
        if moved is None:
            return None
        inputs.append(moved)
    result = rewriter.op(node.op, inputs, **node.attributes)
    return rewriter.op("permute", [result], order=_first(node.output.rank))


def _moved(value: Value, rank: int, rewriter: GraphRewriter) -> Value | None:
    """A number as it is; operands that only vary along channels as [C]; others permuted.

    Permuting an operand costs what permuting the result would, and keeps the region together.  Not in
    rank 3, where both orders are one and the same permutation: it would move to and fro for ever.
    """
    if value.rank == 0:
        return value
    if value.rank > rank:
        return None
    shape: tuple[Size, ...] = (1,) * (rank - value.rank) + value.shape
    if all(extent == 1 for axis, extent in enumerate(shape) if axis != 1):
        return rewriter.op("reshape", [value], shape=(shape[1],))
    if rank == 3:
        return None
    full = value if value.rank == rank else rewriter.op("reshape", [value], shape=shape)
    return rewriter.op("permute", [full], order=_last(rank))


def _reduction(node: Node, rewriter: GraphRewriter) -> Value | None:
    """A reduction over spatial dimensions (and channels)."""
    source = _source(node.inputs[0], rewriter)
    if source is None:
        return None
    order = _first(source.rank)
    axes = tuple(sorted(order[axis] for axis in node.attributes["axes"]))
    result = rewriter.op(node.op, [source], axes=axes, keepdims=node.attributes["keepdims"])
    if node.attributes["keepdims"]:
        return rewriter.op("permute", [result], order=order)
    left = [axis for axis in order if axis not in axes]
    ranks = [sorted(left).index(axis) for axis in left]
    return rewriter.op("permute", [result], order=tuple(ranks))


def _concat(node: Node, rewriter: GraphRewriter) -> Value | None:
    sources = [_source(item, rewriter) for item in node.inputs]
    if any(source is None for source in sources):
        return None
    order = _first(node.output.rank)
    result = rewriter.op("concat", sources, axis=order[node.attributes["axis"]])
    return rewriter.op("permute", [result], order=order)


def _pad(node: Node, rewriter: GraphRewriter) -> Value | None:
    source = _source(node.inputs[0], rewriter)
    if source is None:
        return None
    order = _first(source.rank)
    pads = [(0, 0)] * source.rank
    for axis, pair in enumerate(node.attributes["pads"]):
        pads[order[axis]] = pair
    result = rewriter.op("pad", [source], pads=tuple(pads), value=node.attributes["value"])
    return rewriter.op("permute", [result], order=order)


def _joined_pixels(node: Node, rewriter: GraphRewriter) -> Value | None:
    """An image whose spatial dimensions are seen as one, as statistics of channels see it, or as several again."""
    return _several_pixels(node, rewriter) if node.output.rank > 3 else _one_line(node, rewriter)


def _several_pixels(node: Node, rewriter: GraphRewriter) -> Value | None:
    line, shape = node.inputs[0], node.output.shape
    source = _source(line, rewriter) if line is not None and line.rank == 3 else None
    if line is None or source is None or shape[:2] != line.shape[:2]:
        return None
    image = rewriter.op("reshape", [source], shape=(shape[0], *shape[2:], shape[1]))
    return rewriter.op("permute", [image], order=_first(len(shape)))


def _one_line(node: Node, rewriter: GraphRewriter) -> Value | None:
    image = node.inputs[0]
    source = _source(image, rewriter)
    if image is None or source is None or image.rank < 4 or node.output.rank != 3:
        return None
    spatial = product(image.shape[2:])
    if node.output.shape[:2] != image.shape[:2] or simplify(node.output.shape[2]) != simplify(spatial):
        return None
    joined = rewriter.op("reshape", [source], shape=(image.shape[0], spatial, image.shape[1]))
    return rewriter.op("permute", [joined], order=_first(3))


def _grouped_rows(node: Node, rewriter: GraphRewriter, kernels: KernelFacts) -> Value | None:
    """A norm of groups of channels, whose rows are [N, groups, channels * spatial].

    Rows that a kernel has as a whole become [N, groups, spatial, channels]: the order inside of a row does not matter
    to the norm, and neighbours in memory stay neighbours.  Of others, and where few channels of a pixel would be read
    alone, the moments are those of channels first (`_normalized_groups`).
    """
    norm = rewriter.producer(node.inputs[0], "layer_norm")
    rows = rewriter.producer(norm.inputs[0], "reshape") if norm is not None else None
    image = node.output
    source = _source(rows.inputs[0], rewriter) if rows is not None else None
    if norm is None or rows is None or rows.inputs[0] is None or source is None or rows.output.rank != 3:
        return None
    if len([item for item in norm.inputs if item is not None]) > 1 or norm.attributes["axis"] != 2:
        return None
    groups, channels = rows.output.shape[1], image.shape[1]
    if image.shape != rows.inputs[0].shape or not isinstance(groups, int) or not isinstance(channels, int):
        return None
    batch, spatial = image.shape[0], product(image.shape[2:])
    width, epsilon = channels // groups, norm.attributes["epsilon"]
    row = simplify(lift(spatial) * width)
    is_whole = isinstance(row, int) and row <= kernels.row_elements and width * source.dtype.itemsize >= _SECTOR
    if kernels.rows_side_by_side and not is_whole:
        result = _normalized_groups(source, groups, epsilon, rewriter)
    else:
        split = rewriter.op("reshape", [source], shape=(batch, spatial, groups, width))
        moved = rewriter.op("permute", [split], order=(0, 2, 1, 3))
        result = rewriter.op("layer_norm", [moved], axis=2, epsilon=epsilon)
        result = rewriter.op("reshape", [rewriter.op("permute", [result], order=(0, 2, 1, 3))], shape=source.shape)
    return rewriter.op("permute", [result], order=_first(image.rank))


def _channel_rows(node: Node, rewriter: GraphRewriter) -> Value | None:
    """A norm of the pixels of each channel, [N, channels, spatial], where channels are last in memory."""
    rows = node.output
    source = _source(node.inputs[0], rewriter) if rows.rank == 3 and node.attributes["axis"] == 2 else None
    if source is None or len([item for item in node.inputs if item is not None]) > 1:
        return None
    result = _normalized_groups(source, source.shape[2], node.attributes["epsilon"], rewriter)
    return rewriter.op("permute", [result], order=_first(3))


def _normalized_groups(image: Value, groups: Size, epsilon: float, rewriter: GraphRewriter) -> Value:
    """The norm of each group of channels of a channels-last image, by the moments of its channels.

    Pixels are read as they lie, once for the moments and once for the result; the variance of a group is the mean of
    its channels' variances and the squared deviations of their means.
    """
    batch, channels = image.shape[0], image.shape[-1]
    grouped = (batch, groups, floor_divide(channels, groups))

    def mean(value: Value, axis: int) -> Value:
        return rewriter.op("reduce_mean", [value], axes=(axis,), keepdims=True)

    def square(value: Value) -> Value:
        return rewriter.op("multiply", [value, value])

    def of_channels(value: Value) -> Value:
        shape = (batch, *[1] * (image.rank - 2), channels)
        return rewriter.op("reshape", [rewriter.op("broadcast_to", [value], shape=grouped)], shape=shape)

    wide = rewriter.cast(image, float32 if image.dtype.bits < 32 else image.dtype)
    pixels = rewriter.op("reshape", [wide], shape=(batch, product(image.shape[1:-1]), channels))
    means = mean(pixels, 1)
    variances = mean(square(rewriter.op("subtract", [pixels, means])), 1)
    centre, variance = (rewriter.op("reshape", [item], shape=grouped) for item in (means, variances))
    if grouped[2] != 1:
        means, variances = centre, variance
        centre = mean(means, 2)
        variance = mean(rewriter.op("add", [variances, square(rewriter.op("subtract", [means, centre]))]), 2)
    scale = rewriter.op("rsqrt", [rewriter.op("add", [variance, rewriter.number(epsilon, wide.dtype)])])
    centred = rewriter.op("subtract", [wide, of_channels(centre)])
    return rewriter.cast(rewriter.op("multiply", [centred, of_channels(scale)]), image.dtype)


def _shuffled(node: Node, rewriter: GraphRewriter) -> Value | None:
    """Channels that become pixels, or pixels channels (reshape, permute, reshape): the same on channels-last images."""
    moved = rewriter.producer(node.inputs[0], "permute")
    split = rewriter.producer(moved.inputs[0], "reshape") if moved is not None else None
    image = split.inputs[0] if split is not None else None
    source = _source(image, rewriter)
    if moved is None or split is None or image is None or source is None or node.output.rank != image.rank:
        return None
    cuts = _factors(image.shape, split.output.shape)
    joins = _factors(node.output.shape, moved.output.shape)
    if cuts is None or joins is None:
        return None
    last = [axis for group in (cuts[0], *cuts[2:], cuts[1]) for axis in group]
    order = moved.attributes["order"]
    wanted = [order[axis] for group in (joins[0], *joins[2:], joins[1]) for axis in group]
    result = rewriter.op("reshape", [source], shape=tuple(split.output.shape[axis] for axis in last))
    result = rewriter.op("permute", [result], order=tuple(last.index(axis) for axis in wanted))
    result = rewriter.op("reshape", [result], shape=tuple(node.output.shape[axis] for axis in _last(node.output.rank)))
    return rewriter.op("permute", [result], order=_first(node.output.rank))


def _factors(whole: Sequence[Size], split: Sequence[Size]) -> list[list[int]] | None:
    """For each dimension the dimensions that it is split into; None where they do not tell."""
    found: list[list[int]] = []
    place = 0
    for extent in whole:
        group: list[int] = []
        total: Size = 1
        while place < len(split) and (not group or simplify(total) != simplify(extent)):
            group.append(place)
            total = product([total, split[place]])
            place += 1
        if simplify(total) != simplify(extent):
            return None
        found.append(group)
    return found if place == len(split) else None


def _rules(kernels: KernelFacts) -> Rules:
    rules: dict[str, list] = {name: [_windowed] for name in _WINDOWED}
    rules.update({name: [_elementwise] for name, row in OPS.items() if row.kind == "elementwise"})
    for name in ("reduce_sum", "reduce_mean", "reduce_max", "reduce_min"):
        rules[name] = [_reduction]
    views = [partial(_grouped_rows, kernels=kernels), _shuffled]
    if kernels.rows_side_by_side:
        views.insert(1, _joined_pixels)
        rules["layer_norm"] = [_channel_rows]
    rules.update(permute=[_permute_cancels], concat=[_concat], pad=[_pad], reshape=views)
    return rules
