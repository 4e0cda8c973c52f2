"""Random valid ONNX graphs in many opsets, with fixed and dynamic batch, against ONNX Runtime in float64.

The first dimension of every tensor is the batch.  A result may differ from the reference by the rounding of each node
and by what a change of the inputs in their last bit does to the reference, which measures the graph's condition.
One case of `BUILT_ONE_OF` runs compiled; the others run the optimised graph through the NumPy reference.
"""

from __future__ import annotations

import logging
import random
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
from onnx import ModelProto, TensorProto, helper, numpy_helper

from tilewright.build.builder import build
from tilewright.graph import reference
from tilewright.graph.pipeline import optimize
from tools.fuzz.onnx_models import check_import
from tools.fuzz.target import Base, Failed

BUILT_ONE_OF = 8
OPSETS = (7, 8, 9, 10, 11, 12, 13, 15, 17, 18, 19, 20, 21)
EPSILON = float(np.finfo(np.float32).eps)
UNARY = ("Relu", "Neg", "Abs", "Sigmoid", "Tanh", "Softplus", "Softsign", "Elu", "Selu", "LeakyRelu", "HardSigmoid")
BINARY = ("Add", "Sub", "Mul", "Max", "Min")
REDUCTIONS = ("ReduceSum", "ReduceMean", "ReduceMax", "ReduceMin", "ReduceL1", "ReduceSumSquare", "ReduceLogSumExp")


