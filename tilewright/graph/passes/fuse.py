"""Fusion by class: which nodes are computed together, without writing what lies between them to memory.

The rules, in this order:
1. A contraction takes the elementwise ops that follow it, as long as one tensor leaves the group.
   (Bias, activation, scale and residual add are done while the result is in registers.)  A product whose
   columns are two halves that meet again (a gate) takes the halves and what follows their meeting.
   A pool takes what follows it in the same way, a transform what follows it, the meeting of its real and
   imaginary parts, and the elementwise ops before it.
2. A reduction (softmax, norms, reduce_*) takes the elementwise ops after it in the same way, and those
   before it that nobody else reads, and the one that makes its input if others read that too (a residual sum).
   Residual sums in float16 are theirs, not the products'; every second one is computed by two norms, not stored.
   Norms of few rows are computed by the products that read them, where the target has such kernels.
   The mean of an image, a product of it and a second one of that (squeeze and excitation) are one group.
   Several over the same rows, with the elementwise ops between them, are one group, where the target has such kernels.
3. Elementwise ops of one shape join into one loop nest, with as many outputs as are read outside;
   so do independent ones that read the same tensor, and lookups at positions that they compute.
4. Attention takes the reshapes, permutes and slices around it: they are only strides to it.  Where the target's
   kernels quantize, it takes the quantization of its results as well.  Sorting takes the look-up of what it sorts.
5. Generated kernels read through movement (also gathers and concats): it is only index arithmetic.  Kernels of
   running sums are generated on some targets only.
6. What costs less to compute than to load (iota, comparisons of iota, scalar arithmetic) is computed
   again in every generated kernel that reads it.
7. Generated kernels store what a concat, a permute or an update of a cache would only move, and independent
   ones over one tensor share a launch.
8. A product whose columns are heads of attention is one group with the loops that turn and store these, where the
   target has such kernels.
A merge never makes two groups wait for each other, and every decision is noted in the remarks.
"""

from __future__ import annotations

import heapq

from tilewright.graph.core import Graph, Node, Value
from tilewright.graph.fusion import FusedGraph, Group
from tilewright.graph.inference import Shape
from tilewright.graph.kernel_facts import NO_KERNELS, KernelFacts
from tilewright.graph.ops import kind_of
from tilewright.graph.passes.fuse_absorb import EXPENSIVE, absorb, widens
from tilewright.graph.passes.fuse_attention import take_quantization
from tilewright.graph.passes.fuse_draft import Draft, Drafts, is_whole_row
from tilewright.graph.passes.fuse_excite import join_excitations
from tilewright.graph.passes.fuse_lookups import join_lookups
from tilewright.graph.passes.fuse_norms import take_norms
from tilewright.graph.passes.fuse_projections import join_projections
from tilewright.graph.passes.fuse_rows import join_rows
from tilewright.graph.passes.fuse_sorted import take_sorted
from tilewright.graph.passes.fuse_stores import join_stores
from tilewright.graph.passes.fuse_sums import leave_sums_to_norms
from tilewright.graph.row_spaces import ROW_OPS


def fuse(graph: Graph, kernels: KernelFacts = NO_KERNELS) -> FusedGraph:
    """Partition a graph into groups, in an order in which they can run.

    Every node belongs to one group; views and cheap nodes may be repeated in the groups that read them.
    `kernels` are those of the target (`Target.kernels`): without any, groups are what every target has kernels for.
    """
    drafts = Drafts(graph, kernels)
    remarks = list(graph.remarks)
    for kind in ("contraction", "pool", "transform", "reduction"):
        for draft in list(drafts.all()):
            if draft.kind == kind:
                _take_epilogue(drafts, draft, remarks)
                _leave_widening(drafts, draft)
                _take_widening(drafts, draft)
                _take_gate(drafts, draft, remarks)
                _take_image(drafts, draft, remarks)
    if kernels.attention_quantizes:
        take_quantization(drafts, remarks)
    if kernels.sorts_values:
        take_sorted(drafts, remarks)
    join_excitations(drafts, remarks)
    if kernels.normed_rows:
        take_norms(drafts, remarks)  # before sums are left to norms that are no kernels then
    leave_sums_to_norms(drafts, remarks)
    for draft in list(drafts.all()):
        if draft.kind in ("reduction", "transform"):
            _take_prologue(drafts, draft, remarks)
        elif drafts.is_generated_scatter(draft):
            _take_operands(drafts, draft)
    _join_elementwise(drafts)
    join_lookups(drafts)
    _join_siblings(drafts)
    if kernels.row_programs:
        join_rows(drafts, remarks)
    absorb(drafts)
    join_stores(drafts)
    if kernels.projected_rows:
        join_projections(drafts, remarks)
    return FusedGraph(graph, _ordered(drafts, remarks), remarks)


