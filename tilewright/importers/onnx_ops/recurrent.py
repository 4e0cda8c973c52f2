"""Recurrent layers (RNN, GRU, LSTM): the graph's op for sequences of any length, unrolled for a few steps.

What the graph's op has not (other functions, `clip`, `input_forget`) is a loop over the steps, in a graph of its own.
The input's products are one product over all steps; each step then adds the state's.  Formulas and orders of gates are
those of the ONNX operator specification.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import islice

from tilewright.dtypes import int64
from tilewright.graph.core import Value
from tilewright.graph.inference import shape_text
from tilewright.graph.recurrent import SLOTS
from tilewright.importers import formulas
from tilewright.importers.emitter import Emitter
from tilewright.importers.equal_sizes import chosen, must_be
from tilewright.importers.loops import loop
from tilewright.importers.onnx_call import OnnxCall
from tilewright.importers.report import Invalid, Unsupported
from tilewright.importers.rules import RuleTable
from tilewright.symbolic import Size, lift, simplify

TABLE = RuleTable("Recurrent layers")
rule = TABLE.rule

# Steps that are always unrolled: their products are one each, and everything around them is fused.
MOST_ALWAYS_UNROLLED = 8
_ACTIVATIONS = {"sigmoid": "sigmoid", "tanh": "tanh", "relu": "relu"}  # those of the graph's op
# The other functions of ONNX, by name, with the alpha and beta that ONNX Runtime takes where none is given.
_DEFAULTS: dict[str, tuple[float | None, float | None]] = {
    "sigmoid": (None, None), "tanh": (None, None), "relu": (None, None), "softsign": (None, None),
    "softplus": (None, None), "affine": (0.0, 0.0), "leakyrelu": (0.01, None), "thresholdedrelu": (0.0, None),
    "scaledtanh": (0.0, 0.0), "hardsigmoid": (0.2, 0.5), "elu": (1.0, None),
}  # fmt: skip


@dataclass(frozen=True)
class _Activation:
    """An activation: its name in small letters, alpha and beta."""

    name: str
    alpha: float = 0.0
    beta: float = 0.0

    def apply(self, call: OnnxCall, x: Value) -> Value:
        alpha, beta = self.alpha, self.beta
        if self.name in _ACTIVATIONS:
            return call.op(_ACTIVATIONS[self.name], x)
        if self.name in ("softplus", "softsign"):
            return formulas.softplus(call, x) if self.name == "softplus" else formulas.softsign(call, x)
        if self.name == "affine":
            return call.op("add", call.op("multiply", x, alpha), beta)
        if self.name == "scaledtanh":
            return call.op("multiply", call.op("tanh", call.op("multiply", x, beta)), alpha)
        if self.name == "hardsigmoid":
            return call.op("clip", call.op("add", call.op("multiply", x, alpha), beta), low=0.0, high=1.0)
        if self.name == "thresholdedrelu":
            return call.op("where", call.op("greater", x, alpha), x, call.builder.number(0.0, x.dtype))
        if self.name == "elu":
            return formulas.elu(call, x, alpha)
        return formulas.where_positive(call, x, x, call.op("multiply", x, alpha))


@dataclass(frozen=True)
class _DirectionWeights:
    """What one direction's steps read: state weights [gates * hidden, hidden], their bias, peepholes, activations."""

    state: Value
    bias: Value | None
    peepholes: list[Value]
    activations: Sequence[_Activation]


# (call, [batch, gates * hidden] of the input, states, weights) -> new states, the output first
Cell = Callable[[OnnxCall, Value, Sequence[Value], _DirectionWeights], "list[Value]"]


def _product(call: OnnxCall, x: Value, weight: Value, bias: Value | None) -> Value:
    result = call.op("matmul", x, weight, transpose_b=True)
    return result if bias is None else call.op("add", result, bias)


