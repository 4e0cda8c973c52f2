"""Recurrent layers over whole sequences, and their cells as PyTorch runs them on GPUs: products done, gates and states
in one operation.

Gates stand side by side: reset, update, new (GRU); input, forget, new, output (LSTM).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

from tilewright.dtypes import int64
from tilewright.graph.core import Value
from tilewright.importers.emitter import Emitter
from tilewright.importers.loops import loop
from tilewright.importers.rules import RuleTable
from tilewright.importers.torch_fx import TorchCall
from tilewright.symbolic import Size, lift, simplify

_FEW_STEPS = 8  # that are unrolled

TABLE = RuleTable("Recurrent layers and cells", "aten.")
rule = TABLE.rule


def _gates(call: TorchCall, x: Value, bias: Value | None, count: int) -> list[Value]:
    """Equal parts of the last dimension, with their bias."""
    return call.equal_parts(x if bias is None else call.op("add", x, bias), count)


@rule("_thnn_fused_gru_cell.default")
def gru_cell(
    call: TorchCall,
    inputs: Value,
    states: Value,
    hidden: Value,
    input_bias: Value | None = None,
    bias: Value | None = None,
) -> tuple[Value, None]:
    """new + update * (hidden - new), new = tanh(input's part + reset * state's part)."""
    parts = zip(_gates(call, inputs, input_bias, 3), _gates(call, states, bias, 3), strict=True)
    (reset_x, reset_h), (update_x, update_h), (new_x, new_h) = parts
    reset = call.op("sigmoid", call.op("add", reset_x, reset_h))
    update = call.op("sigmoid", call.op("add", update_x, update_h))
    new = call.op("tanh", call.op("add", new_x, call.op("multiply", reset, new_h)))
    return call.op("add", new, call.op("multiply", update, call.op("subtract", hidden, new))), None


@rule("_thnn_fused_lstm_cell.default")
def lstm_cell(
    call: TorchCall,
    inputs: Value,
    states: Value,
    memory: Value,
    input_bias: Value | None = None,
    bias: Value | None = None,
) -> tuple[Value, Value, None]:
    """output * tanh(memory), memory = forget * memory + input * new."""
    own, theirs = _gates(call, inputs, input_bias, 4), _gates(call, states, bias, 4)
    into, forget, new, out = (call.op("add", left, right) for left, right in zip(own, theirs, strict=True))
    retained = call.op("multiply", call.op("sigmoid", forget), memory)
    memory = call.op("add", retained, call.op("multiply", call.op("sigmoid", into), call.op("tanh", new)))
    return call.op("multiply", call.op("sigmoid", out), call.op("tanh", memory)), memory, None


# Whole layers ----------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Cell:
    """How the graph's op has a cell: its name, its functions, and the places of its gates among PyTorch's."""

    name: str
    functions: tuple[str, ...]
    gates: tuple[int, ...]


_LSTM = _Cell("lstm", ("sigmoid", "tanh", "tanh"), (0, 3, 1, 2))
_GRU = _Cell("gru", ("sigmoid", "tanh"), (1, 0, 2))
_CELLS = {
    "LSTM": _LSTM,
    "GRU": _GRU,
    "RNN_TANH": _Cell("rnn", ("tanh",), (0,)),
    "RNN_RELU": _Cell("rnn", ("relu",), (0,)),
}


@rule("lstm.input")
def lstm(
    call: TorchCall, x: Value, states: Sequence[Value], params: Sequence[Value], has_biases: bool, layers: int,
    dropout: float, train: bool, bidirectional: bool, batch_first: bool,
) -> tuple[Value, Value, Value]:  # fmt: skip
    """Outputs, last states and last memories."""
    found = _layers(call, _LSTM, x, states, params, has_biases, layers, bidirectional, batch_first)
    return found[0], found[1], found[2]


@rule("gru.input")
def gru(
    call: TorchCall, x: Value, state: Value, params: Sequence[Value], has_biases: bool, layers: int,
    dropout: float, train: bool, bidirectional: bool, batch_first: bool,
) -> tuple[Value, Value]:  # fmt: skip
    """Outputs and last states."""
    found = _layers(call, _GRU, x, [state], params, has_biases, layers, bidirectional, batch_first)
    return found[0], found[1]


@rule("rnn_tanh.input")
def rnn_tanh(
    call: TorchCall, x: Value, state: Value, params: Sequence[Value], has_biases: bool, layers: int,
    dropout: float, train: bool, bidirectional: bool, batch_first: bool,
) -> tuple[Value, Value]:  # fmt: skip
    """Outputs and last states."""
    found = _layers(call, _CELLS["RNN_TANH"], x, [state], params, has_biases, layers, bidirectional, batch_first)
    return found[0], found[1]


@rule("rnn_relu.input")
def rnn_relu(
    call: TorchCall, x: Value, state: Value, params: Sequence[Value], has_biases: bool, layers: int,
    dropout: float, train: bool, bidirectional: bool, batch_first: bool,
) -> tuple[Value, Value]:  # fmt: skip
    """Outputs and last states."""
    found = _layers(call, _CELLS["RNN_RELU"], x, [state], params, has_biases, layers, bidirectional, batch_first)
    return found[0], found[1]


def padded_layers(
    call: TorchCall, x: Value, lengths: Value, states: Sequence[Value], params: Sequence[Value], has_biases: bool,
    layers: int, bidirectional: bool, kind: str,
) -> tuple[Value, ...]:  # fmt: skip
    """`importers.torch_packed_sequences.padded_layers`: outputs, zeros after each sequence's end, and last states."""
    found = _layers(call, _CELLS[kind], x, states, params, has_biases, layers, bidirectional, False, lengths)
    return tuple(found)


