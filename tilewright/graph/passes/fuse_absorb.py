"""Fusion without extra loops: movement and cheap ops that groups read through instead of reading memory.

Movement (reshape, permute, slice, concat, gather, …) is index arithmetic to the kernels of elementwise
groups, reductions and other movement; to attention a chain of views is a set of strides, and where
all queries and keys of a head are one block, rows of windows are index arithmetic too.  Nodes of
that kind are copied into every group that reads them; a node that all readers have is never run.
"""

from __future__ import annotations

from tilewright.graph.core import Node, Value
from tilewright.graph.fusion import is_block_attention
from tilewright.graph.ops import kind_of
from tilewright.graph.passes.fuse_attention import moves_rows, take_views_after
from tilewright.graph.passes.fuse_draft import MOST_GROUP_NODES, Draft, Drafts
from tilewright.graph.passes.fuse_norms import reads_memory
from tilewright.graph.views import dense_view, follow_all, rotation
from tilewright.symbolic import modulo

EXPENSIVE = frozenset({"exp", "exp2", "log", "sin", "cos", "tanh", "erf", "sigmoid", "silu", "gelu", "power"})
_VIEWS = frozenset({"reshape", "permute", "slice"})  # to attention these are strides
_FREE = frozenset({"reshape", "slice"})  # reading through them costs nothing, whoever else reads them
_IN_ROWS = _FREE | {"frames", "broadcast_to"}  # what the kernel of a transform reads through
_INDEXED = _FREE | {"permute", "broadcast_to", "concat", "pad", "frames", "gather", "gather_elements"}
_READS_THROUGH = frozenset({"permute", "slice", "pad", "concat", "frames", "gather", "gather_elements", "broadcast_to"})
_ROWS = frozenset({"softmax", "log_softmax", "layer_norm", "rms_norm", "reduce_sum", "reduce_mean", "reduce_max",
                   "reduce_min", "reduce_product", "reduce_log_sum_exp", "argmax", "argmin"})  # fmt: skip
_RUNNING = frozenset({"cumsum", "cumprod", "cummax", "cummin", "cumlogsumexp"})
_MOST_CONCATENATED = 4  # parts; each costs a masked load of every element
_NODES_FOR_BYTE = 2  # that compute an element in the time in which a byte is loaded
_FEW_COPIES = 8  # of nodes in a group, which are not worth counting
_MOST_EVALUATIONS = 4 * MOST_GROUP_NODES  # of nodes, in the code of one kernel


def absorb(drafts: Drafts) -> None:
    """Copy views, index arithmetic and cheap nodes into the groups that read them."""
    for draft in list(drafts.all()):
        if draft.kind == "attention":
            take_views_after(drafts, draft)
            _take_views_before(drafts, draft)
    cheap = _cheap_nodes(drafts)
    vanishing = _vanishing_nodes(drafts, cheap)
    for draft in list(drafts.all()):
        if reads_through(drafts, draft):
            _take(drafts, draft, vanishing, cheap)
            _take_places(drafts, draft)


# Attention -------------------------------------------------------------------------------------------


def _take_views_before(drafts: Drafts, draft: Draft) -> None:
    """Copy the longest chains of views that end in q, k and v and are plain strides with dense rows; of blocks the
    longest that move whole rows."""
    assert draft.anchor is not None
    anchor = drafts.nodes[draft.anchor]
    for item in anchor.inputs[:3]:
        if is_block_attention(anchor, drafts.kernels):
            draft.copies.update(_row_movement(drafts, item))
            continue
        chain: list[int] = []
        index = drafts.producer(item)
        while index is not None and drafts.nodes[index].op in _VIEWS:
            chain.insert(0, index)
            index = drafts.producer(drafts.nodes[index].inputs[0])
        while chain:
            source = drafts.nodes[chain[0]].inputs[0]
            assert source is not None
            view = follow_all(dense_view(source.shape), [drafts.nodes[index] for index in chain])
            if view is not None and view.strides[-1] == 1:
                draft.copies.update(chain)
                break
            chain.pop(0)


def _row_movement(drafts: Drafts, value: Value | None) -> set[int]:
    """The nodes that lead to a value and only move its rows."""

    def producer(other: Value | None) -> Node | None:
        index = drafts.producer(other)
        return None if index is None else drafts.nodes[index]

    found: set[int] = set()
    width = 1 if value is None else value.shape[-1]
    while (node := producer(value)) is not None:
        turned = rotation(node, producer)
        if turned is not None and turned[1] < node.output.rank - 1 and modulo(node.output.shape[-1], width) == 0:
            value = turned[0]
            found.update(index for item in node.inputs if (index := drafts.producer(item)) is not None)
        elif moves_rows(node, width):
            value = node.inputs[0]
        else:
            break
        found.add(drafts.position[node.output])
    return found


