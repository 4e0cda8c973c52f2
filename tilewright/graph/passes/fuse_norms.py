"""RMS norms of few rows, computed by the products that read them.

    rms_norm(x) W  =  s (x W),   s = 1 / sqrt(mean(x * x) + epsilon), a number for each row

A kernel that normalises a few rows is over in two microseconds, but the products on either side of it wait for each
other through it: a processor reads no weights meanwhile.  A product by tensor cores reads every element of its rows
anyway, finds the sums of their squares with its own sums, and scales these.  Nothing is then between two products.

The norm's own scale is in the weights, W' = diag(scale) W, in the engine's graph: weights are rounded once more, and
what is normalised not at all.  That is done where bfloat16 keeps the range of x, for targets with such products.

Sums of the residual stream are no norm's then (`fuse_sums`): the product in front stores them, in bfloat16 for the
product after it and in float32 for the next sum, which costs few rows nothing.
"""

from __future__ import annotations

from functools import partial

import numpy as np

from tilewright.dtypes import bfloat16, float32
from tilewright.graph.core import Graph, Node, Value
from tilewright.graph.kernel_facts import KernelFacts
from tilewright.graph.passes.fuse_draft import Draft, Drafts
from tilewright.graph.rewrite import GraphRewriter, apply_rules
from tilewright.symbolic import product

_AT_ONCE = 1 << 18  # elements that are scaled together, in cache


def prepare_norms(graph: Graph, kernels: KernelFacts) -> Graph:
    """Put the scales of norms of up to `normed_rows` rows, which products will compute, into the weights, and make sums
    in front of them float32; the same graph when there are none."""
    graph = apply_rules(graph, {"matmul": [partial(_into_weights, most=kernels.normed_rows)]})
    summed = _normalised_sums(graph, kernels.normed_rows)

    def sum_in_float32(node: Node, rewriter: GraphRewriter) -> Value | None:
        if node.output not in summed:
            return None
        return rewriter.cast(rewriter.op("add", [_unrounded(item, rewriter) for item in node.inputs]), bfloat16)

    return GraphRewriter(graph).run({"add": [sum_in_float32]})


def _normalised_sums(graph: Graph, most: int) -> set[Value]:
    """Sums of two tensors of one shape that a norm reads which a product will compute."""
    readers = graph.users()
    found: set[Value] = set()
    for node in graph.nodes:
        x = node.inputs[0] if node.op == "rms_norm" else None
        following = readers.get(node.output, [])
        if (
            x is not None
            and len(following) == 1
            and following[0].op == "matmul"
            and _will_be_computed(following[0], node, graph, most)
        ):
            found.add(x)
    sums = (node for node in graph.nodes if node.op == "add" and node.output in found)
    return {node.output for node in sums if all(item and item.shape == node.output.shape for item in node.inputs)}


def _unrounded(value: Value | None, rewriter: GraphRewriter) -> Value:
    """A value in float32, as it was before it was rounded, if it was."""
    assert value is not None
    rounding = rewriter.producer(value, "cast")
    exact = rounding.inputs[0] if rounding is not None else None
    return exact if exact is not None and exact.dtype == float32 else rewriter.cast(value, float32)


def take_norms(drafts: Drafts, remarks: list[str]) -> None:
    """Merge RMS norms without a scale into the products that alone read them, and the rounding of a sum in front of
    them into the product that computes it."""
    for index, node in enumerate(drafts.nodes):
        number = drafts.producer(node.inputs[0]) if node.op == "matmul" else None
        if number is None or drafts.readers[drafts.nodes[number].output] != [index]:
            continue
        norm, draft, other = drafts.nodes[number], drafts.owner[index], drafts.owner[number]
        if norm.output in drafts.results or not _will_be_computed(node, norm, drafts.graph, drafts.kernels.normed_rows):
            continue
        if drafts.may_merge(other, draft):
            drafts.merge(draft, other)
            remarks.append(
                f"matmul %{node.output.name} computes rms_norm %{norm.output.name} of the rows that it reads"
            )
            _round_at_once(drafts, norm.inputs[0], remarks)