# 1 and 2: what follows an anchor, what leads to it ---------------------------------------------------


def _take_epilogue(drafts: Drafts, draft: Draft, remarks: list[str]) -> None:
    """Merge following elementwise nodes of the same shape; keep the last state with one output."""
    assert draft.anchor is not None
    anchor = drafts.nodes[draft.anchor]
    refused = _grow(drafts, draft, anchor.output.shape)
    merged = [drafts.nodes[index].op for index in sorted(draft.nodes) if index != draft.anchor]
    if merged:
        remarks.append(f"{anchor.op} %{anchor.output.name} takes {', '.join(merged)} as its epilogue")
    elif refused:
        remarks.append(f"{anchor.op} %{anchor.output.name} has no epilogue: {refused}")


def _grow(drafts: Drafts, draft: Draft, shape: Shape) -> str:
    """Merge following elementwise nodes of a shape as long as one tensor leaves the group; why one was refused."""
    best = drafts.snapshot(draft)
    refused = ""
    grown = True
    while grown:
        grown = False
        for reader in drafts.readers_of(draft):
            node, other = drafts.nodes[reader], drafts.owner[reader]
            if other.kind != "elementwise" or len(other.nodes) > 1:
                continue
            if node.output.shape != shape:
                refused = f"%{node.output.name} has another shape"
                continue
            if not drafts.have_room(draft, other):
                refused = f"%{node.output.name} is one node too many"
                continue
            if drafts.depends_through_others(other, draft):
                refused = f"%{node.output.name} also waits for what this group feeds"
                continue
            drafts.merge(draft, other)
            grown = True
            if len(drafts.outputs(draft)) == 1:
                best = drafts.snapshot(draft)
            break
    drafts.restore(draft, best)
    return refused


def _leave_widening(drafts: Drafts, draft: Draft) -> None:
    """Store the narrow numbers that a group's one result is made of: those that read it widen them."""
    outputs = drafts.outputs(draft)
    if len(outputs) != 1 or outputs[0] in drafts.results:
        return
    value, chain = outputs[0], list[int]()
    last = drafts.producer(value)
    if last is not None and last != draft.anchor and widens(drafts.nodes[last]) and _read_by_rows(drafts, value):
        drafts.restore(draft, (draft.nodes - {last}, set(draft.copies)))
        return
    if any(kind_of(drafts.nodes[reader].op) != "elementwise" for reader in drafts.readers[value]):
        return
    while True:
        index = drafts.producer(value)
        if index is None or index not in draft.nodes or index == draft.anchor:
            return
        node = drafts.nodes[index]
        if chain and drafts.readers[value] != chain[-1:]:
            return
        chain.append(index)
        others = [item for item in node.inputs if item is not None and item not in drafts.graph.constants]
        if node.op not in ("cast", "add", "subtract", "multiply") or len(others) != 1:
            return
        value = others[0]
        if node.op == "cast" and value.dtype.bits == 8 and not value.dtype.is_bool:
            break
    if drafts.producer(value) in draft.nodes - {draft.anchor}:
        drafts.restore(draft, (draft.nodes - set(chain), set(draft.copies)))


