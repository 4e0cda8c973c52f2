"""Random ONNX graphs of all element types, with sizes of 0 and 1 and unknown ones, against ONNX Runtime.

Each node is run when it is drawn, and again for other inputs, by ONNX Runtime, or by ONNX's reference where that has no
kernel for its types: a program holds only what one of them computes.  Results of integers and truth values must be
equal, floats as near as the rounding of each node and changes of the inputs in their last bits allow; elements of
integers that such a change changes are left out.  One case of `BUILT_ONE_OF` is compiled, by a session as programs
make it; the others run the optimised graph through the NumPy reference.
"""

from __future__ import annotations

import contextlib
import logging
import random
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
from onnx import ModelProto, helper, numpy_helper
from onnx.reference import ReferenceEvaluator

from tilewright.build.size_conditions import size_conditions
from tilewright.graph import reference
from tilewright.graph.core import Graph
from tilewright.graph.ops import ON_HOST, kind_of
from tilewright.graph.pipeline import optimize
from tilewright.onnx import InferenceSession
from tilewright.symbolic import evaluate
from tools.fuzz import onnx_steps
from tools.fuzz.onnx_models import check_import
from tools.fuzz.target import Base, Failed

BUILT_ONE_OF = 4
OPSETS = (11, 12, 13, 15, 17, 18, 19, 20, 21, 22)
MOST_ELEMENTS = 2048
LATER_RUNS = 9  # of a session: from the eighth on, parts in a row are one native call
MOVES = 4  # runs with inputs changed in their last bits
ROUNDED = ("Erf", "Gelu", "HardSwish", "Resize")  # which ONNX's reference computes in part in float32
DOMAINS = {"ai.onnx.ml": 3, "com.microsoft": 1, "local": 1}  # and the opset of each that a program has
RANDOM_NAMES = ("n", "m", "length", "")


@dataclass
class Piece:
    """Nodes that are computed together, with the functions that they call: one, but where values between them are no
    tensors, or the node has graphs inside."""

    nodes: list[Any]
    inputs: list[str]
    outputs: list[str]
    functions: list[Any] = field(default_factory=list)
    runner: Any = None  # what computes it

    @property
    def domains(self) -> set[str]:
        return {node.domain for node in self.nodes} | {function.domain for function in self.functions}


