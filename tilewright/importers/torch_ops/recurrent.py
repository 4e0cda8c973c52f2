"""Cells of recurrent layers, as PyTorch runs them on GPUs: products done, gates and states in one operation.

Layers over whole sequences are decomposed by PyTorch.  Gates stand beside each other: reset, update, new (GRU);
input, forget, new, output (LSTM).
"""

from __future__ import annotations

from tilewright.graph.core import Value
from tilewright.importers.rules import RuleTable
from tilewright.importers.torch_fx import Call

TABLE = RuleTable("Recurrent cells", "aten.")
rule = TABLE.rule


def _gates(call: Call, x: Value, bias: Value | None, count: int) -> list[Value]:
    """Equal parts of the last dimension, with their bias."""
    return call.equal_parts(x if bias is None else call.op("add", x, bias), count)


@rule("_thnn_fused_gru_cell.default")
def gru_cell(
    call: Call, inputs: Value, states: Value, hidden: Value, input_bias: Value | None = None, bias: Value | None = None
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
    call: Call, inputs: Value, states: Value, memory: Value, input_bias: Value | None = None, bias: Value | None = None
) -> tuple[Value, Value, None]:
    """output * tanh(memory), memory = forget * memory + input * new."""
    own, theirs = _gates(call, inputs, input_bias, 4), _gates(call, states, bias, 4)
    into, forget, new, out = (call.op("add", left, right) for left, right in zip(own, theirs, strict=True))
    kept = call.op("multiply", call.op("sigmoid", forget), memory)
    memory = call.op("add", kept, call.op("multiply", call.op("sigmoid", into), call.op("tanh", new)))
    return call.op("multiply", call.op("sigmoid", out), call.op("tanh", memory)), memory, None
