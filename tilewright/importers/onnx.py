"""ONNX models -> Graph: every opset, initializers mapped, shape arithmetic done at import."""

from __future__ import annotations

import ast
import logging
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from google.protobuf.message import DecodeError
from onnx import (
    AttributeProto,
    FunctionProto,
    GraphProto,
    ModelProto,
    NodeProto,
    TensorProto,
    TensorShapeProto,
    TypeProto,
    ValueInfoProto,
)

from tilewright.dtypes import element_of
from tilewright.errors import ImportModelError, ShapeError, UnknownRankError, printable
from tilewright.graph.build import GraphBuilder
from tilewright.graph.core import Graph, Value
from tilewright.importers.assumptions import Assumptions, SizeIsFixed, under_assumptions
from tilewright.importers.onnx_call import OnnxCall, Tensor, known_tensor
from tilewright.importers.onnx_control import CONTROL_OPERATORS, Control, RanksDiffer
from tilewright.importers.onnx_functions import standard_body
from tilewright.importers.onnx_ops import RULES
from tilewright.importers.onnx_refused import REASONS, without_rule
from tilewright.importers.onnx_schema import (
    check_arity,
    check_attributes,
    check_types,
    form_of,
    has_schema,
    rule_name,
)
from tilewright.importers.onnx_scope import Scope, Unavailable
from tilewright.importers.onnx_sequences import ItemShape, RunTimeList, TensorSequence, converted, is_list, rule_of
from tilewright.importers.onnx_shape_arithmetic import compared, evaluate, known_elements
from tilewright.importers.onnx_structure import (
    DEEPEST,
    FunctionKey,
    Structure,
    check_structure,
    continued,
    declared_types,
    depending,
    in_order,
    key_of,
    names_read,
    node_text,
    opset_of,
)
from tilewright.importers.onnx_tensors import ONNX_DTYPES, list_type, read_sparse, read_tensor, type_name
from tilewright.importers.report import NO_RULE_ADVICE, ImportProblem, ImportReport, Invalid, Unsupported
from tilewright.importers.shapes import (
    Axes,
    Dimension,
    check_names,
    check_sizes,
    parse_dynamic_shapes,
    symbol_name,
)
from tilewright.runtime.safe_files import why_not_readable
from tilewright.symbolic import Expression, Size, lower_bound, upper_bound

logger = logging.getLogger("tilewright")

MOST_CONTINUED = 3  # Ifs, each of which doubles the nodes that follow, inside each other
MOST_GRAPH_NODES = 1 << 17  # that a model may become
LARGEST_DIMENSION = 2**31 - 1
NOT_KNOWN = ("?", "None", "-1", "0", "*")  # written as names of dimensions that are not known, and may all differ
CHOSEN_TYPES = ("dtype", "output_dtype")  # which follow from the inputs where they are left out, or 0
TYPE_ATTRIBUTES = ("to", "dtype", "output_dtype", "output_datatype")  # whose numbers name an element type
_INTERNAL = "this is a fault of tilewright: please report it with the model's part around this node"


def import_onnx(
    model: ModelProto | Path | bytes,
    dynamic_shapes: Mapping[str, Any] | None = None,
    name: str | None = None,
    at_one: bool = False,
) -> Graph:
    """Import a model, a file, or the contents of one.

    Dimensions with a name (`dim_param`) are symbols; `dynamic_shapes` gives them ranges and other
    names, or fixes them.  With `at_one` sizes that decide the number of dimensions by being 1 are 1; a model without
    such sizes raises `ImportModelError`, as do unreadable files and models that break ONNX's own rules, naming the node
    and the reason.  Raises `UnsupportedOperationError` for operations that no rule knows.
    """
    folder = None
    if isinstance(model, Path):
        folder = model.parent
        name = name or model.stem
    if not isinstance(model, ModelProto):
        model = read_model(model)
    structure = check_structure(model)
    given, found = parse_dynamic_shapes(dynamic_shapes), model
    called = name or model.graph.name or "onnx"
    return under_assumptions(lambda assumptions: _import(found, structure, given, called, folder, assumptions), at_one)