class Program:
    """One random graph; `values` are what its values hold for the inputs drawn first."""

    steps: Sequence[Callable[[Any], None]] = onnx_steps.STEPS

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.numbers = np.random.default_rng(seed)
        self.opset = self.random.choice(OPSETS)
        self.pieces: list[Piece] = []
        self.constants: dict[str, np.ndarray] = {}
        self.values: dict[str, np.ndarray] = {}
        self.sizes = {name: self.random.choice([0, 1, 1, 2, 3, 5]) for name in RANDOM_NAMES}
        self.shapes: dict[str, list[str | int]] = {}
        self.peer = True  # whether ONNX Runtime computes every node
        self.fixed = self.random.random() < 0.5
        for number in range(self.random.choice([1, 1, 2])):
            self._input(f"x{number}")
        for _ in range(self.random.randint(2, 12)):
            if len(self.nodes) < 7:
                self.random.choice(self.steps)(self)
        used = {name for piece in self.pieces for name in piece.inputs}
        made = [name for name in self.values if name not in self.shapes]
        self.outputs = [name for name in made if name not in used]

    @property
    def nodes(self) -> list[Any]:
        return [node for piece in self.pieces for node in piece.nodes]

    def _input(self, name: str) -> None:
        shape: list[str | int] = []
        for _ in range(self.random.choice([0, 1, 2, 2, 3, 4, 4])):
            size = self.random.choice([0, 1, 2, 2, 3, 4, 5, 6])
            shape.append(self.random.choice(RANDOM_NAMES) if not self.fixed and self.random.random() < 0.5 else size)
        self.shapes[name] = shape
        dtype = self.random.choice(onnx_steps.TYPES)
        self.values[name] = onnx_steps.data(self.numbers, self._extents(shape), dtype)

    def _extents(self, shape: list[str | int]) -> tuple[int, ...]:
        return tuple(self.sizes[size] if isinstance(size, str) else size for size in shape)

    def value(self, kinds: str = "fiub", least_rank: int = 0) -> tuple[str, np.ndarray]:
        """A value of one of these kinds; an input of the program's own where there is none."""
        fits = [
            (name, array)
            for name, array in self.values.items()
            if array.dtype.kind in kinds and array.ndim >= least_rank
        ]
        if fits:
            return self.random.choice(fits[-4:] if self.random.random() < 0.7 else fits)
        shape = tuple(self.random.choice([1, 2, 4]) for _ in range(max(least_rank, 1)))
        dtype = self.random.choice([kind for kind in onnx_steps.TYPES if np.dtype(kind).kind in kinds])
        name = f"x{len(self.shapes)}"
        self.shapes[name] = list(shape)
        self.values[name] = onnx_steps.data(self.numbers, shape, dtype)
        return name, self.values[name]

    def like(self, array: np.ndarray) -> str:
        """A value of the same type that broadcasts with this one: a constant, or one that there is."""
        same = [
            name for name, other in self.values.items() if other.dtype == array.dtype and other.shape == array.shape
        ]
        if same and self.random.random() < 0.5:
            return self.random.choice(same)
        shape = [size if self.random.random() < 0.7 else 1 for size in array.shape]
        return self.constant(onnx_steps.data(self.numbers, tuple(shape), array.dtype), array.dtype)

    def constant(self, data: Any, dtype: Any = np.int64) -> str:
        name = f"c{len(self.constants)}"
        self.constants[name] = np.asarray(data, dtype)
        return name

    def node(self, operation: str, inputs: list[str], results: int = 1, **attributes: Any) -> None:
        """Add a node, if it can be run and gives a moderate number of elements."""
        names = [f"v{len(self.values) + number}" for number in range(results)]
        if operation == "Unique" and inputs[0] not in self.shapes and self.values[inputs[0]].dtype.kind == "f":
            return  # among computed numbers there may be NaNs, which ONNX Runtime takes as equal to any
        node = helper.make_node(operation, inputs, names, **attributes)
        self.piece(Piece([node], [name for name in inputs if name], names))

    def piece(self, piece: Piece) -> bool:
        """Add nodes, if they can be run and give a moderate number of elements; whether they were added."""
        feeds = {name: {**self.constants, **self.values}[name] for name in piece.inputs}
        if _is_unspecified(piece, feeds):
            return False
        piece.runner, found = self._computed(piece, feeds)
        if found is None or any(array.size > MOST_ELEMENTS or array.ndim > 6 for array in found):
            return False
        if any(array.dtype.kind not in "fiub" for array in found):
            return False
        self.pieces.append(piece)
        self.peer = self.peer and isinstance(piece.runner, onnxruntime.InferenceSession)
        self.values.update(zip(piece.outputs, found, strict=True))
        return True

    def _computed(self, piece: Piece, feeds: dict[str, np.ndarray]) -> tuple[Any, list[np.ndarray] | None]:
        """What computes nodes for inputs of any sizes, and their results for these; None where nothing does."""
        model, node = self._model_of(piece, feeds), piece.nodes[0]
        try:
            session = _session(model)
            return session, session.run(None, feeds)
        except Exception as error:  # any class of ONNX Runtime
            if "NOT_IMPLEMENTED" not in str(error) and "Could not find an implementation" not in str(error):
                return None, None
        has_graphs = any(attribute.HasField("g") for attribute in node.attribute)
        if len(piece.nodes) > 1 or piece.domains - {""} or has_graphs or node.op_type in ROUNDED:
            return None, None
        if self.opset < 13 and node.op_type in ("Softmax", "LogSoftmax", "Hardmax"):
            return None, None  # the reference knows the newer meaning of their axis alone
        try:
            evaluator = ReferenceEvaluator(model)
            return evaluator, _evaluated(evaluator, feeds)
        except Exception:  # any class: it checks little
            return None, None

    def run(self, feeds: dict[str, np.ndarray], by_reference: bool = False) -> list[np.ndarray]:
        """The outputs for these inputs, each node as it was computed when it was drawn, or by ONNX's reference; raises
        what that raises."""
        known = {**self.constants, **feeds}
        for piece in self.pieces:
            node, runner = piece.nodes[0], piece.runner
            own = {name: known[name] for name in piece.inputs}
            if by_reference:
                runner = ReferenceEvaluator(self._model_of(piece, own))
            if _is_unspecified(piece, own):
                raise ValueError(f"nobody defines this {node.op_type}")
            if node.op_type == "Concat":  # ONNX Runtime lets empty tensors have any sizes
                np.concatenate([known[name] for name in node.input], node.attribute[0].i)
            whole = isinstance(runner, onnxruntime.InferenceSession)
            found = runner.run(piece.outputs, own) if whole else _evaluated(runner, own)
            known.update(zip(piece.outputs, found, strict=True))
        return [known[name] for name in self.outputs]

    def _model_of(self, piece: Piece, feeds: dict[str, np.ndarray]) -> ModelProto:
        """Nodes alone, of inputs of any sizes."""
        shapes = {name: [None] * array.ndim for name, array in feeds.items()}
        return self._model([piece], shapes, feeds, piece.outputs, {})

    def _model(
        self, pieces: list[Piece], shapes: dict[str, Any], arrays: dict[str, np.ndarray], outputs: Any, constants: Any
    ) -> ModelProto:
        kind = lambda name: helper.np_dtype_to_tensor_dtype(arrays[name].dtype)  # noqa: E731
        inputs = [helper.make_tensor_value_info(name, kind(name), shape) for name, shape in shapes.items()]
        results = [helper.make_empty_tensor_value_info(name) for name in outputs]
        stored = [numpy_helper.from_array(array, name) for name, array in constants.items()]
        nodes = [node for piece in pieces for node in piece.nodes]
        graph = helper.make_graph(nodes, "program", inputs, results, stored)
        opsets = [helper.make_opsetid("", self.opset)]
        opsets += [
            helper.make_opsetid(name, DOMAINS[name])
            for name in sorted(set().union(*(p.domains for p in pieces)) - {""})
        ]
        functions = [function for piece in pieces for function in piece.functions]
        return helper.make_model(graph, opset_imports=opsets, ir_version=8, functions=functions)

    def model(self) -> ModelProto:
        """The program, with the types of its results."""
        shapes = {
            name: [size or None for size in shape] if "" in shape else shape for name, shape in self.shapes.items()
        }
        model = self._model(self.pieces, shapes, self.values, [], self.constants)
        for name in self.outputs:
            kind = helper.np_dtype_to_tensor_dtype(self.values[name].dtype)
            model.graph.output.append(helper.make_tensor_value_info(name, kind, None))
        return model

    def feeds(self, number: int) -> dict[str, np.ndarray]:
        """The inputs that were drawn first, then others, of other sizes where they are free."""
        if number:
            self.sizes = {name: self.random.choice([0, 1, 2, 3, 7]) for name in RANDOM_NAMES}
            for name, shape in self.shapes.items():
                self.values[name] = onnx_steps.data(self.numbers, self._extents(shape), self.values[name].dtype)
        return {name: self.values[name] for name in self.shapes}


