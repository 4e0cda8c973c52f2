"""Sums of a residual stream in 16 bits: computed by the norms that read them, and rounded half as often.

A transformer's layer adds to its stream twice: what attention gives, then what the other branch gives.

    x1 = x0 + attention(norm(x0))        x2 = x1 + branch(norm(x1))

A product could add x0 to its result as its epilogue.  It is left to the norm instead, which reads one tensor more: a
product waits for such loads at the end of each tile, a norm has nothing to do meanwhile.  On an H200 BERT-base takes
.94 to .95 of the time so with 8 and 64 texts, Whisper's encoder and ViT-B/16 .97 and .99.

Stored in float16, each sum is rounded, and in a deep model of small branches these roundings are most of the error.
Here x1 is not stored: both norms read x0 and what attention gave, and add them in float32, in registers. In bfloat16,
whose products are rounded as coarsely as these sums, that gains 2 to 6 % of the error; it is done for few rows, as
decoding has, where it costs no time.
"""

from __future__ import annotations

from tilewright.dtypes import bfloat16, float16
from tilewright.graph.core import Value
from tilewright.graph.passes.fuse_draft import Draft, Drafts, is_whole_row
from tilewright.symbolic import product, upper_bound

_FEW_BYTES = 1 << 20  # of a sum in bfloat16 that is left to a norm


def leave_sums_to_norms(drafts: Drafts, remarks: list[str]) -> None:
    """Take residual sums out of the epilogues of products, where a norm reads them; let every second one be computed
    by the two norms that need it."""
    left: set[int] = set()
    unstored: set[int] = set()
    for draft in [draft for draft in drafts.all() if draft.kind == "contraction"]:
        norm, tail = _residual(drafts, draft)
        if norm is None:
            continue
        drafts.restore(draft, (draft.nodes - set(tail), set(draft.copies)))
        total = drafts.nodes[tail[0]]
        remarks.append(f"%{total.output.name} is left to the norm that reads it")
        left.add(tail[0])
        for index in left.intersection(map(drafts.producer, total.inputs)):
            once = unstored.isdisjoint(map(drafts.producer, drafts.nodes[index].inputs))  # else one more tensor to read
            if once and _is_for_two_norms(drafts, index, tail[0]):
                norm.copies.add(index)
                unstored.add(index)
                remarks.append(f"%{drafts.nodes[index].output.name} is computed twice, which leaves it unrounded")


def _residual(drafts: Drafts, draft: Draft) -> tuple[Draft | None, list[int]]:
    """A norm that reads a product's result, and the end of the product's epilogue that it can compute: the addition of
    a tensor of this shape, and what follows that."""
    outputs = drafts.outputs(draft)
    norm = _norm_of(drafts, outputs[0]) if len(outputs) == 1 and _is_worth_it(outputs[0]) else None
    if norm is None:
        return None, []
    tail: list[int] = []
    index = drafts.producer(outputs[0])
    while index is not None and index in draft.nodes and index != draft.anchor:
        node = drafts.nodes[index]
        tail.insert(0, index)
        inputs = [item for item in node.inputs if item is not None]
        inside = [item for item in inputs if drafts.producer(item) in draft.nodes]
        outside = [item for item in inputs if item not in inside]
        if len(inside) != 1 or drafts.readers[inside[0]] != [index]:
            break
        if node.op == "add" and [item.shape for item in outside] == [node.output.shape]:
            return (None, []) if outside[0] in drafts.graph.constants else (norm, tail)
        if outside:
            break
        index = drafts.producer(inside[0])
    return None, []


def _is_worth_it(value: Value) -> bool:
    few = value.dtype == bfloat16 and upper_bound(product(value.shape)) * value.dtype.itemsize <= _FEW_BYTES
    return few or value.dtype == float16


def _norm_of(drafts: Drafts, value: Value) -> Draft | None:
    """The one norm along whole rows that reads a value."""
    readers = [reader for reader in drafts.readers.get(value, []) if is_whole_row(drafts.nodes[reader], drafts.kernels)]
    owner = drafts.owner[readers[0]] if len(readers) == 1 else None
    return owner if owner is not None and owner.kind == "reduction" else None  # others are computed by products


def _is_for_two_norms(drafts: Drafts, index: int, reader: int) -> bool:
    """Whether only a norm and `reader` read the sum at `index`."""
    value = drafts.nodes[index].output
    others = [other for other in drafts.readers[value] if other != reader]
    return value not in drafts.results and len(others) == 1 and is_whole_row(drafts.nodes[others[0]], drafts.kernels)