def _import(
    model: ModelProto,
    structure: Structure,
    dimensions: dict[str, Axes],
    name: str,
    folder: Path | None,
    assumptions: Assumptions,
) -> Graph:
    report = ImportReport(name)
    importer = _Importer(name, structure.functions, folder, report, assumptions)
    scope = Scope(structure.opset, versions={entry.domain: entry.version for entry in model.opset_import})
    importer.inputs(model.graph, dimensions, scope)
    importer.initializers(model.graph, scope)
    importer.declared = declared_types(model.graph.value_info)
    importer.nodes(model.graph.node, scope, [entry.name for entry in model.graph.output])
    importer.missing([scope.find(entry.name) for entry in model.graph.output])
    report.check()
    importer.outputs(model.graph.output, scope)
    return importer.builder.finish()


_LFS_POINTER = b"version https://git-lfs.github.com/spec/"  # how a file begins that Git LFS has not fetched


def read_model(source: Path | bytes) -> ModelProto:
    """The model in a file, or in its contents; raises `ImportModelError`."""
    model = ModelProto()
    name = source if isinstance(source, Path) else "the bytes given"
    reason = why_not_readable(source) if isinstance(source, Path) else None
    if reason is not None:
        raise ImportModelError(f"{name}: cannot be read: {reason}")
    try:
        data = source.read_bytes() if isinstance(source, Path) else source
        model.ParseFromString(data)
    except OSError as error:
        raise ImportModelError(f"{name}: cannot be read: {error.strerror}") from error
    except DecodeError as error:
        advice = (
            "it may be cut short: copy it, or export it, again"
            if not data.startswith(_LFS_POINTER)
            else "it is a pointer: 'git lfs pull' fetches it"
        )
        raise ImportModelError(f"{name}: not a readable ONNX file ({error}); {advice}") from error
    if not model.graph.output:  # an empty file is a valid message too
        problem = "a model without outputs" if data else "an empty file"
        raise ImportModelError(f"{name}: {problem}; export the model again, or copy it again from where it came")
    return model