def _applied(call: OnnxCall, function: _Activation, x: Value) -> Value:
    """An activation of what the attribute `clip` bounds on both sides."""
    bound = call.attribute("clip")
    return function.apply(call, x if bound is None else call.op("clip", x, low=-float(bound), high=float(bound)))


def _rnn(call: OnnxCall, x: Value, states: Sequence[Value], weights: _DirectionWeights) -> list[Value]:
    total = call.op("add", x, _product(call, states[0], weights.state, weights.bias))
    return [_applied(call, weights.activations[0], total)]


def _gru(call: OnnxCall, x: Value, states: Sequence[Value], weights: _DirectionWeights) -> list[Value]:
    (hidden,), (gate, activation) = states, weights.activations
    update_x, reset_x, new_x = call.equal_parts(x, 3)
    if call.attribute("linear_before_reset", 0):
        update_h, reset_h, new_h = call.equal_parts(_product(call, hidden, weights.state, weights.bias), 3)
        reset = _applied(call, gate, call.op("add", reset_x, reset_h))
        new_h = call.op("multiply", reset, new_h)
    else:
        size = new_x.shape[-1]
        assert isinstance(size, int)
        split = [call.slice(weights.state, 0, 0, 2 * size), call.slice(weights.state, 0, 2 * size, 3 * size)]
        biases: list[Value | None] = [None, None]
        if weights.bias is not None:
            biases = [call.slice(weights.bias, 0, 0, 2 * size), call.slice(weights.bias, 0, 2 * size, 3 * size)]
        update_h, reset_h = call.equal_parts(_product(call, hidden, split[0], biases[0]), 2)
        reset = _applied(call, gate, call.op("add", reset_x, reset_h))
        new_h = _product(call, call.op("multiply", reset, hidden), split[1], biases[1])
    update = _applied(call, gate, call.op("add", update_x, update_h))
    new = _applied(call, activation, call.op("add", new_x, new_h))
    return [call.op("add", new, call.op("multiply", update, call.op("subtract", hidden, new)))]


def _lstm(call: OnnxCall, x: Value, states: Sequence[Value], weights: _DirectionWeights) -> list[Value]:
    (hidden, memory), (gate, activation, last) = states, weights.activations
    total = call.op("add", x, _product(call, hidden, weights.state, weights.bias))
    into, out, forget, new = call.equal_parts(total, 4)
    if weights.peepholes:
        into = call.op("add", into, call.op("multiply", weights.peepholes[0], memory))
        forget = call.op("add", forget, call.op("multiply", weights.peepholes[2], memory))
    into_gate = _applied(call, gate, into)
    left = call.op("subtract", 1.0, into_gate) if call.attribute("input_forget", 0) else _applied(call, gate, forget)
    retained = call.op("multiply", left, memory)
    memory = call.op("add", retained, call.op("multiply", into_gate, _applied(call, activation, new)))
    if weights.peepholes:
        out = call.op("add", out, call.op("multiply", weights.peepholes[1], memory))
    return [call.op("multiply", _applied(call, gate, out), last.apply(call, memory)), memory]


def _activations(call: OnnxCall, defaults: Sequence[str], directions: int) -> list[list[_Activation]]:
    """The functions of each direction; alphas and betas are given for those that have one, in their order."""
    names = call.attribute("activations") or [*defaults] * directions
    if len(names) == 2 and len(defaults) == directions == 1:  # the standard's default of RNN is for two directions
        names = names[:1]
    if len(names) != len(defaults) * directions:
        raise Invalid(f"there are {len(names)} activations; there must be {len(defaults) * directions}")
    alphas, betas = (list(call.attribute(f"activation_{which}") or []) for which in ("alpha", "beta"))
    found = []
    for name in names:
        if name.lower() not in _DEFAULTS:
            raise Invalid(f"there is no activation {name!r}")
        numbers = [
            0.0 if default is None else float(given.pop(0)) if given else default
            for default, given in zip(_DEFAULTS[name.lower()], (alphas, betas), strict=True)
        ]
        found.append(_Activation(name.lower(), *numbers))
    return [found[len(defaults) * number : len(defaults) * (number + 1)] for number in range(directions)]