class Program:
    """One random graph; `shapes` are those of its values without the batch."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.numbers = np.random.default_rng(seed)
        self.opset = self.random.choice(OPSETS)
        self.batch = self.random.choice([1, 2, 3, 5])
        self.dynamic = self.random.random() < 0.5
        self.nodes: list[Any] = []
        self.constants: dict[str, np.ndarray] = {}
        self.shapes: dict[str, tuple[int, ...]] = {}
        self.inputs = [f"x{number}" for number in range(self.random.choice([1, 1, 2]))]
        for name in self.inputs:
            self.shapes[name] = tuple(self.random.choice([1, 2, 3, 5, 8]) for _ in range(self.random.randrange(4)))
        for _ in range(self.random.randint(1, 7)):
            self.step()
        used = {name for node in self.nodes for name in node.input}
        self.outputs = [name for name in self.shapes if name not in used and name not in self.inputs]

    def step(self) -> None:
        name = self.random.choice(list(self.shapes))
        steps = [self.unary, self.binary, self.reduction, self.softmax, self.matmul, self.transpose, self.reshape]
        steps += [self.unsqueeze, self.slice, self.concat, self.split, self.pad, self.gather, self.clip, self.filled]
        steps += [self.convolution, self.pool, self.expand]
        self.random.choice(steps)(name, self.shapes[name])

    def node(self, operation: str, inputs: list[str], shape: tuple[int, ...], **attributes: Any) -> str:
        name = f"v{len(self.shapes)}"
        self.nodes.append(helper.make_node(operation, inputs, [name], **attributes))
        self.shapes[name] = shape
        return name

    def constant(self, data: Any, dtype: Any = np.int64) -> str:
        name = f"c{len(self.constants)}"
        self.constants[name] = np.asarray(data, dtype)
        return name

    def weights(self, *shape: int) -> str:
        return self.constant(self.numbers.standard_normal(shape), np.float32)

    def axis(self, shape: tuple[int, ...]) -> int:
        return self.random.randint(1, len(shape))

    def unary(self, name: str, shape: tuple[int, ...]) -> None:
        self.node(self.random.choice(UNARY), [name], shape)

    def binary(self, name: str, shape: tuple[int, ...]) -> None:
        other = self.weights(*(size if self.random.random() < 0.7 else 1 for size in shape))
        if self.random.random() < 0.4:
            other = self.random.choice([item for item in self.shapes if self.shapes[item] == shape])
        operations = BINARY if self.opset >= 8 else BINARY[:3]  # Max and Min do not broadcast before
        self.node(self.random.choice(operations), self.random.sample([name, other], 2), shape)

    def reduction(self, name: str, shape: tuple[int, ...]) -> None:
        if not shape:
            return
        operation, keep = self.random.choice(REDUCTIONS), self.random.randrange(2)
        axes = self.random.sample(range(1, len(shape) + 1), self.random.randint(1, len(shape)))
        left = [1 if place in axes else size for place, size in enumerate(shape, start=1) if keep or place not in axes]
        as_input = self.opset >= (13 if operation == "ReduceSum" else 18)
        given = [axis - 1 - len(shape) if self.random.random() < 0.5 and self.opset >= 11 else axis for axis in axes]
        inputs = [name, self.constant(given)] if as_input else [name]
        extra = {} if as_input else {"axes": given}
        self.node(operation, inputs, tuple(left), keepdims=keep, **extra)

    def softmax(self, name: str, shape: tuple[int, ...]) -> None:
        if shape:
            self.node(self.random.choice(["Softmax", "LogSoftmax"]), [name], shape, axis=self.axis(shape))

    def matmul(self, name: str, shape: tuple[int, ...]) -> None:
        if shape:
            columns = self.random.choice([1, 2, 4, 9])
            if len(shape) == 1 and self.random.random() < 0.5:
                self.node("Gemm", [name, self.weights(columns, shape[0]), self.weights(columns)], (columns,), transB=1)
            else:
                self.node("MatMul", [name, self.weights(shape[-1], columns)], (*shape[:-1], columns))

    def transpose(self, name: str, shape: tuple[int, ...]) -> None:
        order = self.random.sample(range(1, len(shape) + 1), len(shape))
        self.node("Transpose", [name], tuple(shape[axis - 1] for axis in order), perm=[0, *order])

    def reshape(self, name: str, shape: tuple[int, ...]) -> None:
        count = int(np.prod(shape, dtype=np.int64))
        divisor = self.random.choice([number for number in range(1, count + 1) if count % number == 0])
        target = self.random.choice([(count,), (divisor, count // divisor), (1, divisor, count // divisor)])
        self.node("Reshape", [name, self.constant([self.random.choice([0, -1]), *target])], target)

    def unsqueeze(self, name: str, shape: tuple[int, ...]) -> None:
        axis = self.random.randint(1, len(shape) + 1)
        wider = (*shape[: axis - 1], 1, *shape[axis - 1 :])
        for operation, source, result in (("Unsqueeze", name, wider), ("Squeeze", "", shape)):
            source = source or name
            new = self.opset >= 13
            inputs = [source, self.constant([axis])] if new else [source]
            name = self.node(operation, inputs, result, **({} if new else {"axes": [axis]}))
            if self.random.random() < 0.7:
                return

    def slice(self, name: str, shape: tuple[int, ...]) -> None:
        if not shape:
            return
        axis = self.axis(shape)
        size = shape[axis - 1]
        start, step = (
            self.random.randint(-size, size - 1),
            self.random.choice([1, 1, 2, -1, -2]) if self.opset >= 10 else 1,
        )
        end = (
            self.random.choice([size, 2**31 - 1, size - 1, -1, 1])
            if step > 0
            else self.random.choice([-(2**31), -size - 1, 0])
        )
        length_of_slice = len(range(size)[slice(start, end, step)])
        if length_of_slice == 0:
            return
        result = (*shape[: axis - 1], length_of_slice, *shape[axis:])
        if self.opset < 10:
            self.node("Slice", [name], result, starts=[start], ends=[end], axes=[axis])
        else:
            self.node("Slice", [name, *(self.constant([item]) for item in (start, end, axis, step))], result)

    def concat(self, name: str, shape: tuple[int, ...]) -> None:
        if shape:
            axis = self.axis(shape)
            same = [item for item in self.shapes if self.shapes[item] == shape]
            others = [self.random.choice(same) for _ in range(self.random.randint(1, 2))]
            total = shape[axis - 1] * (len(others) + 1)
            self.node("Concat", [name, *others], (*shape[: axis - 1], total, *shape[axis:]), axis=axis)

    def split(self, name: str, shape: tuple[int, ...]) -> None:
        if not shape:
            return
        axis = self.axis(shape)
        size = shape[axis - 1]
        first = self.random.randint(1, size)
        sizes = [first, size - first] if first < size else [size]
        names = [f"v{len(self.shapes) + number}" for number in range(len(sizes))]
        inputs, extra = ([name, self.constant(sizes)], {}) if self.opset >= 13 else ([name], {"split": sizes})
        self.nodes.append(helper.make_node("Split", inputs, names, axis=axis, **extra))
        for part, width in zip(names, sizes, strict=True):
            self.shapes[part] = (*shape[: axis - 1], width, *shape[axis:])

    def pad(self, name: str, shape: tuple[int, ...]) -> None:
        mode = self.random.choice(["constant", "reflect", "edge"])
        low, high = (
            [self.random.randint(0, 2 if mode != "reflect" else min(2, size - 1)) for size in shape] for _ in "ab"
        )
        pads = [0, *low, 0, *high]
        result = tuple(a + size + b for a, size, b in zip(low, shape, high, strict=True))
        if self.opset < 11:
            self.node("Pad", [name], result, pads=pads, mode=mode)
        else:
            self.node("Pad", [name, self.constant(pads)], result, mode=mode)

    def gather(self, name: str, shape: tuple[int, ...]) -> None:
        if shape:
            axis = self.axis(shape)
            low = -shape[axis - 1] if self.opset >= 11 else 0
            chosen = self.numbers.integers(low, shape[axis - 1], self.random.choice([(), (1,), (3,), (2, 2)]))
            self.node(
                "Gather", [name, self.constant(chosen)], (*shape[: axis - 1], *chosen.shape, *shape[axis:]), axis=axis
            )

    def clip(self, name: str, shape: tuple[int, ...]) -> None:
        if self.opset < 11:
            self.node("Clip", [name], shape, min=-0.5, max=0.75)
        else:
            low = self.constant(-0.5, np.float32) if self.random.random() < 0.6 else ""
            self.node("Clip", [name, low, self.constant(0.75, np.float32)], shape)

    def filled(self, name: str, shape: tuple[int, ...]) -> None:
        """One number everywhere, in the shape of a value, and its sum."""
        if not shape or self.opset < 9:
            return
        extents = f"s{len(self.nodes)}"
        self.nodes.append(helper.make_node("Shape", [name], [extents]))
        value = numpy_helper.from_array(np.ones(1, np.float32))
        same = self.node("ConstantOfShape", [extents], shape, value=value)
        self.nodes[-1].attribute[0].t.name = "filled"
        self.reduction(same, shape)

    def convolution(self, name: str, shape: tuple[int, ...]) -> None:
        if len(shape) not in (2, 3):
            return
        kernel = [self.random.randint(1, min(3, size)) for size in shape[1:]]
        pads = [self.random.randint(0, 1) for _ in range(2 * len(kernel))]
        strides = [self.random.choice([1, 1, 2]) for _ in kernel]
        sizes = [
            (size + pads[i] + pads[i + len(kernel)] - kernel[i]) // strides[i] + 1 for i, size in enumerate(shape[1:])
        ]
        features = self.random.choice([1, 2, 4])
        inputs = [name, self.weights(features, shape[0], *kernel), self.weights(features)]
        self.node("Conv", inputs, (features, *sizes), pads=pads, strides=strides, kernel_shape=kernel)

    def pool(self, name: str, shape: tuple[int, ...]) -> None:
        if len(shape) not in (2, 3):
            return
        kernel = [self.random.randint(1, min(3, size)) for size in shape[1:]]
        strides = [self.random.choice([1, 2]) for _ in kernel]
        sizes = [(size - kernel[i]) // strides[i] + 1 for i, size in enumerate(shape[1:])]
        operation = self.random.choice(["MaxPool", "AveragePool"])
        self.node(operation, [name], (shape[0], *sizes), strides=strides, kernel_shape=kernel)

    def expand(self, name: str, shape: tuple[int, ...]) -> None:
        wider = tuple(self.random.choice([2, 3]) if size == 1 else size for size in shape)
        if self.opset >= 8:
            self.node("Expand", [name, self.constant([1, *wider])], wider)

    def model(self, kind: int) -> ModelProto:
        """The graph with numbers of type `kind`."""
        dtype = helper.tensor_dtype_to_np_dtype(kind)
        extent = "n" if self.dynamic else self.batch
        constants = [
            numpy_helper.from_array(data.astype(dtype) if data.dtype == np.float32 else data, name)
            for name, data in self.constants.items()
        ]
        nodes = [type(node).FromString(node.SerializeToString()) for node in self.nodes]
        for node in nodes:
            for attribute in node.attribute:
                if attribute.name == "value":
                    attribute.t.CopyFrom(numpy_helper.from_array(np.ones(1, dtype), "filled"))
        graph = helper.make_graph(
            nodes,
            "program",
            [helper.make_tensor_value_info(name, kind, [extent, *self.shapes[name]]) for name in self.inputs],
            [helper.make_tensor_value_info(name, kind, [extent, *self.shapes[name]]) for name in self.outputs],
            constants,
        )
        return helper.make_model(graph, opset_imports=[helper.make_opsetid("", self.opset)], ir_version=8)

    def feeds(self, batch: int) -> dict[str, np.ndarray]:
        return {
            name: self.numbers.standard_normal((batch, *self.shapes[name])).astype(np.float32) for name in self.inputs
        }


class Target(Base):
    seconds = 60.0  # some cases compile kernels

    def prepare(self, folder: Path) -> None:
        logging.getLogger("tilewright").setLevel(logging.ERROR)
        onnxruntime.set_default_logger_severity(4)

    def run(self, seed: int) -> str:
        program = Program(seed)
        if not program.outputs:
            return "empty"
        session = self._session(program)
        if session is None:
            return "no kernel in ONNX Runtime"
        graph = check_import(program.model(TensorProto.FLOAT))
        built = seed % BUILT_ONE_OF == 0
        engine = build(graph) if built else None
        optimised = None if built else optimize(graph)
        batches = [1, program.batch, 7] if program.dynamic else [program.batch]
        for batch in batches:
            feeds = program.feeds(batch)
            found = engine.run(feeds) if engine is not None else reference.run(optimised, feeds, None)  # type: ignore[arg-type]
            self._compare(program, session, feeds, found)
        return "right, compiled" if built else "right"

    def _session(self, program: Program) -> onnxruntime.InferenceSession | None:
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = 1
        options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
        data = program.model(TensorProto.DOUBLE).SerializeToString()
        try:
            return onnxruntime.InferenceSession(data, options, providers=["CPUExecutionProvider"])
        except Exception as error:
            if "NOT_IMPLEMENTED" in str(error) or "Could not find an implementation" in str(error):
                return None
            raise Failed("invalid", str(error), "onnxruntime refuses the model") from error

    def _compare(
        self,
        program: Program,
        session: onnxruntime.InferenceSession,
        feeds: dict[str, np.ndarray],
        found: dict[str, np.ndarray],
    ) -> None:
        wide = {name: data.astype(np.float64) for name, data in feeds.items()}
        want = session.run(program.outputs, wide)
        moved = [np.zeros_like(item) for item in want]
        for sign in (1, -1):
            near = {name: data * (1 + sign * EPSILON * self._signs(data.shape, sign)) for name, data in wide.items()}
            for number, item in enumerate(session.run(program.outputs, near)):
                moved[number] = np.maximum(moved[number], np.abs(item - want[number]))
        steps = 16 * (len(program.nodes) + 1)
        for name, expected, change in zip(program.outputs, want, moved, strict=True):
            got = np.asarray(found[name])
            if got.shape != expected.shape:
                raise Failed("wrong", f"{name} has the shape {got.shape}, expected {expected.shape}", "shape")
            scale = np.abs(expected).max(initial=0.0) + change.max(initial=0.0) + 1
            bound = steps * (change + EPSILON * (np.abs(expected) + scale))
            if not (np.abs(got - expected) <= bound).all():
                text = f"{name}: {got.reshape(-1)[:8]}, expected {expected.reshape(-1)[:8]}"
                operations = ", ".join(node.op_type for node in program.nodes)
                raise Failed("wrong", f"{text}; opset {program.opset}: {operations}", operations[:80])

    def _signs(self, shape: tuple[int, ...], sign: int) -> np.ndarray:
        return np.random.default_rng(sign + 1).choice([-1.0, 1.0], shape)


TARGET = Target()
