"""Pieces for random ONNX programs that are more than a node: graphs inside, sequences, functions, other domains."""

from __future__ import annotations

from typing import Any

import numpy as np
from onnx import FunctionProto, GraphProto, NodeProto, TensorProto, helper, numpy_helper

from tools.fuzz import onnx_steps
from tools.fuzz.onnx_steps import Drawer, data
from tools.fuzz.targets.onnx_types import Piece

SAME = ("Abs", "Neg", "Identity")  # of all types but unsigned ones and truth values
OF_FLOATS = ("Relu", "Tanh", "Sigmoid", "Softsign", *SAME)
PAIRS = ("Add", "Sub", "Mul", "Max", "Min")


class Body:
    """A graph inside: elementwise nodes on values of one type, which keep their shape."""

    def __init__(self, p: Drawer, prefix: str) -> None:
        self.p, self.prefix = p, prefix
        self.nodes: list[NodeProto] = []
        self.stored: list[TensorProto] = []

    def node(self, operation: str, inputs: list[str], domain: str = "", **attributes: Any) -> str:
        name = f"{self.prefix}{len(self.nodes)}"
        self.nodes.append(helper.make_node(operation, inputs, [name], domain=domain, **attributes))
        return name

    def constant(self, array: Any, dtype: Any) -> str:
        name = f"{self.prefix}c{len(self.stored)}"
        self.stored.append(numpy_helper.from_array(np.asarray(array, dtype), name))
        return name

    def changed(self, name: str, dtype: Any, others: list[str]) -> str:
        """A value after one to three nodes, with others of the same shape."""
        for _ in range(self.p.random.randint(1, 3)):
            if others and self.p.random.random() < 0.5:
                pair = self.p.random.sample([name, self.p.random.choice(others)], 2)
                name = self.node(self.p.random.choice(PAIRS), pair)
            elif self.p.random.random() < 0.4:
                name = self.node(self.p.random.choice(PAIRS), [name, self.constant(self.p.random.randint(1, 3), dtype)])
            else:
                name = self.node(self.p.random.choice(OF_FLOATS if np.dtype(dtype).kind == "f" else SAME), [name])
        return name

    def graph(self, inputs: list[tuple[str, Any, int]], outputs: list[tuple[str, Any]]) -> GraphProto:
        """Inputs are names, element types and ranks; outputs names and types."""
        given = [helper.make_tensor_value_info(name, _code(dtype), [None] * rank) for name, dtype, rank in inputs]
        results = [helper.make_tensor_value_info(name, _code(dtype), None) for name, dtype in outputs]
        return helper.make_graph(self.nodes, self.prefix, given, results, self.stored)


def _code(dtype: Any) -> int:
    return helper.np_dtype_to_tensor_dtype(np.dtype(dtype))


def _names(p: Any, count: int) -> list[str]:
    return [f"v{len(p.values) + number}" for number in range(count)]


def _prefix(p: Any) -> str:
    p.bodies = getattr(p, "bodies", 0) + 1
    return f"b{p.bodies}_"


def _number(p: Any, least_rank: int = 0) -> tuple[str, np.ndarray]:
    """A value of float32, int32 or int64, of a moderate size."""
    for _ in range(8):
        name, array = p.value("fi", least_rank)
        if array.dtype in (np.float32, np.float64, np.int64, np.int32) and np.isfinite(array).all():
            return name, array
    dtype = p.random.choice([np.float32, np.int64])
    array = data(p.numbers, (2, 3)[: max(least_rank, 1)], dtype)
    return p.constant(array, dtype), array


def _like(p: Any, name: str, array: np.ndarray) -> list[str]:
    """Other values of the same shape and type."""
    shape = p.shapes.get(name)
    if shape is not None and any(isinstance(size, str) for size in shape):
        return [name]
    same = [k for k, other in p.values.items() if other.dtype == array.dtype and other.shape == array.shape]
    return [k for k in same if p.fixed or k == name] or [name]


