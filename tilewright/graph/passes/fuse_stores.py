"""Groups of several loops: stores through movement, and independent loops that share a launch.

A generated kernel stores wherever index arithmetic says.  So the elementwise group that computes the parts of a
concat, what a permute moves, or the new place of a tensor of the caller's stores it there; and groups
that do not wait for each other become loops of one launch, if they read the same tensor or are short.
"""

from __future__ import annotations

from tilewright.graph.core import Value
from tilewright.graph.passes.fuse_absorb import EXPENSIVE, reads_through
from tilewright.graph.passes.fuse_draft import MOST_GROUP_NODES, Draft, Drafts
from tilewright.symbolic import lift, product, simplify, upper_bound

_MOVES = frozenset({"permute", "slice", "pad", "concat", "gather", "gather_elements"})
_KEEPS = frozenset({"reshape", "permute", "slice", "pad"})  # no element is read twice through these
_MOST_OUTPUTS = 8  # of loops in one launch
_MOST_INPUTS = 2 * MOST_GROUP_NODES  # of one kernel: a concat is one node and has the code of each of its parts
_MOST_LOOKUPS = 2  # of a tensor by one loop, each of which computes it again; more only to save a launch
_MOST_REPEATED_OPS = 4  # cheap ops that may be repeated for every element that reads their result


def join_stores(drafts: Drafts) -> None:
    """Give the movement after elementwise groups to them, then join loops that read what others move, and
    independent loops over one tensor."""
    _join_sinks(drafts)
    _join_chains(drafts)
    _join_launches(drafts)
    if drafts.kernels.short_loop:
        _join_short_loops(drafts)


def _is_generated(drafts: Drafts, draft: Draft) -> bool:
    """Whether a group's kernel is loops that are generated from its nodes."""
    if draft.kind in ("elementwise", "update"):
        return True
    return draft.kind == "movement" and draft.anchor is not None and drafts.nodes[draft.anchor].op in _MOVES


def _merge(drafts: Drafts, into: Draft, other: Draft) -> None:
    """One group of loops."""
    drafts.merge(into, other)
    into.kind, into.anchor = "elementwise", None


def _join_sinks(drafts: Drafts) -> None:
    """Merge movement and updates with the elementwise groups that compute what they store."""
    readers = _readers(drafts)
    for draft in list(drafts.live()):
        if draft.kind == "elementwise" or not _is_generated(drafts, draft):
            continue
        sink = min(draft.nodes)
        for value in drafts.inputs(draft):
            draft, source = drafts.owner[sink], drafts.producer(value)
            if source is None or drafts.owner[source].kind != "elementwise" or drafts.owner[source] is draft:
                continue
            earlier = drafts.owner[source]
            if (
                _stores_for(drafts, sink, value, earlier, readers)
                and _few_inputs(drafts, earlier, draft)
                and drafts.may_merge(earlier, draft)
            ):
                _merge(drafts, earlier, draft)
    for index in drafts.updates:
        drafts.owner[index].kind = "elementwise"


def _few_inputs(drafts: Drafts, first: Draft, second: Draft) -> bool:
    """Whether two groups together read so few tensors that their kernel is compiled in a short time."""
    return len(drafts.inputs(first)) + len(drafts.inputs(second)) <= _MOST_INPUTS


def _stores_for(drafts: Drafts, sink: int, value: Value, earlier: Draft, readers: dict[Value, int]) -> bool:
    """Whether the group that computes a value had better store it where movement `sink` does."""
    if _reads_mutated(drafts, earlier):
        return False
    if sink in drafts.updates:
        return True
    if value in drafts.results or readers[value] > 1:
        return False
    draft = drafts.owner[sink]
    op, between = drafts.nodes[sink].op, [drafts.nodes[index].op for index in draft.copies]
    if op not in (_KEEPS | {"concat"}) or not _KEEPS.issuperset(between):
        return False
    return op == "concat" or drafts.outputs(earlier) == [value]  # in its own order a loop stores only one result


def _join_chains(drafts: Drafts) -> None:
    """Merge elementwise groups of cheap ops with the only group that reads them, through movement or broadcast,
    where that computes elements at most twice (angles that are repeated for both halves of a head) or few ops."""
    readers = _readers(drafts)
    for draft in list(drafts.live()):
        if draft.kind not in ("elementwise", "reduction", "contraction") or not reads_through(drafts, draft):
            continue
        operands = _operands(drafts, draft) if draft.kind == "contraction" else set()
        for value in drafts.inputs(draft):
            source = drafts.producer(value)
            if source is None or drafts.owner[source].kind != "elementwise":
                continue
            if value in drafts.results or readers[value] > 1 or value in operands:
                continue
            earlier, later = drafts.owner[source], drafts.owner[draft.first]
            if earlier is later or drafts.outputs(earlier) != [value] or not drafts.may_merge(earlier, later):
                continue
            if operands.intersection(output for index in earlier.copies for output in drafts.nodes[index].outputs):
                continue  # the group would compute what its anchor reads from memory
            if _is_cheap(drafts, earlier, value, later):
                drafts.merge(later, earlier)


