"""The graph op `recurrent`: the steps of a layer (RNN, GRU, LSTM) over a sequence of any length, types and meaning.

    x        [steps, directions, batch, gates * hidden]   the input's products, with all biases that may be added first
    weight   [directions, hidden, gates * hidden]         of the state, transposed; of lstm_8bit also int8
    initial  [directions, batch, slots * hidden]          what is kept from step to step: h, then c of an LSTM
    bias     [directions, gates * hidden]                 of the state's products, of cells whose gates multiply them;
                                                          p of lstm_peephole; [directions, 1, gates * hidden] scales
                                                          of the columns of an int8 weight
    lengths  [batch] int64                                 steps after a sequence's end keep the state
    result   [steps + 1, directions, batch, slots * hidden]

Row p + 1 of the result is the state after step p; of a direction that is `reverse`, which begins with the last step,
row p.  The row that is left over holds the initial state.  Cells and their gates, in ONNX's order:

    rnn        h = f(x + h W)
    lstm       i, o, f, g; c = f c + i g; h = o tanh(c)
    lstm_peephole  as lstm, with p_i c and p_f c of the old c added to i and f, and p_o c of the new one to o
    gru        z, r, n: n = f(x_n + r (h W_n + b)); h = n + z (h - n)
    gru_first  the same with n = f(x_n + (r h) W_n + b); slots h, r h and z
    lstm_8bit  as lstm, with h in 256 steps of its range in the products, one range for all rows of the batch that have
               the step; slots h in steps, c and h, of which `initial` has the first as the steps
               of the last
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from tilewright.dtypes import int8, int64
from tilewright.errors import ShapeError
from tilewright.graph.inference import Attributes, Inputs, Types, optional, value
from tilewright.symbolic import lift, simplify

GATES = {"rnn": 1, "lstm": 4, "lstm_8bit": 4, "lstm_peephole": 4, "gru": 3, "gru_first": 3}
SLOTS = {"rnn": 1, "lstm": 2, "lstm_8bit": 3, "lstm_peephole": 2, "gru": 1, "gru_first": 3}
FUNCTIONS: dict[str, Callable[[np.ndarray], np.ndarray]] = {
    "sigmoid": lambda x: 1 / (1 + np.exp(-x)),
    "tanh": np.tanh,
    "relu": lambda x: np.maximum(x, 0),
}


def recurrent_types(inputs: Inputs, attributes: Attributes) -> Types:
    """Raises `ShapeError` for an unknown cell or function, and for inputs that do not fit together."""
    x, weight, initial = (value(inputs, index) for index in range(3))
    cell = attributes["cell"]
    if cell not in GATES or set(attributes["functions"]) - set(FUNCTIONS):
        raise ShapeError(f"the cell {cell!r} with the functions {', '.join(attributes['functions'])}")
    if x.rank != 4 or weight.rank != 3:
        raise ShapeError(f"{x!r} and {weight!r} must have four and three dimensions")
    steps, directions, batch, _ = x.shape
    hidden = weight.shape[1]
    wide = simplify(lift(hidden) * GATES[cell])
    wanted: list[tuple[Any, tuple[Any, ...]]] = [
        (x, (steps, directions, batch, wide)),
        (weight, (directions, hidden, wide)),
        (initial, (directions, batch, simplify(lift(hidden) * SLOTS[cell]))),
        (optional(inputs, 3), (directions, 1, wide) if weight.dtype == int8 else (directions, wide)),
        (optional(inputs, 4), (batch,)),
    ]
    for item, shape in wanted:
        if item is not None and item.shape != shape:
            raise ShapeError(f"{item!r} must have the shape [{', '.join(map(str, shape))}]")
        narrow = item is weight and cell == "lstm_8bit" and weight.dtype == int8
        if item is not None and not narrow and item.dtype != (int64 if len(shape) == 1 else x.dtype):
            raise ShapeError(f"{item!r} has another element type than {x!r}, or lengths are no int64")
    if weight.dtype == int8 and optional(inputs, 3) is None:
        raise ShapeError(f"{weight!r} needs the scales of its columns")
    if len(attributes["reverse"]) != directions:
        raise ShapeError(f"{len(attributes['reverse'])} flags of `reverse` for {directions} directions")
    return [(x.dtype, (simplify(lift(steps) + 1), directions, batch, initial.shape[2]))]


def recurrent(inputs: Any, attributes: Attributes) -> np.ndarray:
    """The meaning, one step after the other."""
    x, weight, initial, bias, lengths = [*inputs, None, None][:5]
    if weight.dtype == np.int8:
        weight, bias = weight * bias, None
    steps, directions, batch, _ = x.shape
    result = np.empty((steps + 1, *initial.shape), x.dtype)
    for direction in range(directions):
        backwards = attributes["reverse"][direction]
        state = initial[direction]
        result[steps if backwards else 0, direction] = state
        for place in range(steps)[:: -1 if backwards else 1]:
            added = None if bias is None else bias[direction]
            new = _step(x[place, direction], state, weight[direction], added, attributes)
            running = np.full(batch, True) if lengths is None else place < lengths
            if attributes["cell"] == "lstm_8bit":
                hidden = weight.shape[1]
                new[:, :hidden] = _in_steps(new[:, :hidden], running)
            new = np.where(running[:, None], new, state)
            state = result[place if backwards else place + 1, direction] = new.astype(x.dtype)
    return result


def _step(x: np.ndarray, state: np.ndarray, weight: np.ndarray, bias: Any, attributes: Attributes) -> np.ndarray:
    """[batch, slots * hidden] after one step."""
    cell, hidden = attributes["cell"], weight.shape[0]
    gate, *others = [FUNCTIONS[name] for name in attributes["functions"]]
    h = state[:, :hidden]
    if cell == "rnn":
        return np.asarray(gate(x + h @ weight))
    if cell.startswith("lstm"):
        into, out, forget, new = np.split(x + h @ weight, 4, axis=1)
        see_into, see_out, see_forget, _ = np.split(np.zeros_like(weight[0]) if bias is None else bias, 4)
        old = state[:, hidden : 2 * hidden]
        memory = gate(forget + see_forget * old) * old + gate(into + see_into * old) * others[0](new)
        output = gate(out + see_out * memory) * others[1](memory)
        parts = [output, memory, output] if cell == "lstm_8bit" else [output, memory]
        return np.concatenate(parts, axis=1)
    update_x, reset_x, new_x = np.split(x, 3, axis=1)
    products = h @ weight if bias is None else h @ weight + bias
    update_h, reset_h, new_h = np.split(products, 3, axis=1)
    update, reset = gate(update_x + update_h), gate(reset_x + reset_h)
    if cell == "gru":
        new = others[0](new_x + reset * new_h)
        return np.asarray(new + update * (h - new))
    new_h = (reset * h) @ weight[:, 2 * hidden :]
    new_h = new_h if bias is None else new_h + bias[2 * hidden :]
    new = others[0](new_x + new_h)
    return np.concatenate([new + update * (h - new), reset * h, update], axis=1)


def _in_steps(h: np.ndarray, running: np.ndarray) -> np.ndarray:
    """The rows in 256 steps of the range of those that are `running`, 0 among them: `DynamicQuantizeLinear` of ONNX,
    and back."""
    low, high = h[running].min(initial=0), h[running].max(initial=0)
    step = 1 if high == low else (high - low) / 255
    zero = np.round(-low / step)
    return np.asarray((np.clip(np.round(h / step) + zero, 0, 255) - zero) * step)