def _condition(p: Any, nodes: list[NodeProto], prefix: str) -> tuple[str, list[str]]:
    """A truth value: a constant, or one that numbers give; and what it reads."""
    if p.random.random() < 0.3:
        name = p.constant(p.random.random() < 0.5, np.bool_)
        return name, [name]
    name, array = _number(p)
    limit = p.constant(p.random.randint(-2, 3), np.float32)
    whole = [f"{prefix}w{number}" for number in range(3)]
    nodes.append(helper.make_node("Cast", [name], [whole[0]], to=TensorProto.FLOAT))
    nodes.append(helper.make_node("ReduceMax" if array.size else "ReduceSum", [whole[0]], [whole[1]], keepdims=0))
    nodes.append(helper.make_node("Greater", [whole[1], limit], [whole[2]]))
    return whole[2], [name, limit]


def branch(p: Any) -> None:
    """An If whose branches give a value of one type, maybe of different sizes."""
    name, array = _number(p)
    prefix, nodes = _prefix(p), []
    condition, read = _condition(p, nodes, prefix)
    graphs = []
    for side in "te":
        body = Body(p, prefix + side)
        found = body.changed(name, array.dtype, _like(p, name, array))
        if p.random.random() < 0.3 and array.ndim:
            axis = p.random.randrange(array.ndim)
            found = body.node("Concat", [found, found], axis=axis)
        graphs.append(body.graph([], [(found, array.dtype)]))
    (result,) = _names(p, 1)
    nodes.append(helper.make_node("If", [condition], [result], then_branch=graphs[0], else_branch=graphs[1]))
    captured = _captured(p, graphs)
    p.piece(Piece(nodes, list(dict.fromkeys([*read, *captured])), [result]))


def _captured(p: Any, graphs: list[GraphProto]) -> list[str]:
    """What graphs inside read from outside."""
    known = {**p.constants, **p.values}
    return [name for graph in graphs for node in graph.node for name in node.input if name in known]


def loop(p: Any) -> None:
    """A Loop of a few rounds, known or computed, with carried values, rows, and maybe a condition."""
    name, array = _number(p)
    prefix, dtype = _prefix(p), array.dtype
    body = Body(p, prefix)
    others = [f"{prefix}state", *_like(p, name, array)]
    state = body.changed(f"{prefix}state", dtype, others)
    grows = array.ndim and p.random.random() < 0.2
    if grows:
        state = body.node("Concat", [f"{prefix}state", f"{prefix}state"], axis=0)
    row = body.changed(f"{prefix}state", dtype, [f"{prefix}state"])
    going = body.node("Identity", [f"{prefix}going"])
    if p.random.random() < 0.4:
        limit = body.constant(p.random.randint(0, 3), np.int64)
        going = body.node("Less", [f"{prefix}round", limit])
    inputs = [(f"{prefix}round", np.int64, 0), (f"{prefix}going", np.bool_, 0), (f"{prefix}state", dtype, array.ndim)]
    count, runs = p.random.choice([0, 1, 2, 3, 5]), p.random.random() < 0.9
    trips, start = p.constant(count, np.int64), p.constant(runs, np.bool_)
    rows = [] if grows or not (count and runs) else [(row, dtype)]  # the rows of no round have any sizes
    outputs = [(going, np.bool_), (state, dtype), *rows]
    results = _names(p, len(outputs) - 1)
    graph = body.graph(inputs, outputs)
    given = p.random.choice([[trips, start], [trips, ""], [trips, start]])
    node = helper.make_node("Loop", [*given, name], results, body=graph)
    p.piece(Piece([node], list(dict.fromkeys([*filter(None, given), name, *_captured(p, [graph])])), results))