def known_lengths(call: TorchCall, lengths: Value, steps: Size) -> Value:
    """`importers.torch_packed_sequences.known_lengths`: every call checks them."""
    least, most = (call.op(name, lengths, axes=(0,), keepdims=False) for name in ("reduce_min", "reduce_max"))
    fits = call.op("logical_and", call.op("greater", least, 0), call.op("less_equal", most, call.value(steps, int64)))
    call.op("condition", fits, what="the lengths of packed sequences are from 1 to the number of steps")
    return lengths


def _layers(
    call: TorchCall, cell: _Cell, x: Value, states: Sequence[Value], params: Sequence[Value], has_biases: bool,
    layers: int, bidirectional: bool, batch_first: bool, lengths: Value | None = None,
) -> list[Value]:  # fmt: skip
    """Outputs [steps, batch, directions * width] (batch first, if so) and each last state [layers * directions, batch,
    width]; after the ends of sequences of `lengths` outputs are zeros and states stay."""
    directions = 2 if bidirectional else 1
    each = len(params) // (layers * directions)
    x = call.transpose(x, 0, 1) if batch_first else x
    ends: list[list[Value]] = [[] for _ in states]
    for layer in range(layers):
        first = layer * directions
        sides = [params[number * each : (number + 1) * each] for number in range(first, first + directions)]
        begin = [[call.select(state, 0, first + number) for state in states] for number in range(directions)]
        walk = _projected_layer if each > 2 + 2 * has_biases else _layer
        x, last = walk(call, cell, x, begin, sides, has_biases, lengths)
        for state, values in zip(ends, last, strict=True):
            state += values
    x = call.transpose(x, 0, 1) if batch_first else x
    return [x, *(_joined(call, [call.unsqueeze(value, 0) for value in values], 0) for values in ends)]


def _joined(call: TorchCall, values: Sequence[Value], axis: int) -> Value:
    return values[0] if len(values) == 1 else call.op("concat", *values, axis=axis)


def _ordered(call: TorchCall, value: Value, cell: _Cell) -> Value:
    """Weights or a bias with the gates in the graph's order."""
    size = value.shape[0]
    assert isinstance(size, int)
    step = size // len(cell.gates)
    return _joined(call, [call.slice(value, 0, gate * step, (gate + 1) * step) for gate in cell.gates], 0)


