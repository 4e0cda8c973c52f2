"""What is wrong with an ONNX model at any size and number of dimensions: found without importing it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from onnx import GraphProto, ModelProto, NodeProto

from tilewright.dtypes import DType
from tilewright.errors import ImportModelError
from tilewright.importers.onnx_control import CONTROL_OPERATORS
from tilewright.importers.onnx_functions import has_standard_body
from tilewright.importers.onnx_ops import RULES
from tilewright.importers.onnx_refused import REASONS, without_rule
from tilewright.importers.onnx_schema import (
    OperatorForm,
    check_arity,
    check_attributes,
    check_types,
    form_of,
    has_schema,
    results_of,
    rule_name,
)
from tilewright.importers.onnx_scope import Scope
from tilewright.importers.onnx_sequences import SEQUENCES
from tilewright.importers.onnx_structure import FunctionKey, check_structure, in_order, key_of, node_text
from tilewright.importers.onnx_tensors import ONNX_DTYPES, list_type, read_tensor, type_name
from tilewright.importers.report import ImportProblem, ImportReport, Invalid, Unsupported


def survey(model: ModelProto, folder: Path | None = None) -> None:
    """Raise as `import_onnx` for what no size and no number of dimensions makes possible.

    That is an operation that has no rule or that the opset does not have, attributes and numbers of inputs that it does
    not take, element types that contradict each other, and weights that cannot be read.  Element types follow from
    the schemas of the operations, as far as these tell them.
    """
    structure = check_structure(model)
    versions = {entry.domain: entry.version for entry in model.opset_import}
    report = ImportReport(model.graph.name or "onnx")
    found = _Survey(report, Scope(structure.opset, versions=versions), structure.functions, folder)
    types = found.graph(model.graph, {}, "")
    for function in model.functions:
        inner = {entry.domain: entry.version for entry in function.opset_import}
        scope = Scope(inner.get("", inner.get("ai.onnx", structure.opset)), versions=inner)
        _Survey(report, scope, structure.functions, folder).rules(function.node, f", in the body of {function.name!r}")
    report.check()
    for entry in model.graph.output:
        declared, computed = list_type(entry.type), types.get(entry.name)
        if entry.type.HasField("tensor_type") and declared and computed and declared != computed:
            name = type_name(entry.type.tensor_type.elem_type)
            raise ImportModelError(
                f"output {entry.name!r} is declared as {name}, but it is {computed}; correct the declared type"
            )


@dataclass
class _Survey:
    """A walk over the nodes of one model, or of one function of it."""

    report: ImportReport
    scope: Scope
    functions: Mapping[FunctionKey, object]
    folder: Path | None

    def graph(self, graph: GraphProto, outer: Mapping[str, DType | None], place: str) -> dict[str, DType | None]:
        """Look at the nodes of a graph; the element types of its values, None where they are not known."""
        types = {**outer, **{entry.name: list_type(entry.type) for entry in graph.input}}
        for tensor in graph.initializer:
            read_tensor(tensor, self.folder)
            types[tensor.name] = ONNX_DTYPES[tensor.data_type]
        for sparse in graph.sparse_initializer:
            types[sparse.values.name] = ONNX_DTYPES.get(sparse.values.data_type)
        for number, node in in_order(graph.node):
            where = f"{node_text(node, number)}{place}"
            found = self._node(node, where, types)
            for inner in _graphs(node):
                self.graph(inner, types, f", in a graph of {where}")
            found += [None] * (len(node.output) - len(found))
            types.update({name: dtype for name, dtype in zip(node.output, found, strict=False) if name})
        return types

    def rules(self, nodes: Iterable[NodeProto], place: str) -> None:
        """Look whether the nodes of a function's body have rules: what they take depends on its calls."""
        for number, node in in_order(nodes):
            where = f"{node_text(node, number)}{place}"
            self._node(node, where, None)
            for graph in _graphs(node):
                self.rules(graph.node, f", in a graph of {where}")

    def _node(self, node: NodeProto, where: str, types: Mapping[str, DType | None] | None) -> list[DType | None]:
        """Check one node, its form too where the types of its inputs are given; what is known of its results."""
        try:
            form = self._form(node)
            if form is None or types is None:
                return []
            inputs = [types.get(name) for name in node.input]
            check_attributes(form, {item.name: item for item in node.attribute})
            check_arity(form, [name or None for name in node.input], len(node.output))
            check_types(form, inputs)
            return results_of(form, inputs, len(node.output))
        except Unsupported as problem:
            operation = f"{node.domain or 'ai.onnx'}::{node.op_type}"
            name = node.name or next(filter(None, node.output), "")
            input_types = tuple(f"{types.get(name) or 'unknown'}" for name in node.input if name) if types else ()
            self.report.add(ImportProblem(operation, name, input_types, where, problem.reason, problem.advice))
        except Invalid as problem:
            raise ImportModelError(f"{where}: {problem}") from None
        return []

    def _form(self, node: NodeProto) -> OperatorForm | None:
        """The form of an operation; None for a call and for operations that the onnx package has no schema of."""
        name = rule_name(node)
        if key_of(node) in self.functions:
            return None
        if name in REASONS:
            raise without_rule(name)
        opset = self.scope.version(node.domain)
        form = form_of(node.op_type, opset, node.domain) if has_schema(node, opset) else None
        known = name in RULES or name in CONTROL_OPERATORS or name in SEQUENCES or name in ("Constant", "If")
        if not known and not has_standard_body(node, opset):
            raise without_rule(name)
        return form


def _graphs(node: NodeProto) -> list[GraphProto]:
    """The graphs inside a node."""
    return [graph for item in node.attribute for graph in (*item.graphs, *([item.g] if item.HasField("g") else []))]
