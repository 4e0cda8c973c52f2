"""Attention groups whose operands are read and written by strides: views around the anchor become strides, what is
none is copied."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from tilewright.graph.core import Graph, Node, Value
from tilewright.graph.fusion import Group, read_outside
from tilewright.graph.views import StridedView, dense_view, follow_all
from tilewright.library.attention.slots import computes, trailing_movement
from tilewright.library.binding import bind_sizes
from tilewright.library.candidate import Candidate, KernelCall, Operand, Stage
from tilewright.library.cost import estimate
from tilewright.library.generated.elementwise import total_bytes
from tilewright.library.generated.expressions import language_type
from tilewright.library.generated.generate import Result, elementwise_call
from tilewright.symbolic import Size, lift, product, simplify
from tilewright.targets.base import Target

# Makes the launches of attention: q, operands, types, constants, number of keys.
CallMaker = Callable[[Value, dict[str, Operand], dict[str, str], dict[str, Any], Size], list[KernelCall]]


@dataclass(frozen=True)
class Copies:
    """Stages before and after attention that move what it can't read or write by strides, and what they write."""

    before: tuple[Stage, ...] = ()
    after: tuple[Stage, ...] = ()
    temporaries: tuple[Value, ...] = ()

    def around(self, candidate: Candidate) -> Candidate:
        """A candidate for the operands that were copied, as one for those of the group."""
        stages = (*self.before, *candidate.stages, *self.after)
        return replace(candidate, stages=stages, temporaries=(*self.temporaries, *candidate.temporaries))


def with_strided_operands(group: Group, graph: Graph, target: Target, quantizes: bool = False) -> tuple[Group, Copies]:
    """A group that reads and writes by strides alone, and the copies of what its movement leaves otherwise.

    Arithmetic behind the anchor stays in a group whose kernel `quantizes`.
    """
    anchor = group.anchor
    assert anchor is not None
    producers = {output: node for node in group.prologue for output in node.outputs}
    cuts = [cut for value in anchor.inputs[:3] if value is not None and (cut := _cut(value, producers))]
    copied = {cut: _leading(cut, producers) for cut in cuts}
    nodes = [node for node in group.nodes if not any(node in leading for leading in copied.values())]
    before = tuple(
        Stage((elementwise_call(leading, [Result(cut, cut)], graph.constants, target),))
        for cut, leading in copied.items()
    )
    after: tuple[Stage, ...] = ()
    temporaries, outputs = tuple(copied), group.outputs
    if not _writes_by_strides(group) or (computes(group) and not quantizes):
        (out,) = group.outputs
        after = (Stage((elementwise_call(group.epilogue, [Result(out, out)], graph.constants, target),)),)
        temporaries, outputs = (*temporaries, anchor.output), [anchor.output]
        nodes = [node for node in nodes if node not in group.epilogue]
    moved = Group(group.kind, nodes, read_outside(nodes), outputs, anchor, group.name)
    return moved, Copies(before, after, temporaries)


def _cut(value: Value, producers: Mapping[Value, Node]) -> Value | None:
    """The value in the chain that makes an operand from which on it is a strided view; None where all of it is."""
    chain = _chain(value, producers)
    for start in range(len(chain) + 1):
        source = chain[start].inputs[0] if start < len(chain) else value
        assert source is not None
        view = follow_all(dense_view(source.shape), chain[start:])
        if view is not None and view.strides[-1] == 1:
            return source if start else None
    raise AssertionError("a tensor is a view of itself")


def _chain(value: Value, producers: Mapping[Value, Node]) -> list[Node]:
    """The nodes that lead from a tensor in memory to a value, by their first inputs."""
    chain: list[Node] = []
    node = producers.get(value)
    while node is not None:
        chain.insert(0, node)
        source = node.inputs[0]
        node = None if source is None else producers.get(source)
    return chain


def _leading(value: Value, producers: Mapping[Value, Node]) -> list[Node]:
    """All nodes that a value needs, in their order."""
    found: dict[Node, None] = {}
    waiting = [value]
    while waiting:
        node = producers.get(waiting.pop())
        if node is not None and node not in found:
            found[node] = None
            waiting += [item for item in node.inputs if item is not None]
    return [node for node in dict.fromkeys(producers.values()) if node in found]


def _writes_by_strides(group: Group) -> bool:
    """Whether the movement after the anchor is one permute of heads and queries, followed by reshapes."""
    moves = trailing_movement(group)
    ops = [node.op for node in moves]
    if "permute" not in ops:
        return True
    return ops[0] == "permute" and ops.count("permute") == 1 and moves[0].attributes["order"] == (0, 2, 1, 3)


@dataclass(frozen=True)
class Strided:
    """An attention group's operands as strided views of tensors in memory."""

    sources: dict[str, Value]  # of q, k and v
    views: dict[str, StridedView]  # [batch, head, row, column] of q, k and v
    out: Value
    out_strides: tuple[Size, ...]  # of [batch, head, row, column]
    bias: Value | None
    bias_form: int  # 0: none, 1: one number for each key, 2: for each query and key
    bias_strides: tuple[Size, ...]  # of [batch, head, row, key]; 0 where it is broadcast
    lengths: Value | None = None  # keys of each batch that are seen