def scan(p: Any) -> None:
    """A Scan along one axis of one or two values, with a state or none, either way."""
    name, array = _number(p, 1)
    prefix, dtype, axis = _prefix(p), array.dtype, p.random.randrange(array.ndim)
    body = Body(p, prefix)
    row, state = f"{prefix}row", f"{prefix}state"
    shape = array.shape[:axis] + array.shape[axis + 1 :]
    if array.size and (p.fixed or not shape):  # ONNX Runtime ends the process for rows without elements
        first = p.constant(data(p.numbers, shape, dtype), dtype)
    else:
        return
    after = body.changed(state, dtype, [row])
    out = body.changed(row, dtype, [after])
    graph = body.graph([(state, dtype, len(shape)), (row, dtype, len(shape))], [(after, dtype), (out, dtype)])
    results = _names(p, 2)
    ways = {f"scan_{side}put_directions": [p.random.randrange(2)] for side in ("in", "out")}
    ways |= {"scan_input_axes": [axis], "scan_output_axes": [p.random.randint(0, len(shape))]}
    node = helper.make_node("Scan", [first, name], results, body=graph, num_scan_inputs=1, **ways)
    p.piece(Piece([node], list(dict.fromkeys([first, name, *_captured(p, [graph])])), results))


def sequence(p: Any) -> None:
    """Tensors put into a sequence, changed there, and put together again."""
    name, array = _number(p, 1)
    prefix = _prefix(p)
    names = iter(f"{prefix}{number}" for number in range(20))
    nodes: list[NodeProto] = []
    read = [name]

    def node(operation: str, inputs: list[str], **attributes: Any) -> str:
        nodes.append(helper.make_node(operation, inputs, [next(names)], **attributes))
        return str(nodes[-1].output[0])

    axis = p.random.randrange(array.ndim)
    if p.random.random() < 0.5:
        items = [name, *(p.random.choice(_like(p, name, array)) for _ in range(p.random.randint(0, 2)))]
        read += items
        found = node("SequenceConstruct", items)
    else:
        given = []
        if p.random.random() < 0.5:
            given = [p.constant(p.random.choice([1, 2, 3]), np.int64)]
        read += given
        ways = {} if given else {"keepdims": p.random.randrange(2)}
        found = node("SplitToSequence", [name, *given], axis=axis, **ways)
    if p.random.random() < 0.5:
        place = [p.constant(p.random.randint(-1, 1), np.int64)] if p.random.random() < 0.6 else []
        read += place
        found = node("SequenceInsert", [found, name, *place])
    if p.random.random() < 0.3:
        found = node("SequenceErase", [found])
    kind = p.random.randrange(3)
    if kind == 0:
        place = p.constant(p.random.randint(-1, 1), np.int64)
        read.append(place)
        result = node("SequenceAt", [found, place])
    elif kind == 1:
        result = node("ConcatFromSequence", [found], axis=axis, new_axis=p.random.randrange(2))
    else:
        result = node("SequenceLength", [found])
    _renamed(p, nodes, result, read)


def _renamed(p: Any, nodes: list[NodeProto], result: str, read: list[str], functions: Any = ()) -> None:
    """Add nodes whose last result is a value of the program."""
    (name,) = _names(p, 1)
    nodes[-1].output[list(nodes[-1].output).index(result)] = name
    p.piece(Piece(nodes, list(dict.fromkeys(read)), [name], list(functions)))


def mapped(p: Any) -> None:
    """A SequenceMap of parts of a value."""
    if p.opset < 17:
        return
    name, array = _number(p, 1)
    prefix, dtype, axis = _prefix(p), array.dtype, p.random.randrange(array.ndim)
    body = Body(p, prefix)
    found = body.changed(f"{prefix}item", dtype, [f"{prefix}item"])
    graph = body.graph([(f"{prefix}item", dtype, array.ndim)], [(found, dtype)])
    nodes = [
        helper.make_node("SplitToSequence", [name], [f"{prefix}parts"], axis=axis),
        helper.make_node("SequenceMap", [f"{prefix}parts"], [f"{prefix}found"], body=graph),
        helper.make_node("ConcatFromSequence", [f"{prefix}found"], [f"{prefix}y"], axis=axis),
    ]
    _renamed(p, nodes, f"{prefix}y", [name])