def _operands(drafts: Drafts, draft: Draft) -> set[Value]:
    """What a group's anchor reads, through movement inside of the group: a contraction's operands stay in memory."""
    members, found = draft.nodes | draft.copies, set()
    waiting = [] if draft.anchor is None else [draft.anchor]
    while waiting:
        for value in drafts.nodes[waiting.pop()].inputs:
            index = drafts.producer(value)
            if value is not None and value not in found:
                found.add(value)
                waiting += [index] if index is not None and index in members else []
    return found


def _is_cheap(drafts: Drafts, earlier: Draft, value: Value, later: Draft) -> bool:
    """Whether a group had better be computed where its one result is read."""
    if earlier.nodes & drafts.updates or any(drafts.nodes[index].op in EXPENSIVE for index in earlier.nodes):
        return False
    if len(earlier.nodes) <= _MOST_REPEATED_OPS and len(drafts.inputs(earlier)) <= 2:
        return True
    lookups = sum(drafts.nodes[reader].op in ("gather", "gather_elements") for reader in drafts.readers[value])
    if lookups > _MOST_LOOKUPS and not _is_short(drafts, earlier):
        return False
    return later.kind == "elementwise" and all(_at_most_twice(value, output) for output in drafts.outputs(later))


def _at_most_twice(value: Value, output: Value) -> bool:
    """Whether a tensor has at most twice the elements of another."""
    return upper_bound(simplify(lift(product(output.shape)) - lift(product(value.shape)) * 2)) <= 0


def _readers(drafts: Drafts) -> dict[Value, int]:
    """How many groups read a value."""
    found: dict[Value, int] = {}
    for draft in drafts.live():
        for value in drafts.inputs(draft):
            found[value] = found.get(value, 0) + 1
    return found


def _reads_mutated(drafts: Drafts, draft: Draft) -> bool:
    """Whether a group reads a tensor that is updated in place: it has to wait for nobody who updates another."""
    updated = {drafts.nodes[index].inputs[0] for index in draft.nodes & drafts.updates}
    return any(value in drafts.graph.mutations and value not in updated for value in drafts.inputs(draft))


def _join_launches(drafts: Drafts) -> None:
    """Merge independent groups of loops, of any shapes, that read the same tensor: first one that is computed."""
    readers: dict[Value, list[Draft]] = {}
    for draft in drafts.live():
        if _is_generated(drafts, draft) and not _reads_mutated(drafts, draft):
            for value in drafts.inputs(draft):
                if value.rank and value not in drafts.graph.constants:
                    readers.setdefault(value, []).append(draft)
    for _, found in sorted(readers.items(), key=lambda item: drafts.producer(item[0]) is None):
        for member in found[1:]:
            first, draft = drafts.owner[found[0].first], drafts.owner[member.first]
            if first is draft or drafts.depends(first, draft) or drafts.depends(draft, first):
                continue
            if _share_a_launch(drafts, first, draft):
                _merge(drafts, first, draft)


def _join_short_loops(drafts: Drafts) -> None:
    """Merge short groups of loops before which as many launches come, one after the other: none of them waits for
    another, nor will any after merges of such groups."""
    together: dict[int, list[Draft]] = {}
    for draft, depth in _depths(drafts).items():
        if _is_generated(drafts, draft) and _is_short(drafts, draft) and not _reads_mutated(drafts, draft):
            together.setdefault(depth, []).append(draft)
    for found in together.values():
        firsts: list[Draft] = []  # of a launch each
        for draft in found:
            first = next((item for item in firsts if _share_a_launch(drafts, item, draft)), None)
            if first is None:
                firsts.append(draft)
            else:
                _merge(drafts, first, draft)


def _share_a_launch(drafts: Drafts, first: Draft, second: Draft) -> bool:
    """Whether two groups that do not wait for each other are few loops together, which may run at the same time."""
    few = len(drafts.outputs(first)) + len(drafts.outputs(second)) <= _MOST_OUTPUTS
    if not (few and drafts.have_room(first, second) and _few_inputs(drafts, first, second)):
        return False
    return not drafts.reads_updated({*drafts.members(first), *drafts.members(second)})


def _is_short(drafts: Drafts, draft: Draft) -> bool:
    """Whether all that a group stores has few elements, at all sizes."""
    return sum(upper_bound(product(value.shape)) for value in drafts.outputs(draft)) <= drafts.kernels.short_loop


def _depths(drafts: Drafts) -> dict[Draft, int]:
    """How many launches one after the other each group waits for."""
    depths: dict[Draft, int] = {}

    waiting = list(drafts.live())
    while waiting:
        draft = waiting[-1]
        sources = {drafts.owner[index] for index in map(drafts.producer, drafts.inputs(draft)) if index is not None}
        missing = [source for source in sources if source not in depths]
        waiting += missing
        if not missing:
            depths[draft] = 1 + max((depths[source] for source in sources), default=-1)
            waiting.pop()
    return depths