def strided_operands(group: Group) -> Strided:
    """What a group's anchor reads and writes, seen through the views around it.

    Raises `NotImplementedError` when an operand is not a strided view of a tensor in memory.
    """
    anchor = group.anchor
    assert anchor is not None
    q, k, v = anchor.inputs[:3]
    assert q is not None and k is not None and v is not None
    bias, lengths = (*anchor.inputs[3:], None, None)[:2]
    out_strides = tuple(_output_strides(group))
    found = {name: _source_view(value, group) for name, value in (("q", q), ("k", k), ("v", v))}
    return Strided(
        {name: source for name, (source, _) in found.items()},
        {name: view for name, (_, view) in found.items()},
        group.outputs[0],
        out_strides,
        bias,
        0 if bias is None else _bias_form(bias),
        (0, 0, 0, 0) if bias is None else bias_strides(bias),
        lengths,
    )


def strided_candidate(group: Group, target: Target, make: CallMaker) -> Candidate:
    """An attention group by kernels with the parameters of `attention.kernel`; views around the anchor become
    strides.

    Raises `NotImplementedError` when an operand is not a strided view of a tensor in memory.
    """
    anchor = group.anchor
    assert anchor is not None
    strided = strided_operands(group)
    q, k, v = anchor.inputs[:3]
    assert q is not None and k is not None and v is not None
    out = strided.out_strides
    operands: dict[str, Operand] = {"out": strided.out, **strided.sources}
    operands["bias"] = operands["q"] if strided.bias is None else strided.bias
    if strided.lengths is not None:
        operands["lengths_0"] = strided.lengths
    sizes: dict[str, Size] = {
        "queries": q.shape[2], "keys": k.shape[2], "group": simplify(lift(q.shape[1]) // k.shape[1]),
        "out_batch": out[0], "out_head": out[1], "out_row": out[2],
    }  # fmt: skip
    for name, view in strided.views.items():
        sizes |= {f"{name}_offset": view.offset, f"{name}_batch": view.strides[0], f"{name}_head": view.strides[1],
                  f"{name}_row": view.strides[2]}  # fmt: skip
    sizes |= dict(zip(("bias_batch", "bias_head", "bias_row", "bias_key"), strided.bias_strides, strict=True))
    constants: dict[str, Any] = {
        "HEAD": q.shape[3], "VALUE_HEAD": v.shape[3], "CAUSAL": bool(anchor.attributes["causal"]),
        "WINDOW": anchor.attributes["window"], "SOFTCAP": float(anchor.attributes["softcap"]),
        "BIAS": strided.bias_form, "scale": float(anchor.attributes["scale"]), "TYPE": language_type(q.dtype),
    }  # fmt: skip
    types: dict[str, str] = {}
    bind_sizes(sizes, operands, types, constants)
    calls = make(q, operands, types, constants, k.shape[2])
    flops = simplify(lift(product(q.shape)) * k.shape[2] * 4)
    cost = estimate(target.machine(), total_bytes(group.inputs, group.outputs), flops, product(calls[-1].grid),
                    q.dtype, 0.6)  # fmt: skip
    bias = ("none", "keys", "full")[strided.bias_form]
    reasons = {"kernels": [call.kernel.__name__ for call in calls], "bias": bias}
    return Candidate("online softmax", (Stage(tuple(calls)),), cost, (), reasons)


def _source_view(value: Value, group: Group) -> tuple[Value, StridedView]:
    """The tensor in memory that a value of the group is a strided view of."""
    chain = _chain(value, {output: node for node in group.prologue for output in node.outputs})
    source = chain[0].inputs[0] if chain else value
    assert source is not None
    view = follow_all(dense_view(source.shape), chain)
    if view is None or view.strides[-1] != 1:
        raise NotImplementedError(f"{value!r} is not a strided view of {source!r}")
    return source, view


def _output_strides(group: Group) -> Sequence[Size]:
    """Strides of [batch, head, query] in the stored output, through the permute and reshape after the anchor."""
    anchor = group.anchor
    assert anchor is not None
    batch, heads, queries, width = anchor.output.shape
    permutes = [node for node in trailing_movement(group) if node.op == "permute"]
    if not permutes:
        return dense_view(anchor.output.shape).strides
    if len(permutes) > 1 or permutes[0].attributes["order"] != (0, 2, 1, 3):
        raise NotImplementedError(f"{group.name}: the output's order has no strides")
    row = simplify(lift(heads) * width)
    return (simplify(lift(row) * queries), width, row, 1)


def bias_strides(bias: Value) -> tuple[Size, ...]:
    """Strides of the bias over [batch, head, query, key]; 0 where it is broadcast."""
    strides = dense_view(bias.shape).strides
    found = [0 if extent == 1 else stride for extent, stride in zip(bias.shape, strides, strict=True)]
    return (*([0] * (4 - bias.rank)), *found)


def _bias_form(bias: Value) -> int:
    """1: one number for each key; 2: for each query and key."""
    return 1 if bias.rank < 2 or bias.shape[-2] == 1 else 2
