"""Operations on quantized tensors that ONNX Runtime's quantiser writes."""

from __future__ import annotations

import numpy as np

from tilewright.dtypes import float32, int32
from tilewright.graph.core import Value
from tilewright.importers import formulas
from tilewright.importers.onnx_call import OnnxCall, Tensor
from tilewright.importers.onnx_ops import microsoft, quantized, recurrent
from tilewright.importers.onnx_ops.quantized import centred, quantize
from tilewright.importers.onnx_ops.windows import mean_of_windows
from tilewright.importers.rules import RuleTable
from tilewright.symbolic import product

TABLE = RuleTable("ONNX Runtime: quantized", "com.microsoft::")
rule = TABLE.rule


def _single(call: OnnxCall, index: int) -> Value:
    return call.reshape(call[index], ())


def _numbers(call: OnnxCall, index: int) -> Value:
    """Input `index` with its scale and zero point after it, as float32."""
    x = call.cast(call[index], float32)
    if call.has(index + 2):
        x = call.op("subtract", x, call.cast(_single(call, index + 2), float32))
    return call.op("multiply", x, call.cast(_single(call, index + 1), float32))


def _result(call: OnnxCall, x: Value, index: int, like: Value) -> Value:
    """Numbers by the scale and zero point at `index`; without a zero point in the type of `like`."""
    zero = _single(call, index + 1) if call.has(index + 1) else None
    return quantize(call, x, _single(call, index), zero, like.dtype if zero is None else zero.dtype)


def _rounded(call: OnnxCall, steps: Value, index: int, like: Value) -> Value:
    """Numbers of steps after adding the zero point at `index`, as ONNX Runtime's kernels of bytes round."""
    total = call.op("add", steps, call.cast(_single(call, index), float32)) if call.has(index) else steps
    bounds = np.iinfo(like.dtype.numpy)
    whole = call.op("clip", call.op("round", total), low=float(bounds.min), high=float(bounds.max))
    return call.cast(whole, like.dtype)


def _centred_byte(call: OnnxCall, index: int) -> Value:
    """Input `index` less its zero point, two inputs after it, as int32."""
    x = call.cast(call[index], int32)
    return call.op("subtract", x, call.cast(_single(call, index + 2), int32)) if call.has(index + 2) else x


@rule("QLinearMul")
def quantized_product(call: OnnxCall) -> Value:
    """The product of integers, times one number."""
    ratio = call.op("divide", call.op("multiply", _single(call, 1), _single(call, 4)), _single(call, 6))
    product = call.op("multiply", _centred_byte(call, 0), _centred_byte(call, 3))
    return _rounded(call, call.op("multiply", call.cast(product, float32), ratio), 7, call[0])


@rule("QLinearAdd")
def quantized_sum(call: OnnxCall) -> Value:
    """Each side times its scale by the result's; what zero points add is one number."""
    ratios = [call.op("divide", _single(call, index + 1), _single(call, 6)) for index in (0, 3)]
    total: Value | None = None
    for index, ratio in zip((0, 3), ratios, strict=True):
        if call.has(index + 2):
            part = call.op("multiply", call.cast(_single(call, index + 2), float32), ratio)
            total = part if total is None else call.op("add", total, part)
    zero = call.cast(_single(call, 7), float32) if call.has(7) else call.builder.number(0.0, float32)
    total = zero if total is None else call.op("subtract", zero, total)
    for index, ratio in zip((3, 0), reversed(ratios), strict=True):
        total = call.op("add", total, call.op("multiply", call.cast(call[index], float32), ratio))
    return _rounded(call, total, len(call.inputs), call[0])


@rule("QLinearSigmoid")
def quantized_sigmoid(call: OnnxCall) -> Value:
    return _result(call, call.op("sigmoid", _numbers(call, 0)), 3, call[0])


@rule("QLinearLeakyRelu")
def quantized_leaky_relu(call: OnnxCall) -> Value:
    return _result(call, formulas.leaky_relu(call, _numbers(call, 0), call.attribute("alpha", 0.01)), 3, call[0])


@rule("QLinearSoftmax")
def quantized_softmax(call: OnnxCall) -> Value:
    """The softmax of `opset`: before 13 over all dimensions from the axis on."""
    x = _numbers(call, 0)
    axis, old = call.axis(x.rank, -1), call.attribute("opset", 13) < 13
    rows = call.flatten(x, axis, x.rank) if old else x
    return _result(call, call.reshape(call.op("softmax", rows, axis=axis), x.shape), 3, call[0])


def _channels_first(call: OnnxCall, x: Value) -> Value:
    return call.permute(x, [0, x.rank - 1, *range(1, x.rank - 1)]) if call.attribute("channels_last", 0) else x


def _channels_back(call: OnnxCall, x: Value) -> Value:
    return call.permute(x, [0, *range(2, x.rank), 1]) if call.attribute("channels_last", 0) else x


@rule("QLinearGlobalAveragePool")
def quantized_global_average(call: OnnxCall) -> Value:
    """Integers are summed; a step of the result is a step of the sum times one number, as in ONNX Runtime."""
    x = _channels_first(call, _centred_byte(call, 0))
    total = call.cast(call.op("reduce_sum", x, axes=tuple(range(2, x.rank)), keepdims=True), float32)
    count = call.value(product(x.shape[2:]), float32)
    step = call.op("divide", _single(call, 1), call.op("multiply", _single(call, 3), count))
    zero = _single(call, 4) if call.has(4) else None
    one = call.builder.number(1.0, float32)
    return _channels_back(call, quantize(call, call.op("multiply", total, step), one, zero, call[0].dtype))