class _Importer:
    """The state of one import."""

    def __init__(
        self,
        name: str,
        functions: Mapping[FunctionKey, FunctionProto],
        folder: Path | None,
        report: ImportReport,
        assumptions: Assumptions,
    ) -> None:
        self.builder = GraphBuilder(name)
        self.functions = functions
        self.folder = folder
        self.report = report
        self.assumptions = assumptions
        self.continued = 0  # of such Ifs around what is imported
        self.comparisons: dict[Value, tuple[Size, Size]] = {}  # truths that say whether two sizes are equal
        self.declared: Mapping[str, TypeProto] = {}  # of the values of the model's own graph
        self.symbols: dict[str, str] = {}  # the symbol of each `dim_param`
        self.named: set[Value] = set()  # values with the model's own names

    # Inputs and constants --------------------------------------------------------------------------

    def inputs(self, graph: GraphProto, dimensions: dict[str, Axes], scope: Scope) -> None:
        """Graph inputs (those without an initializer) and their symbols."""
        stored = {tensor.name for tensor in graph.initializer}
        entries = [entry for entry in graph.input if entry.name not in stored]
        declared = {entry.name: _dimensions(entry, dimensions.get(entry.name)) for entry in entries}
        check_names(dimensions, {name: [0] * len(dims) for name, dims in declared.items()})
        chosen: dict[str, Size] = {}  # by dim_param
        for entry in entries:
            axes = dimensions.get(entry.name, {})
            for axis, dim in enumerate(declared[entry.name]):
                if axis in axes and (shared := self._shared_name(dim)):
                    chosen.setdefault(shared, self._size(axes[axis]))
        for entry in entries:
            tensor = entry.type.tensor_type
            kind = entry.type.WhichOneof("value")
            if kind in ("sequence_type", "optional_type"):
                scope.values[entry.name] = self._list_input(entry)
                continue
            if kind != "tensor_type":
                raise ImportModelError(f"input {entry.name!r} is no tensor; give tensors, or sequences of them")
            if tensor.elem_type not in ONNX_DTYPES:
                raise ImportModelError(f"input {entry.name!r} has the element type {type_name(tensor.elem_type)}")
            axes = dimensions.get(entry.name, {})
            shape = [
                self._extent(dim, entry.name, axis, axes.get(axis), chosen)
                for axis, dim in enumerate(declared[entry.name])
            ]
            value = self.builder.input(entry.name, ONNX_DTYPES[tensor.elem_type], shape)
            scope.values[entry.name] = Tensor(entry.name, value)

    def _list_input(self, entry: ValueInfoProto) -> RunTimeList:
        """A sequence or an optional that the engine takes: its length is a symbol of its own."""
        dtype, inner = list_type(entry.type), entry.type
        if dtype is None or (dtype.kind == "sequence" and element_of(dtype).kind == "map"):
            raise ImportModelError(f"input {entry.name!r} is a list of unsupported values; give tensors")
        while inner.WhichOneof("value") != "tensor_type":
            inner = getattr(inner, inner.WhichOneof("value")).elem_type
        tensor = inner.tensor_type
        sizes = [dim.dim_value if dim.dim_value > 0 else None for dim in tensor.shape.dim]
        most = 1 if dtype.kind == "optional" else LARGEST_DIMENSION
        length = self._symbol_size(self._symbol(f"{entry.name}.length"), 0, most)
        value = self.builder.input(entry.name, dtype, (length,))
        return RunTimeList(entry.name, value, item=ItemShape(tuple(sizes) if tensor.HasField("shape") else None))

    def _size(self, entry: Dimension | int) -> Size:
        return entry if isinstance(entry, int) else self._symbol_size(entry.name, entry.low, entry.high)

    def _symbol_size(self, name: str, low: int = 1, high: int = LARGEST_DIMENSION) -> Size:
        """A symbol, or the only size that it can have."""
        size = self.assumptions.fixed.get(name)
        if size is None:
            return self.builder.symbol(name, low, high)
        if not low <= size <= high:
            raise ImportModelError(f"dimension {name!r} can only be {size} in this model, and is to be {low}..{high}")
        return size

    def _extent(
        self, dim: Any, name: str, axis: int, entry: Dimension | int | None, chosen: Mapping[str, Size]
    ) -> Size:
        """A dimension's size; exporters write negative numbers for one that is not known, and some 0, which the caller
        then says."""
        if dim.HasField("dim_value") and dim.dim_value >= 0 and (dim.dim_value or entry is None):
            _check_fixed(int(dim.dim_value), name, axis, entry)
            return int(dim.dim_value)
        if isinstance(entry, int):  # whatever other dimensions of the name are: files give one name to unequal sizes
            return entry
        shared = self._shared_name(dim)
        if shared in chosen:
            return chosen[shared]
        if entry is not None:
            return self._size(entry)
        return self._symbol_size(self._symbol(shared or f"{name}[{axis}]"))

    def _shared_name(self, dim: Any) -> str:
        """The name of a dimension, where dimensions of that name are equal; else nothing."""
        found: str = "" if dim.dim_param in NOT_KNOWN else dim.dim_param
        return "" if symbol_name(found) in self.assumptions.shared_names else found

    def _symbol(self, name: str) -> str:
        """An identifier for a dimension's name, of its own for each name."""
        if name not in self.symbols:
            base = candidate = symbol_name(name)
            used, number = {*self.symbols.values(), *self.builder.graph.symbols}, 0
            while candidate in used:
                number += 1
                candidate = f"{base}_{number}"
            self.symbols[name] = candidate
        return self.symbols[name]

    def initializers(self, graph: GraphProto, scope: Scope) -> None:
        """Constants by name; they enter the graph when something uses them."""
        declared = declared_types(graph.input)
        for tensor in graph.initializer:
            found = self._stored(tensor.name, read_tensor(tensor, self.folder))
            if tensor.name in declared:
                _check_declared(declared[tensor.name], found, f"the initializer {tensor.name!r}", strict=True)
            scope.values[tensor.name] = found
        for sparse in graph.sparse_initializer:
            scope.values[sparse.values.name] = self._stored(sparse.values.name, read_sparse(sparse, self.folder))

    def _stored(self, name: str, data: np.ndarray) -> Tensor:
        """A constant of the model: text is a value of the graph at once, numbers are known."""
        if data.dtype != object:
            return known_tensor(name, data)
        return Tensor(name, self.builder.constant(data, name))

    # Nodes -----------------------------------------------------------------------------------------

    def nodes(self, nodes: Iterable[NodeProto], scope: Scope, wanted: Sequence[str]) -> None:
        """Import nodes in order; what cannot be expressed is collected, what breaks a rule of ONNX is an error.

        `wanted` are the names of the results that are used outside.
        """
        self._nodes(in_order(nodes), scope, wanted)

    def _nodes(self, order: Sequence[tuple[int, NodeProto]], scope: Scope, wanted: Sequence[str]) -> None:
        for place, (number, node) in enumerate(order):
            where = f"{node_text(node, number)}{scope.place}"
            try:
                self._node(node, scope)
            except RanksDiffer as problem:
                if not self._continued(problem, (number, node), order[place + 1 :], scope, wanted):
                    self._report(node, number, scope, problem.reason, problem.advice)
                    continue
                return
            except Unsupported as problem:
                self._report(node, number, scope, problem.reason, problem.advice)
            except SizeIsFixed:
                raise
            except Invalid as problem:
                raise ImportModelError(f"{where}: {problem}") from None
            except ShapeError as error:
                if not self._is_dynamic(node, scope):
                    raise ImportModelError(f"{where}: {error}") from None
                advice = "correct the model, or give equal dimensions one name through dynamic_shapes, or fix them"
                self._report(node, number, scope, str(error), advice)
            except ImportModelError as error:
                raise ImportModelError(f"{where}: {error}" if scope.depth == 0 else str(error)) from None
            except Exception as error:  # a rule met something unforeseen: name the node instead of crashing
                reason = f"the import rule failed: {type(error).__name__}: {error}"
                raise ImportModelError(f"{where}: {reason}; {_INTERNAL}") from error
            if len(self.builder.graph.nodes) > MOST_GRAPH_NODES:
                raise ImportModelError(
                    f"{where}: the model becomes more than {MOST_GRAPH_NODES} nodes here; unroll less, or split it"
                )

    def _continued(
        self,
        problem: RanksDiffer,
        numbered: tuple[int, NodeProto],
        rest: Sequence[tuple[int, NodeProto]],
        scope: Scope,
        wanted: Sequence[str],
    ) -> bool:
        """Import an If whose branches give other numbers of dimensions with the nodes that follow from it in both.

        False if no node follows from it, or if both branches cannot be continued.
        """
        number, node = numbered
        following, others = depending(node, rest)
        if not following or self.continued == MOST_CONTINUED:
            return False
        made = {name for _, each in (numbered, *following) for name in each.output if name}
        read = {name for _, each in following for name in names_read(each)}
        self._nodes(others, scope, [*wanted, *read])
        results = [name for name in dict.fromkeys(wanted) if name in made]
        if not results:
            return True
        problems = list(self.report.problems)
        self.continued += 1
        try:
            self._node(continued(node, [each for _, each in following], results), scope)
        except (Unsupported, Invalid, ShapeError, ImportModelError):
            pass
        else:
            if len(self.report.problems) == len(problems):
                return True
        finally:
            self.continued -= 1
        self.report.problems[:] = problems
        self._report(node, number, scope, problem.reason, problem.advice)
        scope.values.update({name: Unavailable(node, 0, True) for name in made})
        return True

    def _node(self, node: NodeProto, scope: Scope) -> None:
        found = [scope.find(name) for name in node.input]
        broken = [item for item in found if isinstance(item, Unavailable)]
        if broken:
            scope.values.update({name: Unavailable(node, index, True) for index, name in enumerate(node.output)})
            self.missing(broken)
            return
        inputs = [item for item in found if not isinstance(item, Unavailable)]
        attributes = scope.attributes_of(node)
        function = self.functions.get(key_of(node))
        if function is not None:
            self._call(function, node, scope.opset, attributes, inputs, scope)
            return
        if rule_name(node) in REASONS:
            raise without_rule(rule_name(node))
        opset = scope.version(node.domain)
        of_sequences = rule_of(rule_name(node), inputs)
        if of_sequences is not None:
            values = {name: self._attribute(item) for name, item in attributes.items()}
            call = OnnxCall(self.builder, source_of(node) or scope.place, inputs, values, opset, len(node.output))
            self._store(node, scope, [of_sequences(call)])
            return
        if has_schema(node, opset):
            form = form_of(node.op_type, opset, node.domain)
            check_attributes(form, attributes)
            check_arity(form, inputs, len(node.output))
            check_types(form, [None if item is None else item.dtype for item in inputs])
        elif rule_name(node) not in RULES:
            raise without_rule(rule_name(node))
        if rule_name(node) == "If" and inputs[0] is not None:
            known = inputs[0].known
            if known is None and self._ranks_differ(attributes):
                known = self._assumed(inputs[0], source_of(node) or scope.place)
            if known is not None:
                self._branch(node, attributes, known, scope)
                return
        if rule_name(node) in CONTROL_OPERATORS:
            control = Control(self, node, attributes, inputs, scope, source_of(node) or scope.place)
            self._store(node, scope, CONTROL_OPERATORS[node.op_type](control))
            return
        if rule_name(node) == "Constant":
            self._store(node, scope, [self._stored(node.output[0], self._constant(attributes))])
            return
        self._apply(node, attributes, inputs, scope)

    def _apply(
        self, node: NodeProto, attributes: Mapping[str, AttributeProto], inputs: list[Tensor | None], scope: Scope
    ) -> None:
        """A node by its rule, by shape arithmetic, or by the body that ONNX gives for it."""
        rule, opset = RULES.get(rule_name(node)), scope.version(node.domain)
        if rule is None:
            body = standard_body(node, opset, attributes, inputs)
            if body is None:
                raise without_rule(rule_name(node))
            self._call(body, node, scope.opset, attributes, inputs, scope)
            return
        values = {name: self._attribute(item) for name, item in attributes.items() if not _is_no_type(item)}
        source = source_of(node) or scope.place
        call = OnnxCall(self.builder, source, inputs, values, opset, len(node.output))
        known = evaluate(rule_name(node), call, node.output[0])
        if known is not None:
            self._store(node, scope, [known])
            return
        call.assumptions = self.assumptions
        result = rule(call)
        call.check_attributes()
        pair = compared(rule_name(node), call)
        if pair is not None and isinstance(result, Value):
            self.comparisons[result] = pair
        results = result if isinstance(result, tuple) else (result,)
        pairs = zip(node.output, results, strict=False)
        found = [None if item is None else Tensor(name, item) for name, item in pairs]
        if found[0] is not None:
            found[0].hints = known_elements(rule_name(node), call)
        self._store(node, scope, found)

    def _store(self, node: NodeProto, scope: Scope, results: Sequence[Tensor | Unavailable | None]) -> None:
        """Give a node's results their names, after a look at what the model says of them."""
        for index, name in enumerate(node.output):
            if not name:
                continue
            found = results[index] if index < len(results) else None
            if not isinstance(found, Tensor) or is_list(found):
                scope.values[name] = found or Unavailable(node, index, False)
                continue
            check_sizes(found.known.reshape(-1) if found.symbolic and found.known is not None else found.shape)
            if scope.depth == 0 and name in self.declared:
                _check_declared(self.declared[name], found, f"its result {name!r}", strict=False)
            scope.values[name] = found
            if scope.depth == 0:
                self._name(found.value, name)

    def _name(self, value: Value | None, name: str) -> None:
        """Call a computed value as the model does: reports and comparisons name it so."""
        graph = self.builder.graph
        if value is not None and value not in self.named and value not in graph.constants and value not in graph.inputs:
            self.named.add(value)
            self.builder.rename(value, name)

    def missing(self, values: Iterable[Tensor | Unavailable | None]) -> None:
        """Report secondary results that are used although no rule gives them."""
        for value in values:
            if isinstance(value, Unavailable) and not value.reported:
                value.reported = True
                name = value.node.output[value.index]
                reason = f"result {value.index} ({name!r}) of this operation is not available"
                self._report(value.node, None, None, reason, "do not use it")

    def _call(
        self,
        function: FunctionProto,
        node: NodeProto,
        opset: int,
        attributes: Mapping[str, AttributeProto],
        inputs: list[Tensor | None],
        scope: Scope,
    ) -> None:
        """A call of a function: its body's nodes, in a scope of their own."""
        if scope.depth >= DEEPEST:
            raise Invalid(f"functions and branches are more than {DEEPEST} deep")
        if len(inputs) > len(function.input) or len(node.output) > len(function.output):
            raise Invalid(
                f"the function has {len(function.input)} inputs and {len(function.output)} outputs; this call has "
                f"{len(inputs)} and {len(node.output)}"
            )
        defaults = {item.name: item for item in function.attribute_proto}
        place = f"{scope.place}, in the body of {node_text(node)}"
        opset = opset_of(function.opset_import, f"the function {function.name!r}") or opset
        inner = Scope(opset, {}, None, {**defaults, **attributes}, place, scope.depth + 1)
        inner.versions = {entry.domain: entry.version for entry in function.opset_import}
        given: list[Tensor | None] = [*inputs, *[None] * (len(function.input) - len(inputs))]
        inner.values.update(zip(function.input, given, strict=True))
        self.nodes(function.node, inner, function.output)
        self._store(node, scope, [inner.find(name) for name in function.output])

    def _branch(
        self, node: NodeProto, attributes: Mapping[str, AttributeProto], condition: np.ndarray, scope: Scope
    ) -> None:
        """An If whose condition is known: the chosen branch's nodes, in place."""
        if condition.size != 1:
            raise Invalid(f"its condition has {condition.size} elements; it must have one")
        graph = attributes["then_branch" if bool(condition.reshape(-1)[0]) else "else_branch"].g
        if len(graph.output) != len(node.output) or graph.input:
            raise Invalid(
                f"its branch has {len(graph.input)} inputs and {len(graph.output)} outputs; it must have 0 and "
                f"{len(node.output)}"
            )
        if scope.depth >= DEEPEST:
            raise Invalid(f"functions and branches are more than {DEEPEST} deep")
        inner = scope.branch()
        self.initializers(graph, inner)
        self.nodes(graph.node, inner, [entry.name for entry in graph.output])
        self._store(node, scope, [inner.find(entry.name) for entry in graph.output])

    def _ranks_differ(self, attributes: Mapping[str, AttributeProto]) -> bool:
        """Whether one branch of an If only drops or adds dimensions of size 1, which the other keeps."""
        kinds = [{node.op_type for node in attributes[key].g.node} for key in ("then_branch", "else_branch")]
        return any("Squeeze" in kind or "Unsqueeze" in kind for kind in kinds) and all(
            kind <= {"Squeeze", "Unsqueeze", "Identity", "Constant"} for kind in kinds
        )

    def _assumed(self, condition: Tensor, source: str) -> np.ndarray | None:
        """A truth about sizes as the import assumes it, which every call then checks; None for one of another kind."""
        pair = None if condition.value is None else self.comparisons.get(condition.value)
        if pair is None:
            return None
        call = OnnxCall(self.builder, source, [], {}, 0, 0)
        equal = self.assumptions.is_one()
        (call.require_equal if equal else call.require_different)(*pair)
        return np.array(equal)

    # Attributes ------------------------------------------------------------------------------------

    def _constant(self, attributes: Mapping[str, AttributeProto]) -> np.ndarray:
        if len(attributes) != 1:
            raise Invalid(f"a constant has one value, not {len(attributes)}")
        (attribute,) = attributes.values()
        value = self._attribute(attribute)
        if isinstance(value, np.ndarray):
            return value
        if attribute.name.startswith("value_string"):
            return np.array(value, object)
        if not attribute.name.startswith(("value_int", "value_float")):
            raise Unsupported(f"a constant given as {attribute.name}")
        return np.array(value, np.int64 if attribute.name.startswith("value_int") else np.float32)

    def _attribute(self, attribute: AttributeProto) -> Any:
        """An attribute as a Python value: tensors as arrays, element types as `DType`, bytes as text."""
        kind = attribute.type
        if kind == AttributeProto.TENSOR:
            return read_tensor(attribute.t, self.folder, f"the attribute {attribute.name!r}: tensor")
        if kind == AttributeProto.SPARSE_TENSOR:
            return read_sparse(attribute.sparse_tensor, self.folder)
        if kind == AttributeProto.STRING:
            return _text(attribute.s, attribute.name)
        if kind == AttributeProto.STRINGS:
            texts = {item: _text(item, attribute.name) for item in set(attribute.strings)}  # trees repeat a few of them
            return [texts[item] for item in attribute.strings]
        if kind == AttributeProto.INT and attribute.name in TYPE_ATTRIBUTES:
            if attribute.i not in ONNX_DTYPES:
                raise Unsupported(f"the element type {type_name(attribute.i)}", "use a real number type")
            return ONNX_DTYPES[attribute.i]
        if kind == AttributeProto.TYPE_PROTO:
            found = list_type(attribute.tp)
            if found is None:
                raise Unsupported(f"the type in the attribute {attribute.name!r}")
            return found
        simple = {
            AttributeProto.INT: attribute.i,
            AttributeProto.FLOAT: attribute.f,
            AttributeProto.INTS: list(attribute.ints),
            AttributeProto.FLOATS: list(attribute.floats),
        }
        if kind not in simple:
            raise Unsupported(f"the attribute {attribute.name!r} of type {AttributeProto.AttributeType.Name(kind)}")
        return simple[kind]

    # Results ---------------------------------------------------------------------------------------

    def outputs(self, outputs: Iterable[ValueInfoProto], scope: Scope) -> None:
        """Graph outputs; inputs, constants and repeated values are copied."""
        call = OnnxCall(self.builder, "output", [], {}, scope.opset, 0)
        graph = self.builder.graph
        used = {*graph.inputs, *graph.constants}
        for entry in outputs:
            found = scope.find(entry.name)
            assert isinstance(found, Tensor)  # the structure was checked, and what is not available reported
            declared = list_type(entry.type)
            if is_list(found) or (declared is not None and declared.kind == "optional"):
                found = converted(call, found, declared or found.dtype)
                if declared is not None and found.dtype != declared:
                    raise ImportModelError(f"output {entry.name!r} is declared as {declared}, but it is {found.dtype}")
            elif entry.HasField("type"):
                _check_declared(entry.type, found, f"output {entry.name!r}", strict=False)
            value: Value = call.materialize(found)
            if value in used or value in graph.constants:
                value = self.builder.op("copy", [value])
            used.add(value)
            self.builder.output(value, entry.name)

    def _report(
        self, node: NodeProto, number: int | None, scope: Scope | None, reason: str, advice: str = NO_RULE_ADVICE
    ) -> None:
        inputs: tuple[str, ...] = ()
        if scope is not None:
            scope.values.update(
                {name: Unavailable(node, index, True) for index, name in enumerate(node.output) if name}
            )
            inputs = tuple(_describe(name, scope) for name in node.input if name)
        operation = f"{node.domain or 'ai.onnx'}::{node.op_type}"
        place = scope.place if scope is not None else ""
        source = f"{source_of(node) or node_text(node, number)}{place}"
        name = node.name or next(filter(None, node.output), "")
        self.report.add(ImportProblem(operation, name, inputs, source, reason, advice))

    def _is_dynamic(self, node: NodeProto, scope: Scope) -> bool:
        """Whether a node reads sizes that are known only at run time."""
        found = [scope.find(name) for name in node.input]
        lists = [item.items if isinstance(item, TensorSequence) else [item] for item in found]
        tensors = [item for items in lists for item in items if isinstance(item, Tensor)]
        return any(item.symbolic or any(isinstance(n, Expression) for n in item.shape) for item in tensors)


