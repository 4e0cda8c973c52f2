"""ONNX models -> Graph: opset 13 and newer, initializers mapped, shape arithmetic done at import."""

from __future__ import annotations

import ast
import logging
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx.inliner
from onnx import ModelProto, NodeProto, TensorProto, ValueInfoProto, helper, numpy_helper

from tilewright import dtypes
from tilewright.dtypes import DType
from tilewright.errors import ImportModelError, ShapeError
from tilewright.graph.build import GraphBuilder
from tilewright.graph.core import Graph, Value
from tilewright.importers.onnx_call import Call, Tensor, known_tensor
from tilewright.importers.onnx_known import UNKNOWN, evaluate
from tilewright.importers.onnx_ops import RULES
from tilewright.importers.report import NO_RULE, NO_RULE_ADVICE, Problem, Report, Unsupported
from tilewright.importers.shapes import Axes, Dimension, check_names, parse_dynamic_shapes, symbol_name
from tilewright.symbolic import Size

logger = logging.getLogger("tilewright")

OLDEST_OPSET = 13
DOMAINS = ("", "ai.onnx")
TYPE_ATTRIBUTES = ("to", "dtype", "output_dtype", "output_datatype")  # whose numbers name an element type
DTYPES: dict[int, DType] = {
    TensorProto.BOOL: dtypes.int1,
    TensorProto.INT8: dtypes.int8,
    TensorProto.INT16: dtypes.int16,
    TensorProto.INT32: dtypes.int32,
    TensorProto.INT64: dtypes.int64,
    TensorProto.UINT8: dtypes.uint8,
    TensorProto.UINT16: dtypes.uint16,
    TensorProto.UINT32: dtypes.uint32,
    TensorProto.UINT64: dtypes.uint64,
    TensorProto.FLOAT8E5M2: dtypes.float8e5,
    TensorProto.FLOAT8E4M3FN: dtypes.float8e4nv,
    TensorProto.FLOAT16: dtypes.float16,
    TensorProto.BFLOAT16: dtypes.bfloat16,
    TensorProto.FLOAT: dtypes.float32,
    TensorProto.DOUBLE: dtypes.float64,
}


def import_onnx(
    model: ModelProto | Path, dynamic_shapes: Mapping[str, Any] | None = None, name: str | None = None
) -> Graph:
    """Import a model or a file.

    Dimensions with a name (`dim_param`) are symbols; `dynamic_shapes` gives them ranges and other
    names, or fixes them.  Raises `ImportModelError` for unreadable files and opsets before 13 that
    cannot be converted, and `UnsupportedOperationError`.
    """
    folder = None
    if isinstance(model, Path):
        folder = model.parent
        name = name or model.stem
        model = _load(model)
    model = _prepared(model)
    opset = _opset(model)
    name = name or model.graph.name or "onnx"
    report = Report(name)
    importer = _Importer(name, opset, folder, report)
    importer.inputs(model.graph, parse_dynamic_shapes(dynamic_shapes))
    importer.initializers(model.graph)
    importer.nodes(model.graph.node)
    importer.missing(entry.name for entry in model.graph.output)
    report.check()
    importer.outputs(model.graph.output)
    return importer.builder.finish()


def _load(path: Path) -> ModelProto:
    try:
        model = onnx.load(str(path), load_external_data=False)
    except Exception as error:
        raise ImportModelError(f"{path}: not a readable ONNX file ({error}); export it again") from error
    if not model.graph.output:  # an empty file is a valid message too
        what = "a model without outputs" if path.stat().st_size else "an empty file"
        raise ImportModelError(f"{path}: {what}; export the model again, or copy it again from where it came")
    return model


def _opset(model: ModelProto) -> int:
    return max((entry.version for entry in model.opset_import if entry.domain in DOMAINS), default=0)