def _round_at_once(drafts: Drafts, value: Value | None, remarks: list[str]) -> None:
    """Let the product that stores a sum in float32 store it rounded, too."""
    index = drafts.producer(value)
    if index is None or drafts.nodes[index].op != "cast" or len(drafts.owner[index].nodes) > 1:
        return
    exact = drafts.nodes[index].inputs[0]
    source = drafts.producer(exact)
    if source is None or exact is None or drafts.owner[source].kind != "contraction":
        return
    earlier, later = drafts.owner[source], drafts.owner[index]
    if any(drafts.nodes[each].op == "slice" for each in earlier.nodes):
        return  # a gate's kernel stores one tensor
    if drafts.outputs(earlier) == [exact] and drafts.may_merge(earlier, later):
        drafts.merge(earlier, later)
        remarks.append(f"%{exact.name} is stored in float32, and rounded, by the product that ends in it")


def _will_be_computed(node: Node, norm: Node, graph: Graph, most: int) -> bool:
    """Whether a product will compute a norm of up to `most` rows, if nobody else reads that."""
    bare = all(item is None for item in norm.inputs[1:])
    return bare and node.inputs[1] in graph.constants and _fits(node, norm, most)


def reads_memory(drafts: Drafts, draft: Draft, reader: int) -> bool:
    """Whether a node of a group reads what lies in memory: the anchor of a contraction, and a norm in front of it."""
    if draft.kind != "contraction" or draft.anchor is None:
        return False
    feeds_anchor = reader in draft.nodes and drafts.readers.get(drafts.nodes[reader].output) == [draft.anchor]
    return reader == draft.anchor or (feeds_anchor and drafts.nodes[reader].op == "rms_norm")


def _fits(node: Node, norm: Node, most: int) -> bool:
    """Whether a product of constant weights can compute a norm of its few rows."""
    x, weights = norm.inputs[0], node.inputs[1]
    if node.attributes["transpose_a"] or norm.op != "rms_norm" or x is None or weights is None or weights.rank != 2:
        return False
    rows = product(x.shape[:-1])
    few = isinstance(rows, int) and rows <= most and norm.attributes["axis"] == x.rank - 1
    return few and all(value.dtype == bfloat16 for value in (x, norm.output, weights, node.output))


def _into_weights(node: Node, rewriter: GraphRewriter, most: int) -> Value | None:
    norm = rewriter.producer(node.inputs[0], "rms_norm")
    if norm is None or rewriter.uses(norm.output) > 1 or len(norm.inputs) < 2 or not _fits(node, norm, most):
        return None
    x, scale, *_ = norm.inputs
    weights = node.inputs[1]
    data, factors = rewriter.constant(weights), rewriter.constant(scale)
    if data is None or factors is None or weights is None:
        return None
    if not np.all(factors == 1):
        if rewriter.uses(weights) > 1:
            return None  # the weights would be stored twice
        weights = rewriter.new_constant(_scaled(data, factors, node.attributes["transpose_b"]), weights.name)
        rewriter.remark(f"the scale of rms_norm %{norm.output.name} is in the weights of matmul %{node.output.name}")
    bare = rewriter.op("rms_norm", [x], **norm.attributes)
    return rewriter.op("matmul", [bare, weights], **node.attributes)


def _scaled(weights: np.ndarray, factors: np.ndarray, transposed: bool) -> np.ndarray:
    """diag(factors) weights, or weights diag(factors) of transposed ones; products of bfloat16 are exact in float32."""
    factors = factors.astype(np.float32)
    result = np.empty_like(weights)
    step = max(1, _AT_ONCE // weights.shape[1])
    for first in range(0, len(weights), step):
        part = weights[first : first + step].astype(np.float32)
        part *= factors if transposed else factors[first : first + step, None]
        result[first : first + step] = part
    return result