@rule("QLinearAveragePool")
def quantized_average(call: OnnxCall) -> Value:
    """As ONNX Runtime rounds, which adds the zero point before."""
    x, like = _channels_first(call, _numbers(call, 0)), call[0]
    steps = call.op("divide", mean_of_windows(call, x), _single(call, 3))
    return _channels_back(call, _rounded(call, steps, 4, like))


@rule("QLinearConcat")
def quantized_concat(call: OnnxCall) -> Value:
    """The result's scale and zero point come first, then each part with its own."""
    parts = [_numbers(call, index) for index in range(2, len(call.inputs), 3)]
    axis = call.place(call.attribute("axis"), parts[0].rank)
    return _result(call, call.op("concat", *parts, axis=axis), 0, call[2])


@rule("QLinearWhere")
def quantized_where(call: OnnxCall) -> Value:
    return _result(call, call.op("where", call[0], _numbers(call, 1), _numbers(call, 4)), 7, call[1])


@rule("QLinearConv")
def quantized_convolution(call: OnnxCall) -> Value:
    """QLinearConv of ONNX Runtime: ONNX's, whose image and result have their channels last with `channels_last`."""
    if not call.attribute("channels_last", 0):
        return quantized.quantized_convolution(call)
    image = call.tensor(0)
    call.inputs[0] = type(image)(image.name, _channels_first(call, call[0]))
    return _channels_back(call, quantized.quantized_convolution(call))


# Products --------------------------------------------------------------------------------------------


def _scaled(call: OnnxCall, product: Value, scale: Value, bias: Value | None) -> Value:
    result = call.op("multiply", call.cast(product, float32), scale)
    return result if bias is None else call.op("add", result, bias)


def _of_columns(call: OnnxCall, index: int) -> Value:
    """A scale of the right operand: one number, or one for each column."""
    scale = call[index]
    return call.reshape(scale, ()) if scale.shape == (1,) else scale


@rule("DynamicQuantizeMatMul")
def dynamic_product(call: OnnxCall) -> Value:
    """a [.., K] of floats, quantized by its own range, times b with its scale and zero point; a bias."""
    rows, scale, zero = quantized.dynamic_quantize_linear(call)
    left = call.op("subtract", call.cast(rows, int32), call.cast(zero, int32))
    product = call.matmul(left, centred(call, 1, 3, [1, -1]))
    return _scaled(call, product, call.op("multiply", scale, _of_columns(call, 2)), call.optional(4))


@rule("MatMulIntegerToFloat")
def product_to_float(call: OnnxCall) -> Value:
    """Inputs: a, b, their scales, their zero points, a bias."""
    product = call.matmul(centred(call, 0, 4, [-1, 1]), centred(call, 1, 5, [1, -1]))
    scale = call.op("multiply", _of_columns(call, 2), _of_columns(call, 3))
    return _scaled(call, product, scale, call.optional(6))


@rule("QGemm")
def quantized_gemm(call: OnnxCall) -> Value:
    """alpha a b + c in integers; a float where no scale of the result is given."""
    left, right = centred(call, 0, 2), _columns_centred(call, 3, 5)
    left = call.transpose(left, 0, 1) if call.attribute("transA", 0) else left
    scale = call.op("multiply", _single(call, 1), _of_columns(call, 4))
    alpha = float(call.attribute("alpha", 1.0))
    scale = scale if alpha == 1 else call.op("multiply", scale, alpha)
    product = call.op("matmul", left, right)
    product = call.op("add", product, call[6]) if call.has(6) else product
    result = call.op("multiply", call.cast(product, float32), scale)
    return _result(call, result, 7, call[0]) if call.has(7) else result


def _columns_centred(call: OnnxCall, index: int, zero: int) -> Value:
    """The right operand [K, N], less its zero point or one for each column."""
    x = call.cast(call[index], int32)
    x = call.transpose(x, 0, 1) if call.attribute("transB", 0) else x
    if not call.has(zero):
        return x
    point = call.cast(call[zero], int32)
    return call.op("subtract", x, call.reshape(point, ()) if point.shape == (1,) else point)


@rule("MatMulInteger16")
def product_of_16_bits(call: OnnxCall) -> Value:
    return call.matmul(call.cast(call[0], int32), call.cast(call[1], int32))


# Layers ----------------------------------------------------------------------------------------------


@rule("DynamicQuantizeLSTM")
def dynamic_lstm(call: OnnxCall) -> tuple[Value, ...]:
    """An LSTM with weights of 8 bits [directions, width, gates * hidden]; inputs and states are quantized as they come.

    Inputs 8 to 11: scale and zero point of the input's weights, then of the state's.  All rows of the batch
    share the range of a step, as in ONNX Runtime with one thread; with more it may take a range for the rows of each.
    """
    call.inputs[0] = Tensor(call.tensor(0).name, call.op("dequantize", *quantized.dynamic_quantize_linear(call)))
    for index in (1, 2):
        call.inputs[index] = Tensor(call.tensor(index).name, call.transpose(call[index], 1, 2))
    return recurrent.lstm_of_8_bits(call)


@rule("QEmbedLayerNormalization")
def quantized_embeddings(call: OnnxCall) -> tuple[Value | None, ...]:
    """As EmbedLayerNormalization; tables, factors and biases (inputs 2 to 6) are integers, with scales from input 8 and
    zero points from input 13 on."""
    for index in range(2, 7):
        if not call.has(index):
            continue
        numbers = call.cast(call[index], float32)
        if call.has(index + 11):
            numbers = call.op("subtract", numbers, call.cast(_single(call, index + 11), float32))
        numbers = call.op("multiply", numbers, _single(call, index + 6))
        call.inputs[index] = Tensor(call.tensor(index).name, numbers)
    del call.inputs[8:]
    return microsoft.embed_layer_norm(call)[:2]
