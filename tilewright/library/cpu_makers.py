"""The makers of candidates for CPUs, by the class of a fused group."""

from __future__ import annotations

from functools import partial

from tilewright.graph.core import Graph
from tilewright.graph.fusion import Group
from tilewright.library.attention.cpu import attention_candidates
from tilewright.library.attention.paged import paged_attention_candidates
from tilewright.library.candidate import Candidate
from tilewright.library.choice.portable import choice
from tilewright.library.convolution.cpu.candidates import convolution_candidates
from tilewright.library.excitation.portable import separate_excitation
from tilewright.library.fourier.cpu import fourier_candidates
from tilewright.library.generated.elementwise import elementwise
from tilewright.library.grouped.portable import grouped_candidates
from tilewright.library.makers import Maker, Makers
from tilewright.library.matmul.cpu import matmul_candidates
from tilewright.library.matmul.cpu_gate import halves_candidates
from tilewright.library.matmul.dequantized import dequantized_candidates
from tilewright.library.movement.portable import movement
from tilewright.library.pool.portable import pool_candidates
from tilewright.library.recurrent.cpu import cpu_recurrent_candidates
from tilewright.library.reduce.cpu import cpu_reduction
from tilewright.library.rows.cpu import cpu_rows
from tilewright.library.rows.cpu_program import cpu_row_program
from tilewright.library.rows.problem import ROW_OPERATIONS
from tilewright.library.slots import gate_halves
from tilewright.library.sort.cpu import sort_candidates
from tilewright.library.trees.cpu import tree_candidates
from tilewright.targets.base import Target


def _contraction(group: Group, graph: Graph, target: Target) -> list[Candidate]:
    assert group.anchor is not None
    makers = {
        "matmul": matmul_candidates, "dequantized_matmul": dequantized_candidates,
        "grouped_matmul": grouped_candidates, "conv": convolution_candidates,
    }  # fmt: skip
    if gate_halves(group) is not None:
        return halves_candidates(group, graph, target)
    return makers[group.anchor.op](group, graph, target)


def _reduction(group: Group, graph: Graph, target: Target) -> list[Candidate]:
    assert group.anchor is not None
    maker = cpu_rows if group.anchor.op in ROW_OPERATIONS else cpu_reduction
    return maker(group, graph, target)


def cpu_makers(candidates: Maker) -> Makers:
    """The table; `candidates` are those of any group, for kernels that stand for several."""
    own: dict[str, Maker] = {
        **dict.fromkeys(("elementwise", "source", "view"), elementwise),
        "movement": movement,
        "reduction": _reduction,
        "rows": partial(cpu_row_program, candidates=candidates),
        "sorting": sort_candidates,
        "contraction": _contraction,
        "excitation": partial(separate_excitation, candidates=candidates),
        "attention": attention_candidates,
        "paged": paged_attention_candidates,
        "pool": pool_candidates,
        "choice": choice,
        "recurrent": cpu_recurrent_candidates,
        "transform": fourier_candidates,
        "trees": tree_candidates,
    }
    return Makers(own)
