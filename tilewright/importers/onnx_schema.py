"""ONNX's schema of an operation in one opset: attributes, numbers of inputs and outputs, element types.

The rules then see only nodes of the right form; what is left to them are shapes and the values of attributes.
"""

from __future__ import annotations

import difflib
import functools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import onnx
import onnx.defs
from onnx import AttributeProto, NodeProto

from tilewright.dtypes import DType, optional_of, sequence_of
from tilewright.importers.onnx_tensors import ONNX_DTYPES, type_name
from tilewright.importers.report import Invalid, Unsupported

NEWEST = onnx.defs.onnx_opset_version()
DOMAINS = ("", "ai.onnx")
OTHER_DOMAINS = ("ai.onnx.ml", "ai.onnx.preview", "ai.onnx.preview.training")  # of which the onnx package has schemas
# What ONNX Runtime has in ONNX's own domain, up to an opset: names that ONNX dropped, or got later.
RUNTIME_NAMES = {
    **dict.fromkeys(("Affine", "Crop", "DynamicSlice", "ImageScaler", "ParametricSoftplus", "Scale", "ScaledTanh"), 9),
    "LayerNormalization": 16,
    "MeanVarianceNormalization": 8,
    "SimplifiedLayerNormalization": 1 << 30,
    "ThresholdedRelu": 9,
}
RUNTIME_DOMAIN = "com.microsoft"  # of ONNX Runtime, whose optimiser and quantiser write its operations
RUNTIME_DOMAINS = (RUNTIME_DOMAIN, "com.microsoft.nchwc")
Option = onnx.defs.OpSchema.FormalParameterOption

_TYPE_TEXT = {dtype: f"tensor({type_name(number).lower()})" for number, dtype in ONNX_DTYPES.items()}
_TYPE_TEXT |= {sequence_of(dtype): f"seq({text})" for dtype, text in _TYPE_TEXT.items()}
_TYPE_TEXT |= {optional_of(dtype): f"optional({text})" for dtype, text in _TYPE_TEXT.items()}
_BY_TEXT = {text: dtype for dtype, text in _TYPE_TEXT.items()}
# The field of an attribute that holds the value of each type.
_PAYLOADS = {
    AttributeProto.FLOAT: "f",
    AttributeProto.INT: "i",
    AttributeProto.STRING: "s",
    AttributeProto.TENSOR: "t",
    AttributeProto.GRAPH: "g",
    AttributeProto.SPARSE_TENSOR: "sparse_tensor",
    AttributeProto.TYPE_PROTO: "tp",
    AttributeProto.FLOATS: "floats",
    AttributeProto.INTS: "ints",
    AttributeProto.STRINGS: "strings",
    AttributeProto.TENSORS: "tensors",
    AttributeProto.GRAPHS: "graphs",
    AttributeProto.SPARSE_TENSORS: "sparse_tensors",
    AttributeProto.TYPE_PROTOS: "type_protos",
}
_LISTS = frozenset(number for number, field in _PAYLOADS.items() if field.endswith("s") and field != "s")
_NOTES = frozenset({"name", "type", "doc_string", "ref_attr_name"})


@dataclass(frozen=True)
class FormalParameter:
    """One formal input: variadic ones stand for all that follow."""

    name: str
    optional: bool
    variadic: bool
    same: bool  # all of a variadic one have one element type
    variable: str  # inputs with one type variable have one element type
    types: frozenset[str]


@dataclass(frozen=True)
class OperatorForm:
    """An operation's form in one opset."""

    since: int
    attributes: Mapping[str, tuple[int, bool]]  # type number, whether it must be there
    parameters: tuple[FormalParameter, ...]
    results: tuple[FormalParameter, ...]
    inputs: tuple[int, int]
    outputs: tuple[int, int]


def has_schema(node: NodeProto, opset: int) -> bool:
    """Whether the onnx package should know an operation: ONNX Runtime's own have no description there."""
    return node.domain not in RUNTIME_DOMAINS and not (
        node.domain in DOMAINS and opset <= RUNTIME_NAMES.get(node.op_type, 0)
    )


def rule_name(node: NodeProto) -> str:
    """Under which name the rule of a node is found: those of other domains than ONNX's own begin with the domain."""
    return node.op_type if node.domain in DOMAINS else f"{node.domain}::{node.op_type}"


@functools.lru_cache(maxsize=4096)
def form_of(operation: str, opset: int, domain: str = "") -> OperatorForm:
    """The form of an operation of a domain that ONNX has schemas of.

    Raises `Unsupported` for a name that no opset has, and `Invalid` for one that this opset does not have.
    """
    try:
        schema = onnx.defs.get_schema(operation, opset, "" if domain in DOMAINS else domain)
    except onnx.defs.SchemaError:
        if not onnx.defs.has(operation, "" if domain in DOMAINS else domain):
            known = {
                schema.name for schema in onnx.defs.get_all_schemas() if schema.domain == domain or domain in DOMAINS
            }
            close = difflib.get_close_matches(operation, known, 1)
            advice = (f"correct the name: {close[0]} is the closest",) if close else ()
            raise Unsupported("no operation of this name is in any opset of ONNX", *advice) from None
        raise Invalid(f"opset {opset} has no {operation}; a later one brings it") from None
    if schema.deprecated and _has_schema(operation, schema.since_version - 1, domain):
        raise Invalid(f"opset {opset} has no {operation} any more: it ended with opset {schema.since_version - 1}")
    parameters, results = (tuple(map(_formal, found)) for found in (schema.inputs, schema.outputs))
    described: Mapping[str, Any] = schema.attributes
    attributes = {name: (int(item.type.value), bool(item.required)) for name, item in described.items()}
    inputs, outputs = (schema.min_input, schema.max_input), (schema.min_output, schema.max_output)
    return OperatorForm(schema.since_version, attributes, parameters, results, inputs, outputs)