def _read_by_rows(drafts: Drafts, value: Value) -> bool:
    """Whether a value is widened from 16 bits for row operations and elementwise ops alone, perhaps through views."""
    source = drafts.nodes[drafts.position[value]].inputs[0]
    waiting, seen = [value], {value}
    while waiting:
        for reader in drafts.readers.get(waiting.pop(), ()):
            node = drafts.nodes[reader]
            if node.op in ("reshape", "permute") and node.output not in drafts.results:
                if node.output not in seen:
                    seen.add(node.output)
                    waiting.append(node.output)
            elif node.op not in ROW_OPS and (kind_of(node.op) != "elementwise"):
                return False
    return source is not None and source.dtype.is_float and source.dtype.bits == 16


def _take_widening(drafts: Drafts, draft: Draft) -> None:
    """Merge what makes wider numbers, that only this epilogue reads, of narrower ones: a residual that is quantized."""
    for value in drafts.inputs(draft):
        before = drafts.snapshot(draft)
        for index in _widening(drafts, value, draft.nodes - {draft.anchor}):
            if not drafts.may_merge(drafts.owner[index], draft):
                drafts.restore(draft, before)
                break
            drafts.merge(draft, drafts.owner[index])


def _widening(drafts: Drafts, value: Value, readers: set[int]) -> list[int]:
    """The nodes from a cast of narrower numbers to `value`, each read only by the next ones, the last one first."""
    chain: list[int] = []
    bits = value.dtype.bits
    while True:
        index = drafts.producer(value)
        if index is None or value in drafts.results or len(drafts.owner[index].nodes) > 1:
            return []
        node = drafts.nodes[index]
        if not set(drafts.readers[value]) <= readers or node.output.shape != value.shape:
            return []
        chain, readers = [*chain, index], {index}
        others = [item for item in node.inputs if item is not None and item not in drafts.graph.constants]
        if node.op not in ("add", "subtract", "multiply", "cast") or len(others) != 1:
            return []
        value = others[0]
        if node.op == "cast" and value.dtype.bits < bits:
            return chain


def _take_gate(drafts: Drafts, draft: Draft, remarks: list[str]) -> None:
    """Merge the two halves of a product's columns, where they are all that is read of it, and what they meet in."""
    assert draft.anchor is not None
    anchor = drafts.nodes[draft.anchor]
    known = anchor.op in ("matmul", "fourier") or (anchor.op == "dequantized_matmul" and drafts.kernels.gated_weights)
    if not known or anchor.inputs[1] not in drafts.graph.constants or anchor.output.dtype.is_integer:
        return  # products of integers are sums, which no kernel takes in halves
    before = drafts.snapshot(draft)
    halves = _halves(drafts, draft)
    if halves is None:
        return
    for index in halves:
        drafts.merge(draft, drafts.owner[index])
    _grow(drafts, draft, drafts.nodes[halves[0]].output.shape)
    if len(drafts.outputs(draft)) > 1:
        drafts.restore(draft, before)
        return
    remarks.append(
        f"{anchor.op} %{anchor.output.name} takes the gate between the halves of its columns as its epilogue"
    )


def _take_image(drafts: Drafts, draft: Draft, remarks: list[str]) -> None:
    """Merge the permute that alone brings an image of few channels to a convolution: it is copied there anyway."""
    assert draft.anchor is not None
    anchor = drafts.nodes[draft.anchor]
    image = anchor.inputs[0]
    index = drafts.producer(image)
    if anchor.op != "conv" or anchor.attributes["layout"] != "NHWC" or image is None or index is None:
        return
    if drafts.nodes[index].op != "permute" or image in drafts.results:
        return
    if not _is_copied_anyway(anchor, image, drafts.kernels):
        return
    if drafts.readers.get(image) != [draft.anchor] or drafts.depends_through_others(draft, drafts.owner[index]):
        return
    drafts.merge(draft, drafts.owner[index])
    remarks.append(f"conv %{anchor.output.name} takes the permute of its image")


def _is_copied_anyway(conv: Node, image: Value, kernels: KernelFacts) -> bool:
    """Whether kernels copy the image of a channels-last convolution, in whatever order it is."""
    channels, weights = image.shape[-1], conv.inputs[1]
    if not isinstance(channels, int) or weights is None:
        return False
    columns = weights.shape[-1]
    lines = image.rank == 4 and conv.attributes["groups"] == 1 and isinstance(columns, int) and columns > 2
    short = image.dtype.is_float and image.dtype.bits == 16 and channels * image.dtype.itemsize <= kernels.copied_pixel
    return channels < kernels.copied_channels or (lines and short)