def _layer(
    call: TorchCall, cell: _Cell, x: Value, begin: Sequence[Sequence[Value]], sides: Sequence[Sequence[Value]],
    has_biases: bool, lengths: Value | None,
) -> tuple[Value, list[list[Value]]]:  # fmt: skip
    """The outputs of a layer, and by state those of each direction after its last step."""
    steps, inputs, weights, biases = x.shape[0], [], [], []
    for side in sides:
        of_input, of_state, *added = (_ordered(call, value, cell) for value in side)
        if has_biases and cell is _GRU:
            biases.append(call.unsqueeze(added.pop(), 0))  # stays with the state's product, which a gate multiplies
        total = call.op("matmul", x, of_input, transpose_b=True)
        if added:
            total = call.op("add", total, added[0] if len(added) == 1 else call.op("add", *added))
        inputs.append(call.unsqueeze(total, 1))
        weights.append(call.unsqueeze(call.transpose(of_state, 0, 1), 0))
    initial = [call.unsqueeze(_joined(call, states, 1), 0) for states in begin]
    rows = call.op(
        "recurrent", _joined(call, inputs, 1), _joined(call, weights, 0), _joined(call, initial, 0),
        _joined(call, biases, 0) if biases else None, lengths,
        cell=cell.name, functions=cell.functions, reverse=tuple(number == 1 for number in range(len(sides))),
    )  # fmt: skip
    hidden = begin[0][0].shape[1]
    outputs: list[Value] = []
    ends: list[list[Value]] = [[] for _ in begin[0]]
    for number in range(len(sides)):
        mine = call.select(rows, 1, number)
        start, last = (0, 0) if number else (1, steps)
        steps_out = call.slice(mine, 0, start, simplify(lift(steps) + start))
        outputs.append(_part(call, steps_out, 0, hidden))
        end = call.select(mine, 0, last)
        for place, state in enumerate(ends):
            state.append(_part(call, end, place, hidden))
    joined = _joined(call, outputs, 2)
    if lengths is not None:
        inside = call.op("less", call.unsqueeze(call.iota(steps), 1), lengths)
        joined = call.op("where", call.unsqueeze(inside, 2), joined, call.builder.number(0.0, joined.dtype))
    return joined, ends


def _part(call: TorchCall, x: Value, place: int, hidden: Size) -> Value:
    """One of the states that stand side by side."""
    assert isinstance(hidden, int)
    return call.slice(x, x.rank - 1, place * hidden, (place + 1) * hidden)


def _projected_layer(
    call: TorchCall, cell: _Cell, x: Value, begin: Sequence[Sequence[Value]], sides: Sequence[Sequence[Value]],
    has_biases: bool, lengths: Value | None,
) -> tuple[Value, list[list[Value]]]:  # fmt: skip
    """The same of an LSTM whose state is projected: a loop over the steps, few of which are unrolled."""
    steps = x.shape[0]
    outputs: list[Value] = []
    ends: list[list[Value]] = [[], []]
    for number, (states, side) in enumerate(zip(begin, sides, strict=True)):
        of_input, of_state, *added, projection = side
        total = call.op("matmul", x, of_input, transpose_b=True)
        for bias in added:
            total = call.op("add", total, bias)
        captured = [total, of_state, projection, *([] if lengths is None else [lengths])]
        step = partial(_projected_step, steps=steps, reverse=number == 1)
        if isinstance(steps, int) and 0 < steps <= _FEW_STEPS:
            rows, last = [], list(states)
            for place in range(steps):
                _, (*last, row) = step(call, call.value(place, int64), last, captured)
                rows.append(call.unsqueeze(row, 0))
            steps_out = _joined(call, rows, 0)
        else:
            *last, steps_out = loop(call, step, states, captured, trips=steps)
        outputs.append(call.flip(steps_out, 0) if number else steps_out)
        for end, value in zip(ends, last, strict=True):
            end.append(value)
    return _joined(call, outputs, 2), ends


def _projected_step(
    emit: Emitter, iteration: Value, states: list[Value], captured: list[Value], steps: Size, reverse: bool
) -> tuple[None, list[Value]]:
    """The states after a step, and the output; `captured`: the input's part of the gates of all steps, the weights of
    the state and of its projection, and the lengths of padded sequences."""
    total, of_state, projection, *lengths = captured
    place = iteration
    if reverse:
        place = emit.op("subtract", emit.value(simplify(lift(steps) - 1), int64), iteration)
    product = emit.op("matmul", states[0], of_state, transpose_b=True)
    gates = emit.op("add", emit.op("gather", total, place, axis=0), product)
    into, forget, new, out = emit.equal_parts(gates, 4)
    retained = emit.op("multiply", emit.op("sigmoid", forget), states[1])
    memory = emit.op("add", retained, emit.op("multiply", emit.op("sigmoid", into), emit.op("tanh", new)))
    unprojected = emit.op("multiply", emit.op("sigmoid", out), emit.op("tanh", memory))
    hidden = emit.op("matmul", unprojected, projection, transpose_b=True)
    if not lengths:
        return None, [hidden, memory, hidden]
    inside = emit.unsqueeze(emit.op("greater", lengths[0], place), 1)
    after = [emit.op("where", inside, value, state) for value, state in zip((hidden, memory), states, strict=True)]
    return None, [*after, emit.op("where", inside, hidden, emit.builder.number(0.0, hidden.dtype))]
