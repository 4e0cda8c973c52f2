"""Bodies of functions: those of the model, and those that ONNX defines for operations without a rule."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import onnx
import onnx.defs
from onnx import AttributeProto, FunctionProto, NodeProto, TypeProto

from tilewright.dtypes import DType, element_of
from tilewright.importers.onnx_call import Tensor
from tilewright.importers.onnx_schema import DOMAINS
from tilewright.importers.onnx_sequences import is_list
from tilewright.importers.onnx_tensors import ONNX_DTYPES
from tilewright.importers.report import Unsupported

_NUMBERS = {dtype: number for number, dtype in ONNX_DTYPES.items()}


def has_standard_body(node: NodeProto, opset: int) -> bool:
    """Whether ONNX gives a body for an operation, perhaps for some element types alone."""
    try:
        schema: Any = onnx.defs.get_schema(node.op_type, opset, "" if node.domain in DOMAINS else node.domain)
    except onnx.defs.SchemaError:
        return False
    return bool(schema.has_function or schema.has_context_dependent_function)


def standard_body(
    node: NodeProto, opset: int, attributes: Mapping[str, AttributeProto], inputs: Sequence[Tensor | None]
) -> FunctionProto | None:
    """The body that ONNX gives for an operation, with default attributes; None where it gives none.

    Some bodies follow from the element types of the inputs.  Raises `Unsupported` when ONNX refuses these.
    """
    try:
        schema: Any = onnx.defs.get_schema(node.op_type, opset, "" if node.domain in DOMAINS else node.domain)
    except onnx.defs.SchemaError:
        return None
    body = FunctionProto()
    if schema.has_function:
        version = _version(schema.function_opset_versions, opset)
        body.ParseFromString(schema.get_function_with_opset_version(version))
    elif schema.has_context_dependent_function:
        version = _version(schema.context_dependent_function_opset_versions, opset)
        call = NodeProto(op_type=node.op_type, input=node.input, output=node.output, attribute=attributes.values())
        types = [_type_of(item).SerializeToString() for item in inputs]
        try:
            data = schema.get_context_dependent_function_with_opset_version(version, call.SerializeToString(), types)
        except RuntimeError as error:
            raise Unsupported(f"ONNX gives no body for this use: {error}") from None
        body.ParseFromString(data)
    else:
        return None
    if not body.node:
        return None
    if node.domain in DOMAINS and not any(entry.domain == "" for entry in body.opset_import):
        body.opset_import.append(onnx.helper.make_opsetid("", version))
    given = {item.name for item in body.attribute_proto}
    body.attribute_proto.extend(
        item.default_value
        for name, item in schema.attributes.items()
        if name not in given and item.default_value.type != AttributeProto.UNDEFINED
    )
    return body


def _version(versions: Sequence[int], opset: int) -> int:
    """The newest version of a body that is not newer than the model; else the oldest."""
    return max((version for version in versions if version <= opset), default=min(versions))


def _type_of(tensor: Tensor | None) -> TypeProto:
    result = TypeProto()
    if tensor is not None and is_list(tensor):
        _set_element(result, tensor.dtype)
    elif tensor is not None:
        result.tensor_type.elem_type = _NUMBERS[tensor.dtype]
        shape = result.tensor_type.shape
        for extent in tensor.shape:
            dim = shape.dim.add()
            if isinstance(extent, int):
                dim.dim_value = extent
            else:
                dim.dim_param = str(extent)
    return result


def _set_element(proto: TypeProto, dtype: DType) -> None:
    """Make a type that of a sequence, an optional, or a tensor."""
    if dtype.kind in ("sequence", "optional"):
        inner = proto.sequence_type if dtype.kind == "sequence" else proto.optional_type
        _set_element(inner.elem_type, element_of(dtype))
    else:
        proto.tensor_type.elem_type = _NUMBERS[dtype]