# Generated kernels -----------------------------------------------------------------------------------


def reads_through(drafts: Drafts, draft: Draft) -> bool:
    """Whether the group's kernel is generated from expressions, so that any index can be followed."""
    if draft.kind in ("elementwise", "rows", "update", "contraction", "transform"):
        return True
    anchor = None if draft.anchor is None else drafts.nodes[draft.anchor]
    if anchor is None:
        return False
    if anchor.op in _RUNNING:
        return drafts.kernels.generates_running
    if anchor.op == "scatter_reduce":
        return drafts.is_generated_scatter(draft)
    return anchor.op in _ROWS if draft.kind == "reduction" else anchor.op in _READS_THROUGH


def _cheap_nodes(drafts: Drafts) -> set[int]:
    """Nodes of nothing but positions and numbers, that cost less to compute than to load."""
    cheap: set[int] = set()
    for index, node in enumerate(drafts.nodes):
        inputs = [drafts.producer(item) for item in node.inputs if item is not None and item.rank > 0]
        follows = kind_of(node.op) == "elementwise" or node.op in ("broadcast_to", "reshape")
        computed = follows and node.op not in EXPENSIVE and bool(inputs) and all(item in cheap for item in inputs)
        if kind_of(node.op) == "source" or computed:
            cheap.add(index)
    return cheap


def _vanishing_nodes(drafts: Drafts, cheap: set[int]) -> set[int]:
    """Movement that only groups read which can read through it, elementwise nodes that only feed such movement, and
    casts to wider types, of which each reader has fewer bytes to load.  Decided from the last node to the first, as it
    depends on the readers."""
    vanishing: set[int] = set()
    repeated: set[int] = set()
    for index in range(len(drafts.nodes) - 1, -1, -1):
        node = drafts.nodes[index]
        readers = drafts.readers.get(node.output, [])
        if not readers or node.output in drafts.results:
            continue
        if any(drafts.nodes[reader].op == "frames" or reader in repeated for reader in readers):
            if node.op not in _FREE:
                continue  # frames read an element several times: what leads to them is computed once
            repeated.add(index)
        if node.op in _INDEXED:
            reached = all(_reaches(drafts, index, reader, vanishing) for reader in readers)
            if reached and _worth_repeating(drafts, node, readers, vanishing):
                vanishing.add(index)
        elif kind_of(node.op) == "elementwise" and index not in cheap and len(drafts.owner[index].nodes) == 1:
            if len(set(readers)) == 1 and readers[0] in vanishing and drafts.nodes[readers[0]].op != "broadcast_to":
                vanishing.add(index)
            elif widens(node) and all(_reaches(drafts, index, reader, vanishing) for reader in readers):
                vanishing.add(index)
    return vanishing


def widens(node: Node) -> bool:
    """Whether what a node reads takes fewer bytes than what it makes, and no time to speak of to make it."""
    (source,) = node.inputs if node.op == "cast" else (None,)
    return source is not None and source.dtype.bits < node.output.dtype.bits


def _reaches(drafts: Drafts, index: int, reader: int, vanishing: set[int]) -> bool:
    """Whether `reader` (or whoever it vanishes into) follows the indices of node `index`."""
    draft = drafts.owner[reader]
    if reader in vanishing or index in draft.copies:
        return True
    if reads_memory(drafts, draft, reader):
        return False
    if draft.kind == "transform":
        return drafts.nodes[index].op in _IN_ROWS
    return reads_through(drafts, draft)


def _worth_repeating(drafts: Drafts, node: Node, readers: list[int], vanishing: set[int]) -> bool:
    """Reading through is free for views; a gather or concat is repeated for no second group."""
    if node.op in _FREE or node.op == "permute":
        return True
    if node.op == "concat" and len(node.inputs) > _MOST_CONCATENATED:
        return False
    return len(_destinations(drafts, readers, vanishing)) == 1


def _destinations(drafts: Drafts, readers: list[int], vanishing: set[int]) -> set[int]:
    """The groups (by identity) in which movement ends up that `readers` read, through movement that vanishes too."""
    found: set[int] = set()
    waiting, seen = list(readers), set(readers)
    while waiting:
        reader = waiting.pop()
        if reader not in vanishing:
            found.add(id(drafts.owner[reader]))
            continue
        following = set(drafts.readers.get(drafts.nodes[reader].output, ())) - seen
        seen |= following
        waiting += following
    return found