def _halves(drafts: Drafts, draft: Draft) -> list[int] | None:
    """The two slices that read a group's one output, if they are the left and the right half of its columns."""
    (output,) = drafts.outputs(draft)
    readers = drafts.readers.get(output, [])
    nodes = [drafts.nodes[index] for index in readers]
    last, columns = output.rank - 1, output.shape[-1]
    if output in drafts.results or len(nodes) != 2 or not isinstance(columns, int) or columns % 2:
        return None
    if any(node.op != "slice" or node.attributes["axis"] != last or node.attributes["step"] != 1 for node in nodes):
        return None
    bounds = sorted((node.attributes["start"], node.attributes["stop"]) for node in nodes)
    return list(readers) if bounds == [(0, columns // 2), (columns // 2, columns)] else None


def _take_prologue(drafts: Drafts, draft: Draft, remarks: list[str]) -> None:
    """Merge elementwise nodes that only this reduction or transform reads and that have its input's shape.

    Others may read the input itself: a residual sum is stored by the norm that reads it, from registers.
    """
    assert draft.anchor is not None
    anchor = drafts.nodes[draft.anchor]
    source = anchor.inputs[0]
    assert source is not None
    merged: list[str] = []
    storable = {source}  # what the kernel may store, too: its input before and after a change of type
    waiting = [source]
    while waiting:
        value = waiting.pop()
        index = drafts.producer(value)
        if index is None or len(drafts.owner[index].nodes) > 1:
            continue
        node = drafts.nodes[index]
        looked_up = value in storable and node.op == "gather" and draft.kind == "reduction"  # an embedding
        if drafts.owner[index].kind != "elementwise" and not looked_up:
            continue
        if not drafts.have_room(draft, drafts.owner[index]):
            break
        readers = drafts.readers.get(value, [])
        shared = value in drafts.results or any(reader not in draft.nodes for reader in readers)
        if shared and not (value in storable and is_whole_row(anchor, drafts.kernels)):
            continue
        inputs = [item for item in node.inputs if item is not None]
        storable = set(inputs) if value in storable and node.op == "cast" and not shared else set()
        if node.output.shape != source.shape or drafts.depends_through_others(draft, drafts.owner[index]):
            continue
        drafts.merge(draft, drafts.owner[index])
        merged.append(node.op)
        waiting += inputs
    if merged:
        remarks.append(f"{anchor.op} %{anchor.output.name} takes {', '.join(reversed(merged))} as its prologue")


def _take_operands(drafts: Drafts, draft: Draft) -> None:
    """Merge elementwise nodes, and reshapes between them, that nobody but a scatter reads."""
    waiting = [item for index in draft.nodes for item in drafts.nodes[index].inputs]
    while waiting:
        value = waiting.pop()
        index = drafts.producer(value)
        if value is None or index is None or value in drafts.results or len(drafts.owner[index].nodes) > 1:
            continue
        node, other = drafts.nodes[index], drafts.owner[index]
        if other.kind != "elementwise" and node.op != "reshape" or not set(drafts.readers[value]) <= draft.nodes:
            continue
        if drafts.may_merge(other, draft):
            drafts.merge(draft, other)
            waiting += node.inputs


# 3: elementwise loops --------------------------------------------------------------------------------


def _join_elementwise(drafts: Drafts) -> None:
    """Merge each elementwise node with the groups of the same shape that feed it."""
    for index, node in enumerate(drafts.nodes):
        if drafts.owner[index].kind != "elementwise":
            continue
        for item in node.inputs:
            source = drafts.producer(item)
            if source is None:
                continue
            earlier, later = drafts.owner[source], drafts.owner[index]
            if earlier is later or earlier.kind != "elementwise":
                continue
            if _joins(drafts, source, node) and drafts.may_merge(earlier, later):
                drafts.merge(earlier, later)


def _join_siblings(drafts: Drafts) -> None:
    """Merge independent elementwise groups of one shape that read the same tensor."""
    for value, readers in drafts.readers.items():
        if value.rank == 0 or value in drafts.graph.constants:
            continue
        first: dict[tuple, Draft] = {}
        for reader in readers:
            draft, shape = drafts.owner[reader], drafts.nodes[reader].output.shape
            if draft.kind != "elementwise":
                continue
            other = first.setdefault(shape, draft)
            if other is not draft and drafts.may_merge(other, draft):
                drafts.merge(other, draft)


def _joins(drafts: Drafts, source: int, node: Node) -> bool:
    """Same shape; or a smaller one that nobody else reads and that is cheap to compute for each element."""
    producer = drafts.nodes[source]
    if producer.output.shape == node.output.shape:
        return True
    others = [reader for reader in drafts.readers[producer.output] if drafts.nodes[reader] is not node]
    if others or producer.output in drafts.results or len(drafts.owner[source].nodes) > 1:
        return False
    return producer.op not in EXPENSIVE


# The result ------------------------------------------------------------------------------------------


def _ordered(drafts: Drafts, remarks: list[str]) -> list[Group]:
    """The groups that compute something needed, each after those that it reads from."""
    needed = drafts.live()
    waits: dict[int, set[int]] = {}
    unlocks: dict[int, list[Draft]] = {}
    by_id = {id(draft): draft for draft in needed}
    for draft in needed:
        sources = {id(drafts.owner[i]) for i in map(drafts.producer, drafts.inputs(draft)) if i is not None}
        sources |= _readers_before_update(drafts, draft, by_id)
        waits[id(draft)] = sources - {id(draft)}
        for source in waits[id(draft)]:
            unlocks.setdefault(source, []).append(draft)
    ready = [(draft.last, id(draft)) for draft in needed if not waits[id(draft)]]
    heapq.heapify(ready)
    groups: list[Group] = []
    while ready:
        _, key = heapq.heappop(ready)
        groups.append(_group(drafts, by_id[key], needed[by_id[key]], len(groups)))
        for reader in unlocks.get(key, ()):
            waits[id(reader)].discard(key)
            if not waits[id(reader)]:
                heapq.heappush(ready, (reader.last, id(reader)))
    if len(groups) != len(needed):
        raise AssertionError("fusion made groups that wait for each other")
    return groups


def _readers_before_update(drafts: Drafts, draft: Draft, needed: dict[int, Draft]) -> set[int]:
    """Groups that read a mutated input must run before the group that makes its new value, which is
    written in place; readers that depend on the new value are left out (the engine copies then)."""
    before: set[int] = set()
    for target, value in drafts.graph.mutations.items():
        index = drafts.producer(value)
        if index is None or drafts.owner[index] is not draft:
            continue
        for reader in needed.values():
            if reader is not draft and target in drafts.inputs(reader) and not drafts.depends(reader, draft):
                before.add(id(reader))
    return before


def _group(drafts: Drafts, draft: Draft, outputs: list[Value], number: int) -> Group:
    """The finished group: what leads to the anchor, the anchor, what follows it."""
    members = drafts.members(draft)
    anchor = None if draft.anchor is None else drafts.nodes[draft.anchor]
    if draft.anchor is not None:
        leading = _ancestors(drafts, draft.anchor, set(members))
        members = [*sorted(leading), draft.anchor, *(i for i in members if i not in leading and i != draft.anchor)]
    nodes = [drafts.nodes[index] for index in members]
    own = [node.op for index, node in zip(members, nodes, strict=True) if index in draft.nodes]
    name = f"{number:03d}-{'-'.join(own[:4])}{'-etc' if len(own) > 4 else ''}"
    return Group(draft.kind, nodes, drafts.inputs(draft), outputs, anchor, name)


def _ancestors(drafts: Drafts, index: int, members: set[int]) -> set[int]:
    """The members that node `index` needs."""
    found: set[int] = set()
    waiting = [index]
    while waiting:
        for item in drafts.nodes[waiting.pop()].inputs:
            source = drafts.producer(item)
            if source is not None and source in members and source not in found:
                found.add(source)
                waiting.append(source)
    return found