def _describe(name: str, scope: Scope) -> str:
    tensor = scope.find(name)
    if not isinstance(tensor, Tensor):
        return f"{name} (unknown)"
    if tensor.dtype.kind in ("sequence", "optional"):
        return str(tensor.dtype)
    return f"{tensor.dtype}[{', '.join(map(str, tensor.shape))}]"


def _dimensions(entry: ValueInfoProto, given: Axes | None) -> Sequence[Any]:
    """The dimensions that a model declares for an input; where it does not, open ones in the number that is given."""
    shape = entry.type.tensor_type.shape
    if entry.type.WhichOneof("value") != "tensor_type" or entry.type.tensor_type.HasField("shape"):
        return shape.dim
    if given is None or set(given) != set(range(len(given))):
        raise UnknownRankError(
            f"input {entry.name!r} is declared without a number of dimensions; give each of them through "
            f"dynamic_shapes, as in {{{entry.name!r}: {{0: 'batch', 1: 128}}}} (on the command line --shapes "
            f"{entry.name}:1..8x128), or use a session, which compiles an engine for each number that comes"
        )
    return [TensorShapeProto.Dimension() for _ in given]


def _text(data: bytes, name: str) -> str:
    try:
        return data.decode()
    except UnicodeDecodeError as error:
        raise Invalid(f"the attribute {name!r} is no UTF-8 text ({error.reason})") from None