def _prepared(model: ModelProto) -> ModelProto:
    """The model at opset 13 or newer, with function calls replaced by their bodies where no rule exists."""
    opset = _opset(model)
    if opset < OLDEST_OPSET:
        logger.warning("converting the ONNX model from opset %d to %d", opset, OLDEST_OPSET)
        try:
            model = onnx.version_converter.convert_version(model, OLDEST_OPSET)
        except Exception as error:
            raise ImportModelError(
                f"the model uses opset {opset} and cannot be converted to {OLDEST_OPSET} ({error}); export it again"
            ) from error
    if model.functions:
        model = onnx.inliner.inline_local_functions(model)
    missing = {node.op_type for node in model.graph.node if node.domain in DOMAINS and node.op_type not in RULES}
    bodies = [op for op in sorted(missing) if _has_body(op, _opset(model))]
    if bodies:
        identities = [("", op) for op in bodies]
        model = onnx.inliner.inline_selected_functions(model, identities, inline_schema_functions=True)
    return model


def _has_body(op: str, opset: int) -> bool:
    try:
        schema = onnx.defs.get_schema(op, opset)
    except onnx.defs.SchemaError:
        return False
    return bool(getattr(schema, "has_function", False) or getattr(schema, "has_context_dependent_function", False))


class _Importer:
    """The state of one import: the tensors by name."""

    def __init__(self, name: str, opset: int, folder: Path | None, report: Report) -> None:
        self.builder = GraphBuilder(name)
        self.opset = opset
        self.folder = folder
        self.report = report
        self.tensors: dict[str, Tensor] = {}
        self.broken: set[str] = set()  # outputs of nodes that were reported, and those in `unavailable`
        self.numbers: dict[str, int] = {}  # of nodes, by the first output
        self.unavailable: dict[str, NodeProto] = {}  # secondary results that no rule gives, until they are used

    def inputs(self, graph: onnx.GraphProto, dimensions: dict[str, Axes]) -> None:
        """Graph inputs (those without an initializer) and their symbols."""
        stored = {tensor.name for tensor in graph.initializer}
        entries = [entry for entry in graph.input if entry.name not in stored]
        check_names(dimensions, {entry.name: [0] * len(entry.type.tensor_type.shape.dim) for entry in entries})
        chosen: dict[str, Size] = {}  # by dim_param
        for entry in entries:
            axes = dimensions.get(entry.name, {})
            for axis, dim in enumerate(entry.type.tensor_type.shape.dim):
                if axis in axes and dim.dim_param:
                    chosen.setdefault(dim.dim_param, self._size(axes[axis]))
        for entry in entries:
            tensor = entry.type.tensor_type
            if not entry.type.HasField("tensor_type") or not tensor.HasField("shape"):
                raise ImportModelError(f"input {entry.name!r} is not a tensor with a known rank")
            if tensor.elem_type not in DTYPES:
                raise ImportModelError(f"input {entry.name!r} has the element type {_type_name(tensor.elem_type)}")
            shape = [
                self._extent(dim, f"{entry.name}_{axis}", dimensions.get(entry.name, {}).get(axis), chosen)
                for axis, dim in enumerate(tensor.shape.dim)
            ]
            value = self.builder.input(entry.name, DTYPES[tensor.elem_type], shape)
            self.tensors[entry.name] = Tensor(entry.name, value)

    def _size(self, entry: Dimension | int) -> Size:
        return entry if isinstance(entry, int) else self.builder.symbol(entry.name, entry.low, entry.high)

    def _extent(self, dim: Any, default: str, entry: Dimension | int | None, chosen: Mapping[str, Size]) -> Size:
        if dim.HasField("dim_value"):
            return int(dim.dim_value)
        if dim.dim_param in chosen:
            return chosen[dim.dim_param]
        if entry is not None:
            return self._size(entry)
        return self.builder.symbol(symbol_name(dim.dim_param or default))

    def initializers(self, graph: onnx.GraphProto) -> None:
        """Constants by name; they enter the graph when something uses them."""
        for tensor in graph.initializer:
            self.tensors[tensor.name] = Tensor(tensor.name, known=self._array(tensor))
        for sparse in graph.sparse_initializer:
            raise ImportModelError(f"sparse initializer {sparse.values.name!r}: store it dense")

    def _array(self, tensor: TensorProto) -> np.ndarray:
        if tensor.data_type not in DTYPES:
            raise ImportModelError(f"tensor {tensor.name!r} has the element type {_type_name(tensor.data_type)}")
        if tensor.data_location == TensorProto.EXTERNAL:
            return self._external(tensor)
        array = numpy_helper.to_array(tensor)
        dtype = DTYPES[tensor.data_type].numpy
        return array if array.dtype == dtype else array.view(dtype)

    def _external(self, tensor: TensorProto) -> np.ndarray:
        """A view of the mapped data file beside the model."""
        entries = {entry.key: entry.value for entry in tensor.external_data}
        location = entries.get("location", "")
        if self.folder is None:
            raise ImportModelError(f"tensor {tensor.name!r} is in the file {location!r}: import the model by its path")
        path = (self.folder / location).resolve()
        if not path.is_relative_to(self.folder.resolve()):
            raise ImportModelError(f"tensor {tensor.name!r}: the data file {location!r} leaves the model's folder")
        dtype, shape = DTYPES[tensor.data_type].numpy, tuple(tensor.dims)
        count, offset = int(np.prod(shape, dtype=np.int64)), int(entries.get("offset", 0))
        if not path.exists() or path.stat().st_size < offset + count * dtype.itemsize:
            raise ImportModelError(f"tensor {tensor.name!r}: the data file {path} is missing or too short")
        if count == 0:
            return np.zeros(shape, dtype)
        return np.memmap(path, dtype, "r", offset, shape)

    def nodes(self, nodes: Iterable[NodeProto]) -> None:
        """Import nodes in order; problems are collected."""
        for number, node in enumerate(nodes):
            self.numbers[node.output[0]] = number
            try:
                self._node(node)
            except Unsupported as problem:
                self._report(node, problem.reason, problem.advice)
            except ShapeError as error:
                self._report(node, str(error), "give equal dimensions one name through dynamic_shapes, or fix them")
            except ImportModelError:
                raise
            except Exception as error:  # a rule met something unforeseen: name the node instead of crashing
                reason = f"the import rule failed: {type(error).__name__}: {error}"
                self._report(node, reason, "please report this with the model's part around this node")

    def _node(self, node: NodeProto) -> None:
        if node.op_type == "Constant" and node.domain in DOMAINS:
            self.tensors[node.output[0]] = known_tensor(node.output[0], self._constant(node))
            return
        rule = RULES.get(node.op_type) if node.domain in DOMAINS else None
        if rule is None and not (node.op_type == "If" and node.domain in DOMAINS):
            raise Unsupported(NO_RULE)
        if any(name in self.broken for name in node.input):
            self.broken.update(node.output)
            self.missing(node.input)
            return
        undefined = [repr(name) for name in node.input if name and name not in self.tensors]
        if undefined:
            raise Unsupported(
                f"it reads {', '.join(undefined)}, which no input, initializer or earlier node defines",
                "correct the model; onnx.checker.check_model finds such names",
            )
        inputs = [self.tensors[name] if name else None for name in node.input]
        if node.op_type == "If":
            self._branch(node, inputs)
            return
        call = Call(self.builder, source_of(node), inputs, self._attributes(node), self.opset, len(node.output))
        known = evaluate(node.op_type, call)
        if known is not UNKNOWN:
            self.tensors[node.output[0]] = known_tensor(node.output[0], known)
            return
        assert rule is not None
        result = rule(call)
        call.check_attributes()
        results = result if isinstance(result, tuple) else (result,)
        for index, name in enumerate(node.output):
            if name and index < len(results) and results[index] is not None:
                self.tensors[name] = Tensor(name, results[index])
            elif name:
                self.broken.add(name)
                self.unavailable[name] = node

    def missing(self, names: Iterable[str]) -> None:
        """Report secondary results that are used although no rule gives them."""
        for name in names:
            node = self.unavailable.pop(name, None)
            if node is not None:
                index = list(node.output).index(name)
                self._report(node, f"result {index} ({name!r}) of this operation is not available", "do not use it")

    def _branch(self, node: NodeProto, inputs: list[Tensor | None]) -> None:
        """An If whose condition is known: the chosen branch's nodes, in place."""
        condition = inputs[0]
        if condition is None or condition.known is None or condition.symbolic:
            raise Unsupported("If with a condition that is computed from data", "export one branch only")
        branches = {attribute.name: attribute.g for attribute in node.attribute}
        graph = branches["then_branch" if bool(condition.known.reshape(-1)[0]) else "else_branch"]
        self.initializers(graph)
        self.nodes(graph.node)
        for name, inner in zip(node.output, graph.output, strict=True):
            if inner.name in self.tensors:
                self.tensors[name] = self.tensors[inner.name]
            else:
                self.broken.add(name)

    def _constant(self, node: NodeProto) -> np.ndarray:
        (attribute,) = node.attribute
        if attribute.name == "value":
            return self._array(attribute.t)
        value = helper.get_attribute_value(attribute)
        dtype = np.int64 if attribute.name.startswith("value_int") else np.float32
        if not attribute.name.startswith(("value_int", "value_float")):
            raise Unsupported(f"a constant given as {attribute.name}")
        return np.array(value, dtype)

    def _attributes(self, node: NodeProto) -> dict[str, Any]:
        """Attributes as Python values: tensors as arrays, element types as `DType`, bytes as text."""
        result: dict[str, Any] = {}
        for attribute in node.attribute:
            value = helper.get_attribute_value(attribute)
            if isinstance(value, TensorProto):
                value = self._array(value)
            elif isinstance(value, bytes):
                value = value.decode()
            elif attribute.name in TYPE_ATTRIBUTES:
                if value not in DTYPES:
                    raise Unsupported(f"the element type {_type_name(value)}", "use a real number type")
                value = DTYPES[value]
            result[attribute.name] = value
        return result

    def outputs(self, outputs: Iterable[ValueInfoProto]) -> None:
        """Graph outputs; inputs, constants and repeated values are copied."""
        call = Call(self.builder, "output", [], {}, self.opset, 0)
        for entry in outputs:
            if entry.name not in self.tensors:
                raise ImportModelError(f"output {entry.name!r} is computed by no node of the model")
            value: Value = call.materialize(self.tensors[entry.name])
            graph = self.builder.graph
            if value in graph.inputs or value in graph.constants or value in graph.outputs:
                value = self.builder.op("copy", [value])
            self.builder.output(value, entry.name)

    def _report(self, node: NodeProto, reason: str, advice: str = NO_RULE_ADVICE) -> None:
        self.broken.update(node.output)
        shown = tuple(self._describe(name) for name in node.input if name)
        operation = f"{node.domain or 'ai.onnx'}::{node.op_type}"
        source = source_of(node) or f"node number {self.numbers[node.output[0]]} ({node.op_type})"
        self.report.add(Problem(operation, node.name or node.output[0], shown, source, reason, advice))

    def _describe(self, name: str) -> str:
        tensor = self.tensors.get(name)
        if tensor is None:
            return f"{name} (unknown)"
        return f"{tensor.dtype}[{', '.join(map(str, tensor.shape))}]"


def _type_name(number: int) -> str:
    return TensorProto.DataType.Name(number) if number in TensorProto.DataType.values() else str(number)


def source_of(node: NodeProto) -> str:
    """Module path and source line where the exporter recorded them, else the node's name."""
    records = {entry.key: entry.value for entry in node.metadata_props}
    parts = []
    scopes = records.get("pkg.torch.onnx.name_scopes")
    if scopes:
        try:
            path = [scope for scope in ast.literal_eval(scopes)[:-1] if scope]
        except (ValueError, SyntaxError):
            path = []
        parts.append(path[-1] if path else "model")
    lines = [line for line in records.get("pkg.torch.onnx.stack_trace", "").splitlines() if 'File "' in line]
    if lines:
        file, _, rest = lines[-1].partition('", line ')
        parts.append(f"{file.replace(chr(92), '/').rsplit('/', 1)[-1]}:{rest.split(',')[0]}")
    return ", ".join(parts) or node.name