def optional(p: Any) -> None:
    if p.opset < 18:
        return
    name, array = _number(p)
    prefix = _prefix(p)
    kind = p.random.choice(["OptionalHasElement", "OptionalGetElement"])
    nodes = [
        helper.make_node("Optional", [name], [f"{prefix}o"]),
        helper.make_node(kind, [f"{prefix}o"], [f"{prefix}y"]),
    ]
    _renamed(p, nodes, f"{prefix}y", [name])


def function(p: Any) -> None:
    """A function of the model's own, with an attribute, called once or twice."""
    name, array = _number(p)
    if array.dtype != np.float32:
        return
    prefix = _prefix(p)
    leaky = helper.make_node("LeakyRelu", [f"{prefix}a"], [f"{prefix}b"])
    leaky.attribute.append(helper.make_attribute("alpha", 0.5))
    leaky.attribute[0].ClearField("f")
    leaky.attribute[0].ref_attr_name = "slope"
    nodes = [leaky, helper.make_node(p.random.choice(PAIRS), [f"{prefix}a", f"{prefix}b"], [f"{prefix}y"])]
    own = helper.make_function(
        "local", f"{prefix}f", [f"{prefix}a"], [f"{prefix}y"], nodes, [helper.make_opsetid("", p.opset)], ["slope"]
    )
    calls = [helper.make_node(own.name, [name], [f"{prefix}z"], domain="local", slope=0.25)]
    if p.random.random() < 0.5:
        calls.append(helper.make_node(own.name, [f"{prefix}z"], [f"{prefix}z2"], domain="local", slope=2.0))
    assert isinstance(own, FunctionProto)
    _renamed(p, calls, str(calls[-1].output[0]), [name], [own])


# Quantized numbers -------------------------------------------------------------------------------------


def _of_bytes(p: Any, array: np.ndarray, kind: Any) -> np.ndarray:
    return np.asarray(p.numbers.integers(0 if kind == np.uint8 else -64, 64, array.shape), kind)


def _floats(p: Any, least_rank: int) -> tuple[str, np.ndarray] | None:
    """A value of float32 that is finite."""
    for _ in range(8):
        name, array = p.value("f", least_rank)
        if array.dtype == np.float32 and np.isfinite(array).all() and array.size:
            return name, array
    return None


def quantized(p: Any) -> None:
    """Floats to bytes, an operation on these, and back: scales are powers of two, so that halves are halves."""
    found = _floats(p, 2)
    if found is None:
        return
    name, array = found
    kind = p.random.choice([np.uint8, np.int8])
    scale, zero = p.constant(0.125, np.float32), p.constant(p.random.randint(0, 5), kind)
    prefix = _prefix(p)
    nodes = [helper.make_node("QuantizeLinear", [name, scale, zero], [f"{prefix}q"])]
    read, q = [name, scale, zero], f"{prefix}q"
    operation, inputs, ways, domain = _of_quantized(p, array, kind, (q, scale, zero))
    read += [item for item in inputs if item != q and item]
    nodes.append(helper.make_node(operation, inputs, [f"{prefix}r"], domain=domain, **ways))
    if "Integer" not in operation and p.random.random() < 0.5:
        nodes.append(helper.make_node("DequantizeLinear", [f"{prefix}r", scale, zero], [f"{prefix}y"]))
    _renamed(p, nodes, str(nodes[-1].output[0]), read)


