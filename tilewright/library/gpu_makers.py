"""The makers of candidates for GPUs, by the class of a fused group."""

from __future__ import annotations

from functools import partial

from tilewright.graph.core import Graph
from tilewright.graph.fusion import Group
from tilewright.library.attention.paged_simt import gpu_paged_attention
from tilewright.library.attention.simt import gpu_attention
from tilewright.library.candidate import Candidate
from tilewright.library.choice.portable import choice
from tilewright.library.convolution.simt.candidates import gpu_convolution
from tilewright.library.excitation.portable import separate_excitation
from tilewright.library.excitation.simt import gpu_excitation
from tilewright.library.generated.elementwise import elementwise
from tilewright.library.grouped.simt import gpu_grouped
from tilewright.library.makers import Maker, Makers
from tilewright.library.matmul.hopper.block_scaled import hopper_block_scaled
from tilewright.library.matmul.hopper.dequantized import hopper_dequantized
from tilewright.library.matmul.projection import gpu_projection
from tilewright.library.matmul.simt import gpu_contraction
from tilewright.library.movement.portable import movement
from tilewright.library.pool.simt import gpu_pool
from tilewright.library.recurrent.portable import recurrent_candidates
from tilewright.library.reduce.simt import gpu_reduction
from tilewright.library.rows.problem import ROW_OPERATIONS
from tilewright.library.rows.simt import gpu_rows
from tilewright.library.rows.simt_program import gpu_row_program, gpu_rows_by_memory
from tilewright.library.sort.simt import gpu_sorting
from tilewright.library.vendor import library_candidates
from tilewright.targets.base import Target


def _contraction(group: Group, graph: Graph, target: Target) -> list[Candidate]:
    assert group.anchor is not None
    makers = {
        "matmul": gpu_contraction, "dequantized_matmul": hopper_dequantized, "grouped_matmul": gpu_grouped,
        "conv": gpu_convolution, "block_scaled_matmul": hopper_block_scaled,
    }  # fmt: skip
    return makers[group.anchor.op](group, graph, target)


def _reduction(group: Group, graph: Graph, target: Target) -> list[Candidate]:
    assert group.anchor is not None
    maker = gpu_rows if group.anchor.op in ROW_OPERATIONS else gpu_reduction
    return [*maker(group, graph, target), *gpu_rows_by_memory(group, graph, target)]


def _excitation(group: Group, graph: Graph, target: Target, candidates: Maker) -> list[Candidate]:
    return [*gpu_excitation(group, graph, target), *separate_excitation(group, graph, target, candidates)]


def gpu_makers(candidates: Maker) -> Makers:
    """The table; `candidates` are those of any group, for kernels that stand for several."""
    own: dict[str, Maker] = {
        **dict.fromkeys(("elementwise", "source", "view"), elementwise),
        "movement": movement,
        "reduction": _reduction,
        "rows": partial(gpu_row_program, candidates=candidates),
        "sorting": gpu_sorting,
        "contraction": _contraction,
        "projection": partial(gpu_projection, candidates=candidates),
        "excitation": partial(_excitation, candidates=candidates),
        "attention": gpu_attention,
        "paged": gpu_paged_attention,
        "pool": gpu_pool,
        "choice": choice,
        "recurrent": recurrent_candidates,
    }
    return Makers(own, {"contraction": library_candidates})
