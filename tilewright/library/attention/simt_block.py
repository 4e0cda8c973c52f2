"""Attention whose queries and keys are one block (windows of images): rows are read from wherever they lie."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tilewright.graph.core import Graph, Node
from tilewright.graph.fusion import Group, is_block_attention
from tilewright.language.function import SourceFunction
from tilewright.library.attention.simt_kernel import block_attention as kernel
from tilewright.library.attention.slots import attention_slots
from tilewright.library.attention.strided import bias_strides
from tilewright.library.binding import bind_extra, bind_sizes
from tilewright.library.candidate import Candidate, KernelCall, Operand, PackedConstant, Stage
from tilewright.library.cost import Cost, expected
from tilewright.library.generated.elementwise import total_bytes
from tilewright.library.generated.expressions import language_type
from tilewright.library.generated.generate import next_power_of_2
from tilewright.library.generated.index import Index, flatten
from tilewright.library.generated.slot_functions import moved_coordinates, place_function
from tilewright.library.generated.source import ExtraReferences
from tilewright.library.generated.trace import ExpressionTracer, Load, axes_of
from tilewright.library.packing import lines_recipe
from tilewright.symbolic import Size, fits_32_bits, lift, product, simplify
from tilewright.targets.base import Target

_SMALLEST = 16  # rows, columns and depth of an instruction
_BIASES_AT_ONCE = 8  # elements that a thread loads of a line of biases
_RESIDENT = 5  # CTAs on a multiprocessor
_CLOCKS = 5000.0  # from the first load of a CTA to its last store


def block_attention(group: Group, graph: Graph, target: Target) -> list[Candidate]:
    """One candidate where a block holds all queries and keys of a head, else none."""
    anchor = group.anchor
    assert anchor is not None
    q, k, v = anchor.inputs[:3]
    assert q is not None and k is not None and v is not None
    head, value_head = q.shape[3], v.shape[3]
    known = (
        isinstance(head, int) and isinstance(value_head, int) and max(head, value_head) <= target.kernels.register_head
    )
    if not is_block_attention(anchor, target.kernels) or not known:
        return []
    extra = ExtraReferences()
    tracer = ExpressionTracer(group.prologue, graph.constants)
    sources: dict[str, Operand] = {}
    places: dict[str, SourceFunction] = {}  # and the epilogue
    for name, value in (("q", q), ("k", k), ("v", v)):
        found = tracer.trace(value, axes_of(value.shape))
        if not isinstance(found, Load) or found.guards or not _is_dense(found.index):
            return []
        sources[name], places[f"PLACE_{name.upper()}"] = found.value, place_function(found.index, value.shape, extra)
    written = _written(anchor, group.epilogue)
    if written is None:
        return []
    places["PLACE_OUT"] = place_function(written, anchor.output.shape, extra)
    places["EPILOGUE"] = attention_slots(group, graph, extra).function
    return [_candidate(group, graph, sources, places, extra, target)]


def _is_dense(index: Index) -> bool:
    """Whether neighbours of a row are neighbours in memory, and index tensors are not asked."""
    inner = [nested for nested in index.nested() if nested is not index]
    return index.coefficient(3) == 1 and index.is_followed() and all(nested.coefficient(3) == 0 for nested in inner)


def _written(anchor: Node, epilogue: Sequence[Node]) -> Index | None:
    """Where an element of the anchor's result is stored, by the reshapes and permutes among what follows it."""
    coordinates, shape = axes_of(anchor.output.shape), anchor.output.shape
    for node in epilogue:
        coordinates, shape = moved_coordinates(node, coordinates) or coordinates, node.output.shape
    index = flatten(coordinates, shape)
    return index if _is_dense(index) else None


def _candidate(
    group: Group, graph: Graph, sources: dict[str, Operand], places: dict[str, SourceFunction], extra: ExtraReferences,
    target: Target,
) -> Candidate:  # fmt: skip
    anchor = group.anchor
    assert anchor is not None
    q, k, v = anchor.inputs[:3]
    assert q is not None and k is not None and v is not None
    batch, heads, queries, _ = q.shape
    keys = k.shape[2]
    assert isinstance(queries, int) and isinstance(keys, int)
    operands: dict[str, Operand] = {**sources, "bias": sources["q"], "out": group.outputs[0]}
    sizes: dict[str, Size] = {"heads": heads, "group": simplify(lift(heads) // k.shape[1])}
    constants: dict[str, Any] = {
        **places, "QUERIES": queries, "KEYS": keys, "HEAD": q.shape[3], "VALUE_HEAD": v.shape[3],
        "BLOCK_S": max(_SMALLEST, next_power_of_2(queries)), "BLOCK_T": max(_SMALLEST, next_power_of_2(keys)),
        "BLOCK_D": _covering(q.shape[3]), "BLOCK_V": _covering(v.shape[3]),
        "SCALE": float(anchor.attributes["scale"]), "BIAS": len(anchor.inputs) > 3 and anchor.inputs[3] is not None,
        "WIDE": not all(fits_32_bits(product(value.shape)) for value in (*group.inputs, *group.outputs)),
        "TYPE": language_type(q.dtype), "BIAS_KEYS": keys,
    }  # fmt: skip
    if constants["BIAS"]:
        bias = anchor.inputs[3]
        assert bias is not None
        strides = bias_strides(bias)
        operands["bias"] = bias
        if bias in graph.constants and strides[3] == 1:
            line = -(-keys // _BIASES_AT_ONCE) * _BIASES_AT_ONCE
            operands["bias"] = PackedConstant(bias, lines_recipe(line))
            constants["BIAS_KEYS"] = line
            strides = tuple(step if step in (0, 1) else simplify(lift(step) // keys * line) for step in strides)
        sizes |= dict(zip(("bias_batch", "bias_head", "bias_row", "bias_key"), strides, strict=True))
    else:
        sizes |= dict.fromkeys(("bias_batch", "bias_head", "bias_row", "bias_key"), 0)
    types: dict[str, str] = {}
    bind_sizes(sizes, operands, types, constants)
    bind_extra(extra, operands, types)
    count = simplify(lift(batch) * heads)
    call = KernelCall(kernel, operands, types, constants, (count, 1, 1), threads=_threads(constants))
    machine = target.machine()
    moved = total_bytes(group.inputs, group.outputs)
    flops = simplify(lift(product(q.shape)) * keys * 4)
    waves = -(-expected(count) // (machine.processors * _RESIDENT))
    seconds = machine.launches.kernel + max(expected(moved) / machine.memory, waves * _CLOCKS / machine.clock)
    reasons = {"block": f"{queries} queries x {keys} keys", "bias": "full" if constants["BIAS"] else "none"}
    return Candidate("block attention", (Stage((call,)),), Cost(moved, flops, seconds), (), reasons)


def _covering(width: Size) -> int:
    assert isinstance(width, int)
    return max(_SMALLEST, next_power_of_2(width))


def _threads(constants: dict[str, Any]) -> int:
    """Two for each query: those of sixteen share instructions of tensor cores."""
    return 2 * max(_SMALLEST, int(constants["BLOCK_S"]))