def _is_unspecified(piece: Piece, feeds: dict[str, np.ndarray]) -> bool:
    """Whether ONNX Runtime's answer is its own: NaNs (see "Numbers at the edge"), means of nothing, windows larger than
    images."""
    node, arrays = piece.nodes[0], list(feeds.values())
    if len(piece.nodes) > 1:
        return False
    attributes = {attribute.name: helper.get_attribute_value(attribute) for attribute in node.attribute}
    if "kernel_shape" in attributes:
        kernel, image = attributes["kernel_shape"], arrays[0].shape[2:]
        if any(size < reach for size, reach in zip(image, kernel, strict=False)):
            return True
    if node.op_type == "ReduceMean" and 0 in arrays[0].shape:
        return True
    if node.op_type == "TopK" and (0 in arrays[0].shape or not arrays[1].all()):  # may end the process
        return True
    ordered = "TopK ReduceMax ReduceMin ArgMax ArgMin MaxPool QuantizeLinear DynamicQuantizeLinear"
    if node.op_type not in ordered.split():
        return False
    floats = [array for array in arrays if array.dtype.kind == "f"]
    return any(np.isnan(array).any() for array in floats)


def _session(model: ModelProto) -> onnxruntime.InferenceSession:
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads, options.log_severity_level = 1, 4
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    return onnxruntime.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])


