"""Regions of a graph whose images have one order, and which convolutions of theirs are products of planes.

A region is what `to_channels_last` makes channels-last together: convolutions, pools, and the ops between them that
keep the shape of images.  A convolution of single pixels is the weights times an image, as it lies: rows of tensor
copies run along channels or along pixels.  Where all of a region are such, nothing is gained by another order, and what
reads or writes the region is not permuted.  A few others that have kernels of channels-first images may be among them.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable

from tilewright.graph.core import Graph, Node, Value
from tilewright.graph.kernel_facts import KernelFacts
from tilewright.graph.ops import kind_of
from tilewright.symbolic import fits_32_bits, product, simplify, upper_bound

_WINDOWED = ("conv", "max_pool", "average_pool")
_ALIKE = ("concat", "pad", "batch_norm", "group_norm")  # besides elementwise ops: their results have the images' order


def products_of_planes(graph: Graph, kernels: KernelFacts, has_planes: Callable[[Node], bool]) -> set[Value]:
    """The results of convolutions in such regions; `has_planes` tells whether another one has such kernels."""
    found: set[Value] = set()
    if not kernels.plane_types:
        return found
    for region in _regions(graph):
        windowed = [node for node in region if node.op in _WINDOWED]
        others = [node for node in windowed if not _is_product(node, kernels)]
        if len(others) == len(windowed) or (others and len(windowed) >= kernels.channels_last_convolutions):
            continue
        whole = all(node.op == "conv" and has_planes(node) for node in others)
        if whole and not _is_read_by_pixels(graph, region):
            found.update(node.output for node in windowed)
    return found


def _regions(graph: Graph) -> list[list[Node]]:
    """The nodes of each region with convolutions or pools."""
    leaders: dict[Value, Value] = {}

    def leader(value: Value) -> Value:
        while (above := leaders.get(value, value)) is not value:
            leaders[value] = leaders.get(above, above)
            value = above
        return value

    members = [node for node in graph.nodes if node.op in (*_WINDOWED, *_ALIKE) or kind_of(node.op) == "elementwise"]
    members = [node for node in members if len(node.outputs) == 1 and node.output.rank >= 3]
    for node in members:
        for value in node.inputs:
            if value is not None and value.rank == node.output.rank and value not in graph.constants:
                leaders[leader(value)] = leader(node.output)
    regions: defaultdict[Value, list[Node]] = defaultdict(list)
    for node in members:
        regions[leader(node.output)].append(node)
    return [region for region in regions.values() if any(node.op == "conv" for node in region)]


def _is_product(node: Node, kernels: KernelFacts) -> bool:
    """Whether a node of a region is a convolution of single pixels whose rows begin where tensor copies read them."""
    if node.op != "conv" or node.attributes["layout"] != "NCHW" or node.attributes["groups"] != 1:
        return False
    x, w = node.inputs[:2]
    assert x is not None and w is not None
    pixels, channels = simplify(product(x.shape[2:])), w.shape[1]
    if x.dtype not in kernels.plane_types or not isinstance(pixels, int) or not isinstance(channels, int):
        return False
    moved = any(step != 1 for step in node.attributes["strides"])
    moved |= any(low or high for low, high in node.attributes["padding"])
    alike = x.dtype == w.dtype == node.output.dtype and isinstance(w.shape[0], int) and x.rank <= 5
    alike = alike and all(fits_32_bits(product(value.shape[1:])) for value in (x, node.output))
    whole = all(row * x.dtype.itemsize % kernels.row_bytes == 0 for row in (pixels, channels))
    return alike and whole and pixels > 1 and not moved and all(extent == 1 for extent in w.shape[2:])


def _is_read_by_pixels(graph: Graph, region: list[Node]) -> bool:
    """Whether more of what a region reads and writes has its channels last, as permutes around it tell, than first."""
    inside = {node.output for node in region}
    rank = max(node.output.rank for node in region)
    users, results = graph.users(), set(graph.results())
    producers = {output: node for node in graph.nodes for output in node.outputs}
    first = last = 0
    read = {value for node in region for value in node.inputs if value is not None and value.rank == rank}
    for value in read - inside - set(graph.constants):
        if (producer := producers.get(value)) is not None and _moves_channels(producer, users):
            last += _elements(value)
        else:
            first += _elements(value)
    for value in inside:
        outside = [node for node in users.get(value, []) if node.output not in inside]
        if any(_moves_channels(node, users) for node in outside):
            last += _elements(value)
        elif outside or value in results:
            first += _elements(value)
    return last > first


def _moves_channels(node: Node, users: dict[Value, list[Node]]) -> bool:
    """Whether a node permutes images between channels-first and channels-last, or pixels in a row, after a reshape."""
    if node.op == "reshape" and node.output.rank == 3:
        return any(each.op == "permute" and _moves_channels(each, users) for each in users.get(node.output, []))
    rank = node.output.rank
    orders = (0, *range(2, rank), 1), (0, rank - 1, *range(1, rank - 1))
    return node.op == "permute" and rank >= 3 and node.attributes["order"] in orders


def _elements(value: Value) -> int:
    """Of an image."""
    return upper_bound(product(value.shape[1:]))