def _layer(
    call: OnnxCall,
    cell: Cell,
    gates: int,
    defaults: Sequence[str],
    states: int,
    peepholes: bool,
    in_steps: bool = False,
) -> tuple[Value, ...]:
    """(outputs [steps, directions, batch, hidden], last states [directions, batch, hidden] …).

    `in_steps`: products take the state in 256 steps of its range, and weights are integers, whose scales and zero
    points are the inputs 8 and 9, of the state's 10 and 11.
    """
    batch_first = bool(call.attribute("layout", 0))
    kind = call.choice("direction", "forward", "reverse", "bidirectional")
    directions = 2 if kind == "bidirectional" else 1
    _check_shapes(call, directions, gates, batch_first)
    call.attribute("output_sequence")  # before opset 7; the outputs of the node say it
    x = call.transpose(call[0], 0, 1) if batch_first else call[0]
    steps = x.shape[0]
    walked = in_steps or not (isinstance(steps, int) and steps <= MOST_ALWAYS_UNROLLED)
    peepholes = peepholes and call.has(7)
    if in_steps and peepholes:
        raise Unsupported("a quantized layer with peepholes", "quantize without it")
    activations = _activations(call, defaults, directions)
    backwards = [kind == "reverse" or number == 1 for number in range(directions)]
    plain = call.attribute("clip") is None and not call.attribute("input_forget", 0)
    usual = all(function.name in _ACTIVATIONS for function in activations[0])
    if walked and plain and usual and all(functions == activations[0] for functions in activations):
        cell_name = "lstm_peephole" if peepholes else "lstm_8bit" if in_steps else _CELLS.get(gates)
        names = [_ACTIVATIONS[function.name] for function in activations[0]]
        joined = _walked(call, x, gates, states, names, backwards, batch_first, cell_name)
        return _ordered(call, _of_sequences(call, joined), batch_first)
    if in_steps:
        raise Unsupported("a quantized layer with `clip`, `input_forget` or such functions", "quantize without it")
    outputs: list[Value] = []
    ends: list[list[Value]] = [[] for _ in range(states)]
    for number in range(directions):
        first = [_initial(call, x, 5 + state, number, batch_first) for state in range(states)]
        bias = call.equal_parts(call.select(call[3], 0, number), 2) if call.has(3) else [None, None]
        peeps = call.equal_parts(call.select(call[7], 0, number), 3) if peepholes else []
        weights = _DirectionWeights(call.select(call[2], 0, number), bias[1], peeps, activations[number])
        inputs = _product(call, x, call.select(call[1], 0, number), bias[0])
        run = _looped if walked else _run
        rows, last = run(call, cell, inputs, first, weights, backwards[number])
        outputs.append(call.unsqueeze(rows, 1))
        for state, value in enumerate(last):
            ends[state].append(call.unsqueeze(value, 0))
    joined = [_concat(call, outputs, 1), *(_concat(call, values, 0) for values in ends)]
    return _ordered(call, _of_sequences(call, joined), batch_first)


def _of_sequences(call: OnnxCall, joined: Sequence[Value]) -> list[Value]:
    """The results, with zeros for the last states of a sequence without steps, as ONNX Runtime gives them."""
    rows, *last = joined
    if rows.shape[0] == 0:
        return [rows, *(call.full(state.shape, 0.0, state.dtype) for state in last)]
    if call.has(4):
        any_step = call.unsqueeze(call.op("greater", call.cast(call[4], int64), 0), 1)
        last = [call.op("where", any_step, state, call.builder.number(0.0, state.dtype)) for state in last]
    return [rows, *last]