def _evaluated(evaluator: ReferenceEvaluator, feeds: dict[str, np.ndarray]) -> list[np.ndarray]:
    with warnings.catch_warnings(), np.errstate(all="ignore"):
        warnings.simplefilter("ignore")
        return [np.asarray(array) for array in evaluator.run(None, feeds)]


class Target(Base):
    seconds = 120.0  # some cases compile several engines
    program = Program

    def prepare(self, folder: Path) -> None:
        logging.getLogger("tilewright").setLevel(logging.ERROR)
        onnxruntime.set_default_logger_severity(4)

    def run(self, seed: int) -> str:
        program = self.program(seed)
        if not program.outputs:
            return "empty"
        model = program.model()
        built = seed % BUILT_ONE_OF == 0
        session = InferenceSession(model.SerializeToString()) if built else None
        optimised = None if built else _optimised(check_import(model))
        free = [size for shape in program.shapes.values() for size in shape if isinstance(size, str)]
        for number in range(3 if free else 1):
            feeds = program.feeds(number)
            if not program.peer and any(0 in array.shape for array in feeds.values()):
                continue  # which the reference does not heed everywhere
            try:
                want = program.run(feeds)
            except Exception:  # sizes that this program does not take
                continue
            if session is not None:
                found = session.run(program.outputs, feeds)
                _run_again(session, program, feeds, found)
            elif all(program.sizes[size] > 1 for size in free):
                assert optimised is not None
                if not _takes(optimised, feeds):
                    continue
                results = reference.run(optimised, feeds, None)
                found = [results[name] for name in program.outputs]
            else:  # which a session may take with an engine of its own
                continue
            try:
                compare(program, feeds, want, found)
            except Failed:
                if not _is_as_in_reference(program, feeds, found):
                    raise
                return "ONNX's reference and ONNX Runtime differ"
        return "right, compiled" if built else "right"


def _run_again(session: InferenceSession, program: Program, feeds: dict[str, np.ndarray], found: list[Any]) -> None:
    """Raise `Failed` unless later runs, which are prepared by then, give the same."""
    for _ in range(LATER_RUNS):
        later = session.run(program.outputs, feeds)
    for name, first, last in zip(program.outputs, found, later, strict=True):
        if first.shape != last.shape or first.tobytes() != last.tobytes():
            operations = ", ".join(node.op_type for node in program.nodes)
            raise Failed("wrong", f"{name}: {first}, and later {last}; {operations}", "a later run differs")


def _optimised(graph: Graph) -> Graph:
    """The graph after the passes, as it is compiled; one that is cut before, for sizes that only the run knows, lists
    or graphs inside, as it is."""
    is_cut = any(kind_of(node.op) in (*ON_HOST, "control") for node in graph.nodes)
    return graph if is_cut or reference.run_time_symbols(graph) else optimize(graph)


def _takes(graph: Graph, feeds: dict[str, np.ndarray]) -> bool:
    """Whether the sizes of a call fit, as far as inputs decide: an engine finds that out before it runs."""
    symbols: dict[str, int] = {}
    for value in graph.inputs:
        reference.bind(value.shape, feeds[value.name].shape, symbols, lambda: "an input")
    for item in size_conditions(graph):
        with contextlib.suppress(KeyError):  # a size that only the run knows
            if evaluate(item.left, symbols) != evaluate(item.right, symbols):
                return False
    return True


