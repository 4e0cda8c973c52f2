"""Squeeze and excitation on GPUs: one CTA for an image, behind sums of parts where images are large."""

from __future__ import annotations

from typing import Any

from tilewright.graph.core import Graph, Node, Value
from tilewright.graph.fusion import Group
from tilewright.library.binding import bind_extra, bind_sizes
from tilewright.library.candidate import Candidate, KernelCall, Operand, PackedConstant, Stage
from tilewright.library.convolution.operands import with_bias_in_epilogue
from tilewright.library.cost import Cost, expected
from tilewright.library.excitation.problem import parts_of
from tilewright.library.excitation.simt_kernel import excite
from tilewright.library.generated.elementwise import total_bytes
from tilewright.library.generated.expressions import compute_type, language_type
from tilewright.library.generated.generate import next_power_of_2
from tilewright.library.generated.slot_functions import epilogue_function
from tilewright.library.generated.source import ExtraReferences
from tilewright.library.packing import order_recipe
from tilewright.library.reduce.simt import gpu_reduction
from tilewright.symbolic import Size, product
from tilewright.targets.base import Target

_ROWS = 256  # of an image that its CTA adds up by itself
_EXCITATION_THREADS = 512
_ELEMENTS = 1 << 14  # of a block: 32 a thread
_EXCITATION_CLOCKS = 1200.0  # from the loads of a block to its sums
_MOST_EXCITED_CHANNELS = 2048


def gpu_excitation(group: Group, graph: Graph, target: Target) -> list[Candidate]:
    """One candidate where a block covers the channels, else none."""
    parts = parts_of(group)
    source, w1, w2 = parts.mean.inputs[0], parts.first.inputs[1], parts.second.inputs[1]
    assert source is not None and w1 is not None and w2 is not None
    hidden, channels, columns = w1.shape[0], w1.shape[1], w2.shape[0]
    assert isinstance(hidden, int) and isinstance(channels, int) and isinstance(columns, int)
    if max(channels, columns) > _MOST_EXCITED_CHANNELS:
        return []
    images, rows = source.shape[0], product(source.shape[1:-1])
    extra = ExtraReferences()
    functions = {}
    for name, node, nodes, result in (("FIRST", parts.first, parts.between, parts.hidden),
                                      ("SECOND", parts.second, parts.after, group.outputs[0])):  # fmt: skip
        made = with_bias_in_epilogue(Group("contraction", [node, *nodes], [], [result], node))
        assert made.anchor is not None
        functions[name] = epilogue_function(made.epilogue, made.anchor.output, result, graph.constants, extra)
    stages: tuple[Stage, ...] = ()
    temporaries: tuple[Value, ...] = ()
    machine = target.machine()
    seconds = machine.launches.kernel
    pieces = _pieces(rows)
    if pieces > 1:
        assert isinstance(rows, int)
        before, partial = _sums(group, source, pieces, rows // pieces, graph, target)
        source, rows, stages, temporaries = partial, pieces, before.stages, (partial, *before.temporaries)
        seconds += before.cost.seconds
    block_c, block_o = next_power_of_2(channels), next_power_of_2(columns)
    block_h = min(next_power_of_2(hidden), max(1, _ELEMENTS // max(block_c, block_o)))
    block_r = min(next_power_of_2(expected(rows)), max(1, _ELEMENTS // block_c))
    constants: dict[str, Any] = {
        "CHANNELS": channels, "HIDDEN": hidden, "COLUMNS": columns, "BLOCK_R": block_r, "BLOCK_C": block_c,
        "BLOCK_H": block_h, "BLOCK_O": block_o, "TYPE": language_type(group.outputs[0].dtype), **functions,
    }  # fmt: skip
    operands: dict[str, Operand] = {
        "x": source, "w1": w1, "w2": PackedConstant(w2, order_recipe((*range(2, w2.rank), 1, 0))),
        "out": group.outputs[0],
    }  # fmt: skip
    types: dict[str, str] = {}
    bind_sizes({"rows": rows}, operands, types, constants)
    bind_extra(extra, operands, types)
    call = KernelCall(excite, operands, types, constants, (images, 1, 1), threads=_EXCITATION_THREADS)
    steps = -(-expected(rows) // block_r) + -(-hidden // block_h)
    seconds += steps * _EXCITATION_CLOCKS / machine.clock * -(-expected(images) // machine.processors)
    cost = Cost(total_bytes(group.inputs, group.outputs), 2 * product(group.inputs[0].shape), seconds)
    reasons = {"pieces": pieces, "block": f"{block_r} rows, {block_h} of {hidden} hidden"}
    return [Candidate("excitation", (*stages, Stage((call,))), cost, temporaries, reasons)]


def _pieces(rows: Size) -> int:
    """Equal parts of an image's pixels, whose sums other CTAs take; 1 where a CTA had better do it alone."""
    if not isinstance(rows, int) or rows <= _ROWS:
        return 1
    return next((count for count in range(2, rows + 1) if rows % count == 0 and rows // count <= _ROWS), 1)


def _sums(
    group: Group, source: Value, pieces: int, length: int, graph: Graph, target: Target
) -> tuple[Candidate, Value]:
    """Means of equal parts of images, [images, pieces, channels]."""
    images, channels = source.shape[0], source.shape[-1]
    view = Value(f"{source.name}.pieces", source.dtype, (images, pieces, length, channels))
    partial = Value(f"{group.name}.means", compute_type(source.dtype), (images, pieces, channels))
    split = Node("reshape", [source], [view], {"shape": view.shape}, "")
    mean = Node("reduce_mean", [view], [partial], {"axes": (2,), "keepdims": False}, "")
    part = Group("reduction", [split, mean], [source], [partial], mean, f"{group.name}.means")
    found = gpu_reduction(part, graph, target)
    return min(found, key=lambda candidate: candidate.cost.seconds), partial