def _has_schema(operation: str, opset: int, domain: str) -> bool:
    """Whether an opset has an operation: GroupNormalization was deprecated as soon as it came, and is in use."""
    try:
        onnx.defs.get_schema(operation, opset, "" if domain in DOMAINS else domain)
    except onnx.defs.SchemaError:
        return False
    return True


def _formal(parameter: Any) -> FormalParameter:
    """A formal input or output of a schema."""
    return FormalParameter(
        parameter.name,
        parameter.option == Option.Optional,
        parameter.option == Option.Variadic,
        parameter.is_homogeneous,
        parameter.type_str,
        frozenset(parameter.types),
    )


def check_payload(attribute: AttributeProto) -> None:
    """Raise `Invalid` unless an attribute has one value, of the type that it says."""
    field = _PAYLOADS.get(attribute.type)
    if field is None:
        raise Invalid(f"the attribute {attribute.name!r} has the unknown type {attribute.type}")
    present = {descriptor.name for descriptor, _ in attribute.ListFields()} - _NOTES
    if present - {field} or (field not in present and attribute.type not in _LISTS):
        kind = AttributeProto.AttributeType.Name(attribute.type)
        raise Invalid(
            f"the attribute {attribute.name!r} is of type {kind}, but holds {', '.join(present) or 'nothing'}"
        )


def check_attributes(form: OperatorForm, attributes: Mapping[str, AttributeProto]) -> None:
    """Raise `Invalid` for an attribute of another type, or one that is missing; `Unsupported` for unknown ones."""
    unknown = sorted(set(attributes) - set(form.attributes))
    if unknown:
        raise Unsupported(f"the attributes {', '.join(unknown)} of this operation", "leave them out")
    for name, (kind, required) in form.attributes.items():
        found = attributes.get(name)
        if found is None:
            if required:
                raise Invalid(f"the attribute {name!r} is missing")
            continue
        check_payload(found)
        if found.type != kind:
            have, want = (AttributeProto.AttributeType.Name(number) for number in (found.type, kind))
            raise Invalid(f"the attribute {name!r} is of type {have}; it must be of type {want}")


def check_arity(form: OperatorForm, inputs: Sequence[object | None], outputs: int) -> None:
    """Raise `Invalid` for too few or too many inputs (None: left out) and outputs."""
    for side, count, (least, most) in (("inputs", len(inputs), form.inputs), ("outputs", outputs, form.outputs)):
        if not least <= count <= most:
            many = f"{least}" if least == most else f"{least} to {most}" if most < 2**31 - 1 else f"{least} or more"
            raise Invalid(f"it has {count} {side}; it must have {many}")
    for index, item in enumerate(inputs):
        parameter = form.parameters[min(index, len(form.parameters) - 1)]
        if item is None and not parameter.optional:
            raise Invalid(f"input {index} ({parameter.name!r}) is left out, but it is not optional")


def check_types(form: OperatorForm, inputs: Sequence[DType | None]) -> None:
    """Raise `Invalid` for an input whose element type the operation does not take, or that differs from its peers'."""
    chosen: dict[str, tuple[int, DType]] = {}
    for index, dtype in enumerate(inputs):
        if dtype is None:
            continue
        parameter = form.parameters[min(index, len(form.parameters) - 1)]
        text = _TYPE_TEXT[dtype]
        if text not in parameter.types:
            known = ", ".join(sorted(str(other) for other, text in _TYPE_TEXT.items() if text in parameter.types))
            raise Invalid(
                f"input {index} ({parameter.name!r}) is {dtype}, which the operation does not take in the opset of "
                f"the model; it takes {known or 'other kinds of values'}"
            )
        if parameter.variadic and not parameter.same:
            continue
        first, other = chosen.setdefault(parameter.variable, (index, dtype))
        if other != dtype:
            raise Invalid(f"inputs {first} and {index} must have one element type; they have {other} and {dtype}")


def results_of(form: OperatorForm, inputs: Sequence[DType | None], count: int) -> list[DType | None]:
    """The element types of results, of inputs that `check_types` takes: those of inputs with the same type variable,
    or the only one that there is; None where an attribute says it."""
    chosen = {
        form.parameters[min(index, len(form.parameters) - 1)].variable: dtype
        for index, dtype in enumerate(inputs)
        if dtype is not None
    }
    found: list[DType | None] = []
    for index in range(count):
        result = form.results[min(index, len(form.results) - 1)]
        only = _BY_TEXT.get(next(iter(result.types))) if len(result.types) == 1 else None
        found.append(only or (chosen.get(result.variable) if result.same or not result.variadic else None))
    return found
