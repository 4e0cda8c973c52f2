"""Products whose columns are heads of queries, keys and values, with the kernel that turns and stores these.

Between the product and attention a short kernel turns heads by their positions and writes keys and values to a cache:
of few tokens it takes 2 to 3 us, in which the memory gives nothing.  As one group both may be one kernel
(`library.matmul.projection`), or the two that they are otherwise.
"""

from __future__ import annotations

from tilewright.graph.passes.fuse_draft import Draft, Drafts
from tilewright.graph.projections import projection_of
from tilewright.symbolic import lower_bound


def join_projections(drafts: Drafts, remarks: list[str]) -> None:
    """Merge a product of 16-bit floats by constant weights with the only group that reads it, where that turns and
    stores its heads, and there may be few rows."""
    readers: dict[object, list[Draft]] = {}
    for draft in drafts.live():
        for value in drafts.inputs(draft):
            readers.setdefault(value, []).append(draft)
    for draft in list(drafts.live()):
        if draft.kind != "contraction" or draft.anchor is None:
            continue
        anchor, result = drafts.nodes[draft.anchor], drafts.nodes[draft.last].output
        later = readers.get(result, [])
        if not _is_projection(drafts, draft) or len(later) != 1 or later[0].kind != "elementwise":
            continue
        live = drafts.live()
        if live[draft] != [result] or result in drafts.results or not drafts.may_merge(draft, later[0]):
            continue
        members, stored = sorted({*drafts.members(draft), *drafts.members(later[0])}), live[later[0]]
        try:
            projection_of([drafts.nodes[index] for index in members], stored, anchor, drafts.graph)
        except NotImplementedError:
            continue
        drafts.merge(draft, later[0])
        draft.kind = "projection"
        remarks.append(f"matmul %{anchor.output.name} is a group with what turns and stores its heads")


def _is_projection(drafts: Drafts, draft: Draft) -> bool:
    """Whether kernels may store heads of a product."""
    assert draft.anchor is not None
    anchor = drafts.nodes[draft.anchor]
    if anchor.op != "matmul" or anchor.output.rank != 2 or draft.first != draft.anchor:
        return False
    weights, dtype = anchor.inputs[1], anchor.output.dtype
    few = lower_bound(anchor.output.shape[0]) <= drafts.kernels.projected_rows
    return few and weights in drafts.graph.constants and dtype.is_float and dtype.bits == 16