def _is_as_in_reference(program: Program, feeds: dict[str, np.ndarray], found: list[Any]) -> bool:
    """Whether results are those of ONNX's reference, where it takes the program."""
    try:
        compare(program, feeds, program.run(feeds, by_reference=True), found, by_reference=True)
    except Exception:  # any class of the reference, and `Failed`
        return False
    return moved(program, feeds, by_reference=True) is not None


def moved(program: Program, feeds: dict[str, np.ndarray], by_reference: bool) -> list[list[np.ndarray]] | None:
    """What the program gives for inputs changed in their last bits; None where sizes that these decide do not fit."""
    found = []
    for number in range(MOVES):
        generator = np.random.default_rng(number)
        near = {}
        for name, array in feeds.items():
            if array.dtype.kind == "f":
                steps = generator.integers(-3, 4, array.shape).astype(array.dtype)
                array = np.asarray(array + steps * np.spacing(np.abs(array)).astype(array.dtype))
            near[name] = array
        try:
            found.append(program.run(near, by_reference))
        except Exception:  # any class of the peer
            return None
    return found


def compare(
    program: Program, feeds: dict[str, np.ndarray], want: list[Any], found: list[Any], by_reference: bool = False
) -> None:
    """Raise `Failed` where results are not those of the peer."""
    near = moved(program, feeds, by_reference)
    if near is None:
        return
    operations = ", ".join(node.op_type for node in program.nodes)
    where = f"opset {program.opset}: {operations}; { ({name: array.shape for name, array in feeds.items()}) }"
    for number, (name, expected, mine) in enumerate(zip(program.outputs, want, found, strict=True)):
        expected, mine = np.asarray(expected), np.asarray(mine)
        others = [np.asarray(answers[number]) for answers in near]
        if any(other.shape != expected.shape for other in others):
            continue
        if expected.dtype != program.values[name].dtype:
            continue  # ONNX's reference leaves some sums in NumPy's own type
        if mine.shape != expected.shape or mine.dtype != expected.dtype:
            text = f"{name} is {mine.dtype}{list(mine.shape)}, expected {expected.dtype}{list(expected.shape)}"
            raise Failed("wrong", f"{text}; {where}", f"shape: {operations}"[:80])
        if not _equal(expected, mine, others, len(program.nodes), _least_rounding(program)).all():
            text = f"{name}: {mine.reshape(-1)[:8]}, expected {expected.reshape(-1)[:8]}"
            raise Failed("wrong", f"{text}; {where}", operations[:80])


def _least_rounding(program: Program) -> float:
    """Of a node, of the size of its numbers: attributes are float32, and a wider type may hold a narrower one's."""
    types = {node.op_type for node in program.nodes}
    units = [1e-12]
    if "Cast" in types:
        units += [float(np.finfo(array.dtype).eps) for array in program.values.values() if array.dtype.kind == "f"]
    if "InstanceNormalization" in types:  # of one element, whose rounding is divided by the root of 1e-5
        units.append(1e-6)
    return max(units)


def _equal(
    expected: np.ndarray, mine: np.ndarray, others: list[np.ndarray], nodes: int, unit: float = 1e-12
) -> np.ndarray:
    """Which elements are right; `unit` is the least rounding of a node, of the size of the numbers."""
    same = np.logical_and.reduce([np.asarray(expected == other) for other in others])
    if expected.dtype.kind != "f":
        return (expected == mine) | ~same
    unit = max(float(np.finfo(expected.dtype).eps), unit)
    with np.errstate(all="ignore"):
        wide, near, got = (
            expected.astype(np.float64),
            [other.astype(np.float64) for other in others],
            mine.astype(float),
        )
        change = np.maximum.reduce([np.abs(other - wide) for other in near])
        finite = np.isfinite(wide) & np.isfinite(change)
        largest = np.abs(wide[finite]).max(initial=0.0) + 1
        bound = 16 * (nodes + 1) * (change + unit * (np.abs(wide) + largest))
        exact = (got == wide) | (np.isnan(got) & np.isnan(wide))
        return exact | (finite & (np.abs(got - wide) <= bound)) | (~finite & ~same & ~np.isnan(wide))


TARGET = Target()
