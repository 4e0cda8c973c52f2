"""Optimiser steps, which training models contain as nodes."""

from __future__ import annotations

from collections.abc import Callable

from tilewright.graph.core import Value
from tilewright.importers.onnx_call import OnnxCall
from tilewright.importers.report import Invalid
from tilewright.importers.rules import RuleTable

TABLE = RuleTable("Training", "ai.onnx.preview.training::")
rule = TABLE.rule

Step = Callable[[OnnxCall, Value, Value, list[Value]], tuple[Value, ...]]


def _for_each(call: OnnxCall, states: int, step: Step) -> tuple[Value, ...]:
    """A step for each parameter: the inputs are the rate, the count, and parameters, gradients and states in groups."""
    if len(call.inputs) < 2 + states or (len(call.inputs) - 2) % states:
        raise Invalid(f"it has {len(call.inputs)} inputs; there must be {states} for each parameter, and two more")
    count = (len(call.inputs) - 2) // states
    rate, number = (call.reshape(call[index], ()) for index in (0, 1))
    found = [
        step(call, rate, number, [call[2 + item + group * count] for group in range(states)]) for item in range(count)
    ]
    return tuple(result[place] for place in range(states - 1) for result in found)


def _regularized(call: OnnxCall, x: Value, gradient: Value) -> Value:
    """The gradient and what `norm_coefficient` adds to it."""
    factor = call.attribute("norm_coefficient", 0.0)
    return call.op("add", call.op("multiply", x, factor), gradient) if factor else gradient


def _mixed(call: OnnxCall, old: Value, old_share: float, new: Value, new_share: float | Value) -> Value:
    return call.op("add", call.op("multiply", old, old_share), call.op("multiply", new, new_share))


@rule("Adagrad")
def adagrad(call: OnnxCall) -> tuple[Value, ...]:
    decay, epsilon = call.attribute("decay_factor", 0.0), call.attribute("epsilon", 0.0)

    def step(call: OnnxCall, rate: Value, number: Value, group: list[Value]) -> tuple[Value, ...]:
        x, gradient, history = group
        slowed = call.op("add", call.op("multiply", call.cast(number, x.dtype), decay), 1.0)
        gradient = _regularized(call, x, gradient)
        history = call.op("add", history, call.op("multiply", gradient, gradient))
        width = call.op("add", call.op("sqrt", history), epsilon)
        moved = call.op(
            "divide", call.op("multiply", gradient, call.op("divide", call.cast(rate, x.dtype), slowed)), width
        )
        return call.op("subtract", x, moved), history

    return _for_each(call, 3, step)


@rule("Adam")
def adam(call: OnnxCall) -> tuple[Value, ...]:
    alpha, beta = call.attribute("alpha", 0.9), call.attribute("beta", 0.999)
    epsilon, after = call.attribute("epsilon", 0.0), call.attribute("norm_coefficient_post", 0.0)

    def step(call: OnnxCall, rate: Value, number: Value, group: list[Value]) -> tuple[Value, ...]:
        x, gradient, momentum, history = group
        gradient = _regularized(call, x, gradient)
        momentum = _mixed(call, momentum, alpha, gradient, 1 - alpha)
        history = _mixed(call, history, beta, call.op("multiply", gradient, gradient), 1 - beta)
        count, rate = call.cast(number, x.dtype), call.cast(rate, x.dtype)
        first, second = (
            call.op("subtract", 1.0, call.op("power", call.builder.number(base, x.dtype), count))
            for base in (alpha, beta)
        )
        corrected = call.op("divide", call.op("multiply", rate, call.op("sqrt", second)), first)
        rate = call.op("where", call.op("greater", count, 0.0), corrected, rate)
        width = call.op("add", call.op("sqrt", history), epsilon)
        moved = call.op("subtract", x, call.op("multiply", rate, call.op("divide", momentum, width)))
        return call.op("multiply", moved, 1 - after) if after else moved, momentum, history

    return _for_each(call, 4, step)


@rule("Momentum")
def momentum_step(call: OnnxCall) -> tuple[Value, ...]:
    alpha, beta = call.attribute("alpha"), call.attribute("beta")
    nesterov = call.choice("mode", "standard", "nesterov") == "nesterov"

    def step(call: OnnxCall, rate: Value, number: Value, group: list[Value]) -> tuple[Value, ...]:
        x, gradient, momentum = group
        gradient = _regularized(call, x, gradient)
        later = call.op("greater", number, 0)
        share = call.op("where", later, call.builder.number(beta, x.dtype), call.builder.number(1.0, x.dtype))
        momentum = _mixed(call, momentum, alpha, gradient, share)
        direction = call.op("add", gradient, call.op("multiply", momentum, alpha)) if nesterov else momentum
        return call.op("subtract", x, call.op("multiply", call.cast(rate, x.dtype), direction)), momentum

    return _for_each(call, 3, step)