def _take(drafts: Drafts, draft: Draft, vanishing: set[int], cheap: set[int]) -> None:
    """Copy producers into the group, from its inputs upwards; a contraction's own operands stay in memory."""
    readers = [index for index in draft.nodes if reads_memory(drafts, draft, index)]
    operands = {item for index in readers for item in drafts.nodes[index].inputs if item is not None}
    waiting = [value for value in drafts.inputs(draft) if value not in operands]
    while waiting:
        value = waiting.pop()
        index = drafts.producer(value)
        if index is None or value in operands or index in draft.copies or index in draft.nodes:
            continue
        alone = len(drafts.owner[index].nodes) == 1  # else reading inside its group would make that group store more
        readable = index in vanishing or drafts.nodes[index].op in _FREE
        if index not in cheap and not (alone and readable):
            continue
        if len(draft.nodes) + len(draft.copies) >= 3 * MOST_GROUP_NODES // 2:
            break
        draft.copies.add(index)
        many = len(draft.copies) > _FEW_COPIES and _evaluations(drafts, draft) > _MOST_EVALUATIONS
        if many or drafts.reads_updated(draft.nodes | draft.copies):
            draft.copies.discard(index)
            continue
        waiting += [item for item in drafts.nodes[index].inputs if item is not None]


def _take_places(drafts: Drafts, draft: Draft) -> None:
    """Copy the elementwise groups that compute places at which this one looks elements up: those that compute nothing
    else, and those that nobody else reads."""
    waiting = drafts.inputs(draft)
    while waiting:
        value = waiting.pop()
        index = drafts.producer(value)
        places = None if index is None else drafts.owner[index]
        if places is None or not _may_take(drafts, draft, places, value):
            continue
        before = set(draft.copies)
        draft.copies |= places.nodes | places.copies
        if _evaluations(drafts, draft) > _MOST_EVALUATIONS or drafts.reads_updated(draft.nodes | draft.copies):
            draft.copies = before
        else:
            waiting += drafts.inputs(places)


def _may_take(drafts: Drafts, draft: Draft, places: Draft, value: Value) -> bool:
    if places.kind != "elementwise" or not _is_cheaper_than_loads(drafts, places):
        return False
    outputs, members = drafts.outputs(places), draft.nodes | draft.copies
    if not drafts.results.isdisjoint(outputs) or not any(_is_place(drafts, draft, item) for item in outputs):
        return False
    return outputs == [value] or all(reader in members for item in outputs for reader in drafts.readers[item])


def _is_cheaper_than_loads(drafts: Drafts, draft: Draft) -> bool:
    """Whether computing what a group stores takes less time than loading it from a cache, for an element."""
    loaded = sum(value.dtype.itemsize for value in drafts.outputs(draft))
    computed = [drafts.nodes[index] for index in draft.nodes]
    return len(computed) <= _NODES_FOR_BYTE * loaded and not any(node.op in EXPENSIVE for node in computed)


def _is_place(drafts: Drafts, draft: Draft, value: Value) -> bool:
    """Whether a group reads a value only as an index, or to compute one."""
    members = draft.nodes | draft.copies
    waiting, seen, looked_up = [value], {value}, False
    while waiting:
        item = waiting.pop()
        for reader in members.intersection(drafts.readers.get(item, ())):
            node = drafts.nodes[reader]
            if node.op in ("gather", "gather_elements"):
                if node.inputs[0] is item:
                    return False
                looked_up = True
            elif kind_of(node.op) != "elementwise" and node.op not in ("reshape", "broadcast_to"):
                return False
            elif any(other not in members for other in drafts.readers.get(node.output, ())):
                return False
            elif node.output in drafts.results:
                return False
            elif node.output not in seen:
                seen.add(node.output)
                waiting.append(node.output)
    return looked_up


def _evaluations(drafts: Drafts, draft: Draft) -> int:
    """How often the kernel computes nodes for one element: once for each index at which others read them.

    Every part of a concat, for example, is read at an index of its own, so that a chain of nodes of two parts each
    would double the length of the kernel with every node.  Counting ends after `_MOST_EVALUATIONS`.
    """
    members, total = draft.nodes | draft.copies, 0
    numbers: dict[tuple[int, int, int], int] = {}  # of the indices that follow from a reader's
    places: dict[int, set[int]] = {}
    for index in sorted(members, reverse=True):
        node, own = drafts.nodes[index], places.get(index) or {0}
        total += len(own)
        if total > _MOST_EVALUATIONS:
            break
        same = kind_of(node.op) == "elementwise" and node.op != "broadcast_to"
        for position, item in enumerate(node.inputs):
            producer = drafts.producer(item)
            if producer is not None and producer in members:
                there = own if same else {numbers.setdefault((index, position, n), len(numbers) + 1) for n in own}
                places.setdefault(producer, set()).update(there)
    return total
