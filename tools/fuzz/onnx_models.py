"""Small valid ONNX models to start from: the ONNX project's own node cases, and some of several parts."""

from __future__ import annotations

import functools
import logging
import math
import random
import traceback
import warnings
from pathlib import Path

import numpy as np
from onnx import ModelProto, TensorProto, numpy_helper, parser

from tilewright.build.builder import build
from tilewright.errors import ImportModelError, InvalidIRError
from tilewright.graph.core import Graph
from tilewright.importers.onnx import import_onnx
from tilewright.symbolic import evaluate, free_symbols, upper_bound
from tools.fuzz.target import Failed
from tools.fuzz.worker import signature
from tools.onnx_cases import node_cases

LARGEST = 16384  # bytes of a model

SEVERAL_PARTS = (
    """
    <ir_version: 10, opset_import: ["" : 20, "local" : 1]>
    main (float[n, 4] x) => (float[n, 4] y) {
        z = local.twice <factor = 2.0> (x)
        w = local.scaled(z, x)
        y = Softsign(w)
    }
    <opset_import: ["" : 18], domain: "local">
    twice <factor> (a) => (b) { f = Constant <value_float: float = @factor> ()  b = Mul(a, f) }
    <opset_import: ["" : 18, "local" : 1], domain: "local">
    scaled (a, s, o) => (b) { c = local.twice <factor = 3.0> (a)  b = Mul(c, s) }
    """,
    """
    <ir_version: 10, opset_import: ["" : 20]>
    main (float[n, 4] x) => (float[n, 4] y) {
        shape = Shape(x)
        rank = Size(shape)
        two = Constant <value_int: int = 2> ()
        flat = Equal(rank, two)
        y = If (flat) <
            then_branch = keep () => (float[n, 4] a) { a = Relu(x) },
            else_branch = other () => (float[n, 4] b) { b = Neg(x) }
        >
    }
    """,
    """
    <ir_version: 10, opset_import: ["" : 20]>
    main (float[n, 3, 8, 8] x, float[4, 3, 3, 3] w, float[4] b) => (float[n, m] y) {
        c = Conv <kernel_shape = [3, 3], pads = [1, 1, 1, 1]> (x, w, b)
        r = Relu(c)
        p = MaxPool <kernel_shape = [2, 2], strides = [2, 2]> (r)
        g = GlobalAveragePool(p)
        axes = Constant <value_ints: ints = [2, 3]> ()
        s = Squeeze(g, axes)
        y = Softmax <axis = -1> (s)
    }
    """,
    """
    <ir_version: 10, opset_import: ["" : 20]>
    main (float[n, s, 8] x, float[8, 24] w) => (float[n, s, 8] y) {
        p = MatMul(x, w)
        q, k, v = Split <axis = -1, num_outputs = 3> (p)
        t = Transpose <perm = [0, 2, 1]> (k)
        a = MatMul(q, t)
        m = Softmax(a)
        y = MatMul(m, v)
    }
    """,
    """
    <ir_version: 10, opset_import: ["" : 20]>
    main (float[n, c] x) => (float[p, q] y) {
        shape = Shape(x)
        zero = Constant <value_ints: ints = [0]> ()
        one = Constant <value_ints: ints = [1]> ()
        two = Constant <value_ints: ints = [2]> ()
        batch = Gather(shape, zero)
        width = Slice(shape, one, two)
        double = Mul(batch, two)
        target = Concat <axis = 0> (width, batch)
        turned = Reshape(x, target)
        wide = Concat <axis = 0> (one, double)
        y = Tile(turned, wide)
    }
    """,
)


def arrays_of(case: object) -> list[np.ndarray]:
    """The inputs of a node case."""
    return [
        numpy_helper.to_array(item) if isinstance(item, TensorProto) else np.asarray(item)
        for item in case.data_sets[0][0]  # type: ignore[attr-defined]
    ]


@functools.cache
def models() -> tuple[tuple[str, bytes], ...]:
    """Names and bytes of the models; parameters such as axes and shapes are stored in them, as exporters do."""
    found: dict[str, bytes] = {}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for case in node_cases():
            try:
                model = _stored(case.model, arrays_of(case))
            except (ValueError, TypeError, NotImplementedError):  # sequences and optional values
                model = case.model
            if model.ByteSize() <= LARGEST:
                found.setdefault(case.name, model.SerializeToString())
    for number, text in enumerate(SEVERAL_PARTS):
        found[f"parts_{number}"] = parser.parse_model(text).SerializeToString()
    return tuple(sorted(found.items()))


def _stored(model: ModelProto, arrays: list[np.ndarray]) -> ModelProto:
    result = ModelProto()
    result.CopyFrom(model)
    for entry, data in zip(model.graph.input, arrays, strict=False):
        parameter = data.dtype.kind in "iub" and data.ndim <= 1
        if parameter or (data.size <= 64 and entry is not model.graph.input[0]):
            result.graph.initializer.append(numpy_helper.from_array(data, entry.name))
    return result


def draw(generator: random.Random) -> tuple[str, ModelProto]:
    """One of the models, for a caller to change."""
    name, data = generator.choice(models())
    model = ModelProto()
    model.ParseFromString(data)
    return name, model


def check_import(model: ModelProto | Path) -> Graph:
    """Import a model; raises `Failed` for an error that says that the fault is ours."""
    logging.getLogger("tilewright").setLevel(logging.ERROR)
    try:
        graph = import_onnx(model)
    except InvalidIRError as error:
        raise Failed("internal", str(error)) from error
    except ImportModelError as error:
        if "the import rule failed" in str(error):
            text = "".join(traceback.format_exception(error))
            raise Failed("internal", text, signature(error.__cause__ or error)) from error
        raise
    return graph


def run_some(graph: Graph, generator: random.Random) -> str:
    """Build a small graph and run it once with random inputs; what came of it is only that nothing broke."""
    if any(free_symbols(size) for value in graph.inputs for size in value.shape):
        return "imported"
    elements = sum(math.prod(map(upper_bound, value.shape)) for value in graph.inputs)
    nodes = sum(math.prod(map(upper_bound, value.shape)) for node in graph.nodes for value in node.outputs)
    if elements > 10_000 or nodes > 1_000_000 or len(graph.nodes) > 200:
        return "imported"
    random_numbers = np.random.default_rng(generator.randrange(2**32))
    feeds = {}
    for value in graph.inputs:
        shape = tuple(int(evaluate(size, {})) for size in value.shape)
        data = random_numbers.standard_normal(shape) * 3
        feeds[value.name] = (
            np.abs(data).astype(value.dtype.numpy) if value.dtype.is_integer else data.astype(value.dtype.numpy)
        )
    build(graph).run(feeds)
    return "run"
