"""Losses of classifiers."""

from __future__ import annotations

from tilewright.dtypes import int64
from tilewright.graph.core import Value
from tilewright.importers.equal_sizes import must_be
from tilewright.importers.onnx_call import OnnxCall
from tilewright.importers.report import Invalid, Unsupported
from tilewright.importers.rules import RuleTable

TABLE = RuleTable("Losses")
rule = TABLE.rule


def _likelihood_loss(call: OnnxCall, logarithms: Value, target: Value, weight: Value | None) -> Value:
    """Negative log likelihoods [N, C, ...] at the classes `target` [N, ...], by `ignore_index` and `reduction`."""
    dtype = logarithms.dtype
    zero = call.builder.number(0.0, dtype)
    ignored, reduction = call.attribute("ignore_index"), call.attribute("reduction", "mean")
    call.require_rank(logarithms, 2)
    target = must_be(call, target, (logarithms.shape[0], *logarithms.shape[2:]))
    if target.shape != (logarithms.shape[0], *logarithms.shape[2:]):
        raise Invalid(f"the classes {target!r} do not fit {logarithms!r}: they have no dimension of classes")
    target = call.cast(target, int64)
    counted: Value | None = None
    if ignored is not None:
        counted = call.op("not_equal", target, ignored)
        target = call.op("where", counted, target, 0)
    found = call.op("gather_elements", logarithms, call.unsqueeze(target, 1), axis=1)
    loss = call.op("negate", call.reshape(found, target.shape))
    share = None if weight is None else call.op("gather", weight, target, axis=0)
    if counted is not None:
        share = call.op("where", counted, call.full(target.shape, 1.0, dtype) if share is None else share, zero)
    # A class that is ignored may have an infinite loss: it is left out, not multiplied by 0.
    loss = loss if share is None else call.op("multiply", loss, share)
    loss = loss if counted is None else call.op("where", counted, loss, zero)
    if reduction == "none":
        return loss
    axes = tuple(range(loss.rank))
    if reduction == "sum":
        return call.op("reduce_sum", loss, axes=axes)
    if reduction != "mean":
        raise Unsupported(f"the reduction {reduction!r}", "use none, sum or mean")
    if share is None:
        return call.op("reduce_mean", loss, axes=axes)
    return call.op("divide", call.op("reduce_sum", loss, axes=axes), call.op("reduce_sum", share, axes=axes))


@rule("NegativeLogLikelihoodLoss")
def negative_log_likelihood(call: OnnxCall) -> Value:
    return _likelihood_loss(call, call[0], call[1], call.optional(2))


@rule("SoftmaxCrossEntropyLoss")
def softmax_cross_entropy(call: OnnxCall) -> tuple[Value, Value]:
    call.require_rank(call[0], 2)
    logarithms = call.op("log_softmax", call[0], axis=1)
    return _likelihood_loss(call, logarithms, call[1], call.optional(2)), logarithms