def _ordered(call: OnnxCall, joined: Sequence[Value], batch_first: bool) -> tuple[Value, ...]:
    """Outputs [steps, directions, batch, hidden] and states [directions, batch, hidden], in the order of the layout."""
    if not batch_first:
        return tuple(joined)
    return call.permute(joined[0], (2, 0, 1, 3)), *(call.transpose(value, 0, 1) for value in joined[1:])


def _check_shapes(call: OnnxCall, directions: int, gates: int, batch_first: bool) -> None:
    """Raise `Invalid` for inputs that are not [steps, batch, width] and weights and states for it."""
    for index in range(3):
        call.require_rank(call[index], 3, 3)
    for index in (5, 6):
        if call.has(index) and call[index].rank == 3:
            _share_batch(call, call[index].shape[0 if batch_first else 1], batch_first)
    hidden = call.attribute("hidden_size", call[2].shape[2])
    call.tensor(2).value = must_be(call, call[2], (*call[2].shape[:2], hidden))
    x, hidden = call[0], call[2].shape[2]
    batch = x.shape[0] if batch_first else x.shape[1]
    width = chosen([x.shape[2], call[1].shape[2]])
    x = call.tensor(0).value = must_be(call, x, (*x.shape[:2], width))
    if call.attribute("hidden_size", hidden) != hidden or not isinstance(hidden, int):
        raise Invalid(f"the attribute 'hidden_size' is {call.attribute('hidden_size')}, but {call[2]!r} has {hidden}")
    state = (batch, directions, hidden) if batch_first else (directions, batch, hidden)
    wanted: dict[int, tuple[Size, ...]] = {
        1: (directions, gates * hidden, x.shape[2]),
        2: (directions, gates * hidden, hidden),
        3: (directions, 2 * gates * hidden),
        4: (batch,),
        5: state,
        6: state,
        7: (directions, 3 * hidden),
    }
    for index, shape in wanted.items():
        if not call.has(index):
            continue
        tensor = call.tensor(index)
        tensor.value = must_be(call, call[index], shape)
        if call[index].shape != shape:
            raise Invalid(f"input {index} is {call[index]!r}; with {x!r} it must have the shape {shape_text(shape)}")


def _share_batch(call: OnnxCall, batch: Size, batch_first: bool) -> None:
    """Give the input the batch of a state, where that is the plainer of the two."""
    shape, axis = list(call[0].shape), 0 if batch_first else 1
    shape[axis] = chosen([shape[axis], batch])
    call.tensor(0).value = must_be(call, call[0], shape)


def _concat(call: OnnxCall, values: Sequence[Value], axis: int) -> Value:
    return values[0] if len(values) == 1 else call.op("concat", *values, axis=axis)


def _initial(call: OnnxCall, x: Value, index: int, direction: int, batch_first: bool) -> Value:
    """A direction's state [batch, hidden] before its first step: zeros where none is given."""
    if call.has(index):
        return call.select(call[index], 1 if batch_first else 0, direction)
    return call.full((x.shape[1], call[2].shape[2]), 0.0, x.dtype)


def _run(
    call: OnnxCall, cell: Cell, inputs: Value, states: list[Value], weights: _DirectionWeights, reverse: bool
) -> tuple[Value, list[Value]]:
    """The outputs of all steps [steps, batch, hidden] and the last states; after a sequence's end they are zeros, and
    its states are kept."""
    rows: dict[int, Value] = {}
    lengths = call.cast(call[4], int64) if call.has(4) else None
    steps = inputs.shape[0]
    assert isinstance(steps, int)
    if not steps:
        call.read.update(call.attributes)  # of steps that are not there
        return call.full((0, *states[0].shape), 0.0, states[0].dtype), states
    for step in range(steps)[:: -1 if reverse else 1]:
        rows[step], states = _step(call, cell, call.select(inputs, 0, step), states, weights, lengths, step)
    return _concat(call, [call.unsqueeze(rows[step], 0) for step in sorted(rows)], 0), states