def _of_quantized(p: Any, array: np.ndarray, kind: Any, given: tuple[str, str, str]) -> tuple[str, list[str], Any, str]:
    q, scale, zero = given
    other = p.constant(0.0625, np.float32)
    own = "com.microsoft"
    case = p.random.randrange(9)
    if case == 0:
        columns = p.constant(_of_bytes(p, np.zeros((array.shape[-1], 3)), np.int8), np.int8)
        return "MatMulInteger", [q, columns, zero], {}, ""
    if case == 1:
        columns = p.constant(_of_bytes(p, np.zeros((array.shape[-1], 3)), np.int8), np.int8)
        return (
            "QLinearMatMul",
            [q, scale, zero, columns, other, p.constant(0, np.int8), p.constant(0.5, np.float32), zero],
            {},
            "",
        )
    if case == 2 and array.ndim == 4:
        weight = p.constant(_of_bytes(p, np.zeros((2, array.shape[1], 1, 1)), np.int8), np.int8)
        inputs = [q, scale, zero, weight, other, p.constant(0, np.int8), p.constant(0.5, np.float32), zero]
        return "QLinearConv", inputs, {"kernel_shape": [1, 1]}, ""
    if case in (3, 4):
        right = p.constant(_of_bytes(p, array if p.fixed else array[:1], kind), kind)
        name = ("QLinearAdd", "QLinearMul")[case - 3]
        return name, [q, scale, zero, right, other, zero, p.constant(0.25, np.float32), zero], {}, own
    if case == 5:
        return "QLinearLeakyRelu", [q, scale, zero, other, zero], {"alpha": 0.3}, own
    if case == 6:
        return "QLinearSigmoid", [q, scale, zero, p.constant(1 / 256, np.float32), p.constant(0, kind)], {}, own
    if case == 7 and array.ndim == 4:
        ways = {"kernel_shape": [1, min(2, array.shape[3])], "strides": [1, 1]}
        return "QLinearAveragePool", [q, scale, zero, other, zero], ways, own
    if case == 8 and array.ndim == 4:
        return "QLinearGlobalAveragePool", [q, scale, zero, other, zero], {}, own
    return "DequantizeLinear", [q, scale, zero], {}, ""


# Layers of ONNX Runtime, and classical models ----------------------------------------------------------


def layer(p: Any) -> None:
    """Operations that ONNX Runtime's optimiser writes."""
    found = _floats(p, 2)
    if found is None:
        return
    name, array = found
    width, own = array.shape[-1], {"domain": "com.microsoft"}
    one = lambda *shape: p.constant(data(p.numbers, shape, np.float32), np.float32)  # noqa: E731
    case, (result,) = p.random.randrange(7), _names(p, 1)
    if case == 0:
        given, operation, ways = [name], "QuickGelu", {"alpha": 1.2}
    elif case == 1:
        given, operation, ways = [name, one(width)], p.random.choice(["BiasGelu", "FastGelu"]), {}
    elif case == 2:
        given, operation, ways = [name, one(width, 3)], "FusedMatMul", {"alpha": 0.5}
    elif case == 3 and array.ndim == 3:
        given, operation, ways = [name, name, one(width), one(width)], "SkipLayerNormalization", {"epsilon": 0.01}
    elif case == 4 and array.ndim == 3:
        given, operation, ways = [name, name, one(width)], "SkipSimplifiedLayerNormalization", {"epsilon": 0.01}
    elif case == 5:
        given, operation, ways = [name], "Gelu", {}
    else:
        ways = {"dim": -1, "size": min(2, width), "step": 1}
        given, operation = [name], "UnfoldTensor"
    node = helper.make_node(operation, given, [result], **own, **ways)
    p.piece(Piece([node], list(dict.fromkeys(given)), [result]))


def classical(p: Any) -> None:
    """Classical models on rows of numbers."""
    name, array = p.value("fi", 2)
    if array.ndim != 2 or not array.shape[1] or array.dtype not in (np.float32, np.float64, np.int64, np.int32):
        return
    if not np.isfinite(array).all():
        return
    operation, outputs, ways = _classical(p, array)
    results = _names(p, outputs)
    p.piece(Piece([helper.make_node(operation, [name], results, domain="ai.onnx.ml", **ways)], [name], results))