def _check_declared(declared: TypeProto, found: Tensor, subject: str, strict: bool) -> None:
    """Compare a value with the type that the model declares; raise `ImportModelError` for a contradiction.

    Of values that are computed (not `strict`) only the element type must fit: editors of models often leave old shapes
    there, which are logged.
    """
    if declared.WhichOneof("value") not in (None, "tensor_type"):
        raise ImportModelError(f"{subject} is declared as {declared.WhichOneof('value')}, but it is a tensor")
    tensor = declared.tensor_type
    if tensor.elem_type not in (0, TensorProto.UNDEFINED) and ONNX_DTYPES.get(tensor.elem_type) != found.dtype:
        raise ImportModelError(
            f"{subject} is declared as {type_name(tensor.elem_type)}, but it is {found.dtype}; "
            "correct the declared type"
        )
    if not tensor.HasField("shape"):
        return
    dims = list(tensor.shape.dim)
    if len(dims) == len(found.shape) and all(map(_may_be, dims, found.shape)):
        return
    extents = ", ".join(str(dim.dim_value) if dim.HasField("dim_value") else dim.dim_param or "?" for dim in dims)
    text = f"{subject} is declared with the shape [{extents}], but it has [{', '.join(map(str, found.shape))}]"
    if strict:
        raise ImportModelError(f"{text}; correct the declared shape")
    logger.warning("%s; the declared shape is ignored", printable(text))


def _may_be(dim: Any, extent: Size) -> bool:
    """Whether a size can be the declared one; names and numbers below 1 say nothing."""
    return dim.dim_value < 1 or lower_bound(extent) <= dim.dim_value <= upper_bound(extent)


def _is_no_type(attribute: AttributeProto) -> bool:
    """Whether it is a type that the inputs choose, written as ONNX Runtime does: undefined."""
    return attribute.name in CHOSEN_TYPES and attribute.type == AttributeProto.INT and attribute.i == 0


def source_of(node: NodeProto) -> str:
    """Module path and source line where the exporter recorded them, else the node's name."""
    records = {entry.key: entry.value for entry in node.metadata_props if isinstance(entry.value, str)}
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


def _check_fixed(size: int, name: str, axis: int, entry: Dimension | int | None) -> None:
    """Raise unless an input's dimension may have the size that the model gives it."""
    if size > LARGEST_DIMENSION:
        raise ImportModelError(
            f"input {name!r}: dimension {axis} has the size {size}; at most {LARGEST_DIMENSION} is supported"
        )
    if entry not in (None, size):
        raise ImportModelError(
            f"dynamic_shapes[{name!r}][{axis}]: the model fixes this dimension at {size}; export it as dynamic"
        )