def _step(
    call: OnnxCall,
    cell: Cell,
    row: Value,
    states: list[Value],
    weights: _DirectionWeights,
    lengths: Value | None,
    step: Value | int,
) -> tuple[Value, list[Value]]:
    """The output and the states after one step."""
    found = cell(call, row, states, weights)
    if lengths is None:
        return found[0], found
    inside = call.unsqueeze(call.op("greater", lengths, step), 1)
    output = call.op("where", inside, found[0], call.builder.number(0.0, found[0].dtype))
    return output, [call.op("where", inside, new, old) for new, old in zip(found, states, strict=True)]


def _looped(
    call: OnnxCall, cell: Cell, inputs: Value, states: list[Value], weights: _DirectionWeights, reverse: bool
) -> tuple[Value, list[Value]]:
    """As `_run`, by a loop of the graph, for any number of steps."""
    steps = inputs.shape[0]
    bias = [] if weights.bias is None else [weights.bias]
    lengths = [call.cast(call[4], int64)] if call.has(4) else []

    def step(emit: Emitter, iteration: Value, carried: list[Value], captured: list[Value]) -> tuple[None, list[Value]]:
        inner = OnnxCall(emit.builder, call.source, call.inputs, call.attributes, call.opset, 0)
        given = iter(captured)
        place = inner.op("subtract", inner.value(simplify(lift(steps) - 1), int64), iteration) if reverse else iteration
        row = inner.op("gather", next(given), place, axis=0)
        state, own_bias = next(given), next(given) if bias else None
        peepholes = list(islice(given, len(weights.peepholes)))
        own = _DirectionWeights(state, own_bias, peepholes, weights.activations)
        output, after = _step(inner, cell, row, carried, own, next(given, None), place)
        call.read |= inner.read
        return None, [*after, output]

    captured = [inputs, weights.state, *bias, *weights.peepholes, *lengths]
    *last, rows = loop(call, step, states, captured, trips=steps)
    return call.flip(rows, 0) if reverse else rows, last


_CELLS = {1: "rnn", 4: "lstm"}  # by the number of gates


def _walked(
    call: OnnxCall,
    x: Value,
    gates: int,
    states: int,
    functions: Sequence[str],
    backwards: Sequence[bool],
    batch_first: bool,
    cell: str | None,
) -> list[Value]:
    """The outputs of all steps and the last states, by the graph's op, which walks the steps."""
    directions, hidden = len(backwards), call[2].shape[2]
    assert isinstance(hidden, int)
    in_steps = cell == "lstm_8bit"
    cell = cell or ("gru" if call.attribute("linear_before_reset", 0) else "gru_first")
    numbers = range(directions)
    sides = [
        call.equal_parts(call.select(call[3], 0, number), 2) if call.has(3) else [None, None] for number in numbers
    ]
    # Of a GRU the state's bias stays with its product, which the reset gate multiplies.
    separate = cell.startswith("gru") and call.has(3)
    inputs = []
    for number in numbers:
        bias, own = sides[number]
        matrix = call.select(call[1], 0, number)
        if in_steps:
            parameters = [call.select(call[index], 0, number) for index in (8, 9)]
            matrix = call.op("dequantize", matrix, *(call.reshape(p, (-1, 1) if p.rank else ()) for p in parameters))
        product = _product(call, x, matrix, bias)
        product = product if separate or own is None else call.op("add", product, own)
        inputs.append(call.unsqueeze(product, 1))
    biases = [call.unsqueeze(own, 0) for _, own in sides if own is not None] if separate else []
    if cell == "lstm_peephole":
        biases = [_concat(call, [call[7], call.full((directions, hidden), 0.0, x.dtype)], 1)]
    first = [[_initial(call, x, 5 + state, number, batch_first) for state in range(states)] for number in numbers]
    for row in first:
        if in_steps:
            row[:] = [_in_steps(call, row[0]), row[1], row[0]]
        row += [call.full(row[0].shape, 0.0, x.dtype)] * (SLOTS[cell] - len(row))
    initial = [call.unsqueeze(_concat(call, row, 1), 0) for row in first]
    weight = call.transpose(call[2], 1, 2)
    if in_steps:
        weight = call.op("dequantize", weight, *(call.reshape(call[index], (directions, 1, -1)) for index in (10, 11)))
    rows = call.op(
        "recurrent",
        _concat(call, inputs, 1),
        weight,
        _concat(call, initial, 0),
        _concat(call, biases, 0) if biases else None,
        call.cast(call[4], int64) if call.has(4) else None,
        cell=cell, functions=tuple(functions), reverse=tuple(backwards),
    )  # fmt: skip
    return _results(call, rows, x.shape[0], hidden, [2, 1] if in_steps else list(range(states)), backwards)


