"""Moves permutes of whole rows across products, to where they meet other views.

A product with a matrix does the same to every row, in whatever order the rows come.  Models that keep
the sequence first (`torch.nn.MultiheadAttention`) permute rows before the projection and after it:

    split(matmul(permute(x), w))       ->  split(permute(matmul(x, w)))     sinks: all readers are views
    add(permute(matmul(join(a), w)), r) ->  add(matmul(permute(join(a)), w), r)   rises: the operand is a view

There the permute becomes part of the heads' strides, or cancels with the join's own permute.

Rotations of rows (images rolled for shifted windows) sink to attention whose kernel finds each row by itself:

    split(matmul(roll(x), w))  ->  split(roll(matmul(x, w)))
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from tilewright.graph.core import Graph, Node, Value
from tilewright.graph.fusion import is_block_attention
from tilewright.graph.kernel_facts import NO_KERNELS, KernelFacts
from tilewright.graph.rewrite import GraphRewriter
from tilewright.graph.views import rotation

_VIEWS = {"reshape", "permute", "slice"}


def move_row_permutes(graph: Graph, kernels: KernelFacts = NO_KERNELS) -> Graph:
    """One walk; the same graph when no movement of rows is next to a product."""
    users = graph.users()
    results = set(graph.results())

    def only_views(value: Value) -> bool:
        """Whether all readers are views, perhaps after the add of a bias."""
        readers = users.get(value, [])
        if len(readers) == 1 and _bias(readers[0]) is not None and value not in results:
            return only_views(readers[0].output)
        return value not in results and bool(readers) and all(reader.op in _VIEWS for reader in readers)

    def sink(node: Node, rewriter: GraphRewriter) -> Value | None:
        moved = _row_permute(rewriter.producer(node.inputs[0], "permute"))
        if moved is None or not only_views(node.output):
            return None
        if node.op == "matmul" and (node.inputs[1] is None or node.inputs[1].rank != 2):
            return None
        if node.op == "add" and _bias(node) is None:
            return None
        source, order = moved
        result = rewriter.op(node.op, [source, *node.inputs[1:]], **node.attributes)
        return rewriter.op("permute", [result], order=order)

    def sink_rotations(node: Node, rewriter: GraphRewriter) -> Value | None:
        return _sunk(node, rewriter) if _feeds_blocks(node.output, users, results, kernels) else None

    def rise(node: Node, rewriter: GraphRewriter) -> Value | None:
        moved = _row_permute(node)
        if moved is None or only_views(node.output):
            return None
        source, order = moved
        add = rewriter.producer(source, "add")
        bias = _bias(add) if add is not None else None
        product = rewriter.producer(source if add is None else add.inputs[0], "matmul")
        if product is None or (add is not None and (bias is None or rewriter.uses(add.output) != 1)):
            return None
        rows, matrix = product.inputs
        if rewriter.uses(product.output) != 1 or matrix is None or matrix.rank != 2:
            return None
        if rewriter.producer(rows, "reshape", "permute") is None:
            return None
        lifted = rewriter.op("permute", [rows], order=order)
        result = rewriter.op("matmul", [lifted, matrix], **product.attributes)
        return result if add is None else rewriter.op("add", [result, bias])

    return GraphRewriter(graph).run(
        {"matmul": [sink_rotations, sink], "add": [sink_rotations, sink], "permute": [rise]}
    )


def _row_permute(node: Node | None) -> tuple[Value, tuple[int, ...]] | None:
    """(source, order) of a permute that leaves the last dimension where it is."""
    if node is None or node.inputs[0] is None or node.output.rank < 3:
        return None
    order = node.attributes["order"]
    return (node.inputs[0], order) if order[-1] == node.output.rank - 1 else None


def _feeds_blocks(value: Value, users: Mapping[Value, list[Node]], results: set[Value], kernels: KernelFacts) -> bool:
    """Whether all that is read of a value, through views, are the rows of attention by blocks."""
    readers = users.get(value, [])
    return (
        value not in results and bool(readers) and all(
            _feeds_blocks(reader.output, users, results, kernels) if reader.op in _VIEWS or _bias(reader) is not None
            else is_block_attention(reader, kernels) and value in reader.inputs[:3]
            for reader in readers
        )
    )  # fmt: skip


def _sunk(node: Node, rewriter: GraphRewriter) -> Value | None:
    """A product, or the sum with a bias, of rows before they were rotated, and these movements after it."""
    if node.op == "matmul" and (node.inputs[1] is None or node.inputs[1].rank != 2):
        return None
    if node.op == "add" and _bias(node) is None:
        return None
    source, moves = _row_moves(node.inputs[0], rewriter.producer)
    if all(move.op != "concat" for move in moves):
        return None
    result = rewriter.op(node.op, [source, *node.inputs[1:]], **node.attributes)
    for move in moves:
        result = _moved_alike(move, result, rewriter)
    return result


def _row_moves(value: Value | None, producer: Callable[..., Node | None]) -> tuple[Value | None, list[Node]]:
    """What a value is made of by nodes that only move rows, and these nodes: permutes, reshapes and rotations (their
    concats)."""
    moves: list[Node] = []
    while (node := producer(value)) is not None:
        turned = rotation(node, producer)
        source = node.inputs[0]
        if turned is not None and turned[1] < node.output.rank - 1:
            value = turned[0]
        elif node.op == "permute" and _row_permute(node) is not None:
            value = source
        elif node.op == "reshape" and source is not None and source.shape[-1:] == node.output.shape[-1:]:
            value = source
        else:
            break
        moves.insert(0, node)
    return value, moves


def _moved_alike(move: Node, value: Value, rewriter: GraphRewriter) -> Value:
    """Other rows moved as a node of `_row_moves` does."""
    if move.op == "reshape":
        return rewriter.op("reshape", [value], shape=(*move.output.shape[:-1], value.shape[-1]))
    if move.op == "permute":
        return rewriter.op("permute", [value], **move.attributes)
    turned = rotation(move, rewriter.producer)
    assert turned is not None
    source, axis, shift = turned
    parts = [
        rewriter.op("slice", [value], axis=axis, start=start, stop=stop, step=1)
        for start, stop in ((shift, source.shape[axis]), (0, shift))
    ]
    return rewriter.op("concat", parts, axis=axis)


def _bias(node: Node) -> Value | None:
    """The second operand of an add of one number for each column."""
    right = node.inputs[1] if node.op == "add" else None
    return right if right is not None and right.rank <= 1 and node.output.rank > 1 else None