TRANSFORMS = ("NONE", "SOFTMAX", "LOGISTIC", "SOFTMAX_ZERO")


def _classical(p: Any, array: np.ndarray) -> tuple[str, int, dict[str, Any]]:
    width, classes = array.shape[1], p.random.randint(1, 4)
    one = lambda count: [float(x) for x in data(p.numbers, (count,), np.float32)]  # noqa: E731
    transform = {"post_transform": p.random.choice(TRANSFORMS)}
    case = p.random.randrange(9)
    if case == 0:
        return "Scaler", 1, {"offset": one(width), "scale": one(width)}
    if case == 1:
        return "Normalizer", 1, {"norm": p.random.choice(["MAX", "L1", "L2"])}
    if case == 2:
        return "Binarizer", 1, {"threshold": 0.5}
    if case == 3:
        coefficients = {"coefficients": one(width * classes), "intercepts": one(classes), "targets": classes}
        return "LinearRegressor", 1, coefficients | transform
    if case == 4:
        labels = {"classlabels_ints": list(range(max(classes, 2)))}
        return (
            "LinearClassifier",
            2,
            {"coefficients": one(width * classes), "intercepts": one(classes)} | labels | transform,
        )
    if case == 5:
        kind = p.random.choice(["LINEAR", "POLY", "RBF", "SIGMOID"])
        support = {"support_vectors": one(width * 3), "coefficients": one(3), "n_supports": 3, "rho": one(1)}
        return "SVMRegressor", 1, {"kernel_type": kind, "kernel_params": [0.5, 1.0, 2.0]} | support
    if case == 6:
        keys = {"keys_int64s": [-1, 0, 1, 2], "default_float": 7.5, "values_floats": one(4)}
        return "LabelEncoder", 1, keys
    if case == 7:
        return "TreeEnsembleRegressor", 1, _trees(p, width, "target") | {"n_targets": 2} | transform
    return "TreeEnsembleClassifier", 2, _trees(p, width, "class") | {"classlabels_int64s": [0, 1, 2]} | transform


def _trees(p: Any, width: int, kind: str) -> dict[str, Any]:
    """Two trees of three inner nodes each."""
    found: dict[str, list[Any]] = {name: [] for name in ("treeids", "nodeids", "featureids", "values", "modes")}
    found |= {"truenodeids": [], "falsenodeids": [], "missing_value_tracks_true": []}
    weights: dict[str, list[Any]] = {"treeids": [], "nodeids": [], "ids": [], "weights": []}
    modes = ("BRANCH_LEQ", "BRANCH_LT", "BRANCH_GTE", "BRANCH_GT", "BRANCH_EQ", "BRANCH_NEQ")
    mode = p.random.choice(modes)
    for tree in range(2):
        for node in range(7):
            inner = node < 3
            row = (tree, node, p.random.randrange(width) if inner else 0, float(p.random.choice([-1, 0, 0.5, 1])),
                   (p.random.choice(modes) if p.random.random() < 0.3 else mode) if inner else "LEAF",
                   2 * node + 1 if inner else 0, 2 * node + 2 if inner else 0, p.random.randrange(2))  # fmt: skip
            for values, item in zip(found.values(), row, strict=True):
                values.append(item)
            if not inner:
                leaf = (tree, node, p.random.randrange(2), float(p.random.choice([-0.5, 0.25, 1, 2])))
                for values, item in zip(weights.values(), leaf, strict=True):
                    values.append(item)
    return {f"nodes_{name}": values for name, values in found.items()} | {
        f"{kind}_{name}": values for name, values in weights.items()
    }


PIECES = (
    branch, branch, loop, loop, scan, sequence, sequence, mapped, optional, function, quantized, quantized, layer,
    classical, classical, onnx_steps.unary, onnx_steps.binary, onnx_steps.cast, onnx_steps.part, onnx_steps.shape,
    onnx_steps.reduction, onnx_steps.gather,
)  # fmt: skip