def _in_steps(call: OnnxCall, x: Value) -> Value:
    """Rows [batch, hidden] in 256 steps of their range, 0 among them."""
    low = call.op("minimum", call.op("reduce_min", x, axes=(0, 1), keepdims=True), 0.0)
    high = call.op("maximum", call.op("reduce_max", x, axes=(0, 1), keepdims=True), 0.0)
    width = call.op("divide", call.op("subtract", high, low), 255.0)
    size = call.op("where", call.op("equal", width, 0.0), 1.0, width)
    zero = call.op("round", call.op("divide", call.op("negate", low), size))
    level = call.op("add", call.op("round", call.op("divide", x, size)), zero)
    return call.op("multiply", call.op("subtract", call.op("clip", level, low=0.0, high=255.0), zero), size)


def _results(
    call: OnnxCall, rows: Value, steps: Size, hidden: int, slots: Sequence[int], backwards: Sequence[bool]
) -> list[Value]:
    """Outputs and last states from the states around every step, of which `slots` has the places; after a sequence's
    end outputs are zeros."""
    outputs: list[Value] = []
    ends: list[list[Value]] = [[] for _ in slots]
    for number, reverse in enumerate(backwards):
        side = call.slice(rows, 1, number, number + 1)
        begin, last = (0, 0) if reverse else (1, steps)
        mine = call.slice(side, 0, begin, simplify(lift(steps) + begin))
        outputs.append(call.slice(mine, 3, slots[0] * hidden, (slots[0] + 1) * hidden))
        end = call.select(side, 0, last)
        for state, slot in enumerate(slots):
            ends[state].append(call.slice(end, 2, slot * hidden, (slot + 1) * hidden))
    joined = _concat(call, outputs, 1)
    if call.has(4):
        places = call.unsqueeze(call.iota(steps), 1)
        inside = call.op("less", places, call.cast(call[4], int64))
        joined = call.op("where", call.unsqueeze(inside, 1, 3), joined, call.builder.number(0.0, joined.dtype))
    return [joined, *(_concat(call, values, 0) for values in ends)]


@rule("RNN")
def rnn(call: OnnxCall) -> tuple[Value, ...]:
    return _layer(call, _rnn, 1, ["Tanh"], 1, peepholes=False)


@rule("GRU")
def gru(call: OnnxCall) -> tuple[Value, ...]:
    return _layer(call, _gru, 3, ["Sigmoid", "Tanh"], 1, peepholes=False)


@rule("LSTM")
def lstm(call: OnnxCall) -> tuple[Value, ...]:
    return _layer(call, _lstm, 4, ["Sigmoid", "Tanh", "Tanh"], 2, peepholes=True)


def lstm_of_8_bits(call: OnnxCall) -> tuple[Value, ...]:
    """As `lstm`; its products take the state in 256 steps of its range."""
    return _layer(call, _lstm, 4, ["Sigmoid", "Tanh", "Tanh"], 2, peepholes=True, in_steps=True)
