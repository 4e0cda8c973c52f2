"""The makers of candidates for GPUs, by the class of a fused group."""

from __future__ import annotations

from collections.abc import Mapping

from tilewright.graph.core import Graph
from tilewright.graph.fusion import Group
from tilewright.library.attention.simt import gpu_attention
from tilewright.library.candidate import Candidate
from tilewright.library.convolution.simt.candidates import gpu_convolution
from tilewright.library.excitation.separate import separate_excitation
from tilewright.library.excitation.simt import gpu_excitation
from tilewright.library.generated.elementwise import elementwise
from tilewright.library.grouped.simt import gpu_grouped
from tilewright.library.matmul.hopper.dequantized import hopper_dequantized
from tilewright.library.matmul.simt import gpu_contraction
from tilewright.library.movement.candidates import movement
from tilewright.library.pool.simt import gpu_pool
from tilewright.library.recurrent.candidates import recurrent_candidates
from tilewright.library.rows.simt import gpu_reduction
from tilewright.library.rows.simt_program import gpu_row_program
from tilewright.library.select import Maker, VendorMaker, candidates
from tilewright.library.sort.simt import gpu_sorting
from tilewright.library.vendor import library_candidates
from tilewright.targets.base import Target


def _contraction(group: Group, graph: Graph, target: Target) -> list[Candidate]:
    assert group.anchor is not None
    makers = {
        "matmul": gpu_contraction, "dequantized_matmul": hopper_dequantized, "grouped_matmul": gpu_grouped,
        "conv": gpu_convolution,
    }  # fmt: skip
    return makers[group.anchor.op](group, graph, target)


def _excitation(group: Group, graph: Graph, target: Target) -> list[Candidate]:
    return [*gpu_excitation(group, graph, target), separate_excitation(group, graph, target, candidates)]


def _rows(group: Group, graph: Graph, target: Target) -> list[Candidate]:
    return gpu_row_program(group, graph, target, candidates)


MAKERS: Mapping[str, Maker] = {
    "elementwise": elementwise,
    "source": elementwise,
    "view": elementwise,
    "movement": movement,
    "reduction": gpu_reduction,
    "rows": _rows,
    "sorting": gpu_sorting,
    "contraction": _contraction,
    "excitation": _excitation,
    "attention": gpu_attention,
    "pool": gpu_pool,
    "recurrent": recurrent_candidates,
}
# The calls of a vendor's library, those that may be faster than the best of ours.
VENDOR_MAKERS: Mapping[str, VendorMaker] = {"contraction": library_candidates}
