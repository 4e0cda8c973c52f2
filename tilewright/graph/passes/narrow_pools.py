"""Pools whose result is quantized: the preceding kernel quantizes its results, and the pool moves bytes.

    cast(clip(round(max_pool(x) scale)))  ->  max_pool(cast(clip(round(x scale))))

What comes between keeps the order of numbers, so that the largest of a window stays the largest.  A window with a NaN
has another result: the pool of floats gives NaN, which is cast to an integer; here the NaN is cast first, and larger
numbers of the window win over that integer.  A remark says so for each pool.
"""

from __future__ import annotations

from tilewright.graph.core import Node, Value
from tilewright.graph.quantization import integer_range
from tilewright.graph.rewrite import GraphRewriter, Rules, computed_constant

_RISING = frozenset({"round", "floor", "clip", "relu"})  # with numbers that are the same everywhere


def _quantized_first(node: Node, rewriter: GraphRewriter) -> Value | None:
    """The pool of what is made of its input, where that is narrower, and read of nothing else."""
    chain: list[Node] = [node]
    while (pool := rewriter.producer(chain[-1].inputs[0], "max_pool")) is None:
        before = rewriter.producer(chain[-1].inputs[0])
        if before is None or rewriter.uses(before.output) > 1 or not _rises(before, rewriter):
            return None
        chain.append(before)
    source = pool.inputs[0]
    narrower = source is not None and node.output.dtype.bits < source.dtype.bits
    if not narrower or len(pool.outputs) > 1 or rewriter.uses(pool.output) > 1 or rewriter.producer(source) is None:
        return None  # what the model is given is read once, by the pool
    rewriter.remark(
        f"max_pool %{pool.output.name}: numbers are quantized before the largest of each window is taken; a NaN counts "
        "as the integer that it becomes, and larger numbers win over it"
    )
    for each in reversed(chain):
        source = rewriter.op(each.op, [source, *each.inputs[1:]], **each.attributes)
    return rewriter.op("max_pool", [source], **pool.attributes)


def _rises(node: Node, rewriter: GraphRewriter) -> bool:
    """Whether a node gives no smaller number for a larger one, element by element."""
    if node.op == "cast":
        return node.output.dtype.is_float
    if node.op in _RISING:
        return all(item is None or item.rank == 0 for item in node.inputs[1:])
    if node.op in ("add", "subtract"):
        return node.inputs[1] is not None and node.inputs[1].rank == 0
    if node.op != "multiply":
        return False
    return _is_positive(node.inputs[1], rewriter)


def _is_positive(value: Value | None, rewriter: GraphRewriter) -> bool:
    """Whether a value is one known number above zero."""
    known = computed_constant(value, rewriter)
    return known is not None and known.ndim == 0 and bool(known > 0)


def _narrowing_cast(node: Node, rewriter: GraphRewriter) -> Value | None:
    """To bytes, of numbers that have been brought into their range: others would come round."""
    dtype, clip = node.output.dtype, rewriter.producer(node.inputs[0], "clip")
    if clip is None or not dtype.is_integer or dtype.bits != 8:
        return None
    (least, most), low, high = integer_range(dtype), clip.attributes["low"], clip.attributes["high"]
    if low is None or high is None or low < least or high > most:
        return None
    return _quantized_first(node, rewriter)


def _quantize(node: Node, rewriter: GraphRewriter) -> Value | None:
    scale, zero = (*node.inputs[1:], None)[:2]
    if not node.output.dtype.is_integer or (zero is not None and zero.rank > 0) or not _is_positive(scale, rewriter):
        return None
    return _quantized_first(node, rewriter)


NARROW_POOLS: Rules = {"cast": [_narrowing_cast], "quantize": [_quantize]}
