"""TensorProto -> arrays: every size is checked against the data before anything is read."""

from __future__ import annotations

import math
import stat
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from onnx import SparseTensorProto, TensorProto, TypeProto

from tilewright import dtypes
from tilewright.dtypes import DType
from tilewright.errors import ImportModelError, ShapeError, out_of_memory
from tilewright.graph.inference import check_shape

ONNX_DTYPES: dict[int, DType] = {
    TensorProto.BOOL: dtypes.int1,
    TensorProto.INT8: dtypes.int8,
    TensorProto.INT16: dtypes.int16,
    TensorProto.INT32: dtypes.int32,
    TensorProto.INT64: dtypes.int64,
    TensorProto.UINT8: dtypes.uint8,
    TensorProto.UINT16: dtypes.uint16,
    TensorProto.UINT32: dtypes.uint32,
    TensorProto.UINT64: dtypes.uint64,
    TensorProto.INT4: dtypes.int4,
    TensorProto.UINT4: dtypes.uint4,
    TensorProto.INT2: dtypes.int2,
    TensorProto.UINT2: dtypes.uint2,
    TensorProto.FLOAT4E2M1: dtypes.float4e2,
    TensorProto.FLOAT8E8M0: dtypes.float8e8,
    TensorProto.FLOAT8E5M2FNUZ: dtypes.float8e5b16,
    TensorProto.FLOAT8E4M3FNUZ: dtypes.float8e4b8,
    TensorProto.FLOAT8E5M2: dtypes.float8e5,
    TensorProto.FLOAT8E4M3FN: dtypes.float8e4nv,
    TensorProto.FLOAT16: dtypes.float16,
    TensorProto.BFLOAT16: dtypes.bfloat16,
    TensorProto.FLOAT: dtypes.float32,
    TensorProto.DOUBLE: dtypes.float64,
    TensorProto.STRING: dtypes.string,
}
# The field that holds the elements of each type when they are not in `raw_data`; the rest are in `int32_data`.
_FIELDS: dict[int, str] = {
    TensorProto.FLOAT: "float_data",
    TensorProto.DOUBLE: "double_data",
    TensorProto.INT64: "int64_data",
    TensorProto.UINT32: "uint64_data",
    TensorProto.UINT64: "uint64_data",
    TensorProto.STRING: "string_data",
}
_DATA_FIELDS = ("float_data", "int32_data", "string_data", "int64_data", "double_data", "uint64_data")


def type_name(number: int) -> str:
    """ONNX's name of an element type, or the number where there is none."""
    return TensorProto.DataType.Name(number) if number in TensorProto.DataType.values() else str(number)


def list_type(found: TypeProto) -> DType | None:
    """The type of a value that a model declares: of a tensor its element type; None for what is not supported."""
    kind = found.WhichOneof("value")
    if kind == "tensor_type":
        return ONNX_DTYPES.get(found.tensor_type.elem_type)
    if kind == "map_type":
        key, item = ONNX_DTYPES.get(found.map_type.key_type), list_type(found.map_type.value_type)
        return None if key is None or item is None else dtypes.ANY_BY_NAME.get(f"map({key.name},{item.name})")
    inner = list_type(getattr(found, kind).elem_type) if kind in ("sequence_type", "optional_type") else None
    if inner is None or inner.kind == "optional" or (inner.kind == kind == "sequence"):
        return None
    return dtypes.ANY_BY_NAME.get(f"{kind.removesuffix('_type')}({inner.name})")


def read_tensor(tensor: TensorProto, folder: Path | None, subject: str = "tensor") -> np.ndarray:
    """The elements of a stored tensor; those in an external file of the model's `folder` are mapped, not read.

    Text is an array of Python's strings.

    Raises `ImportModelError` for an unknown element type, dimensions that do not fit the data, numbers outside the
    type's range, and external files that are missing, too short or outside the folder.
    """
    subject = f"{subject} {tensor.name!r}"
    if tensor.data_type not in ONNX_DTYPES:
        raise ImportModelError(
            f"{subject} has the element type {type_name(tensor.data_type)}, which is not supported; use a number type"
        )
    if tensor.HasField("segment"):
        raise ImportModelError(f"{subject} is stored in segments, which is not supported; store it whole")
    shape = tuple(tensor.dims)
    dtype = ONNX_DTYPES[tensor.data_type].numpy
    try:
        check_shape(shape)
    except ShapeError as error:
        raise ImportModelError(f"{subject} has the dimensions {list(shape)}: {error}") from None
    fields = [name for name in _DATA_FIELDS if len(getattr(tensor, name))]
    if tensor.data_type == TensorProto.STRING and (set(fields) - {"string_data"} or _is_elsewhere(tensor)):
        raise ImportModelError(f"{subject} stores its text in another place than string_data")
    if tensor.data_location == TensorProto.EXTERNAL:
        return _external(tensor, folder, shape, dtype, subject)
    if len(fields) + tensor.HasField("raw_data") > 1:
        raise ImportModelError(f"{subject} stores its elements twice: in {', '.join(fields)} and elsewhere")
    if tensor.HasField("raw_data"):
        return _raw(tensor.raw_data, shape, dtype, subject)
    if tensor.data_type == TensorProto.STRING:
        return _strings(tensor, shape, subject)
    field = _FIELDS.get(tensor.data_type, "int32_data")
    if fields and fields != [field]:
        raise ImportModelError(f"{subject} stores its {dtype} elements in {fields[0]}; they belong into {field}")
    return _typed(np.array(getattr(tensor, field)), shape, dtype, subject)


def read_sparse(sparse: SparseTensorProto, folder: Path | None) -> np.ndarray:
    """The elements of a sparse tensor, with zeros for those that are not stored. Raises `ImportModelError` and
    `OutOfMemoryError`."""
    subject = f"sparse tensor {sparse.values.name!r}"
    values = read_tensor(sparse.values, folder)
    indices = read_tensor(sparse.indices, folder) if sparse.HasField("indices") else np.zeros(0, np.int64)
    shape, count = tuple(sparse.dims), values.size
    try:
        check_shape(shape)
    except ShapeError as error:
        raise ImportModelError(f"{subject} has the dimensions {list(shape)}: {error}") from None
    if values.dtype == object or values.ndim != 1:
        raise ImportModelError(f"{subject}: its values must be a list of numbers")
    if indices.dtype != np.int64 or indices.shape not in ((count,), (count, len(shape))):
        raise ImportModelError(f"{subject} has {count} values, and indices of another number or type than int64")
    bounds = shape if indices.ndim == 2 else (math.prod(shape),)
    places = indices.reshape(count, len(bounds))
    if (places < 0).any() or (places >= np.array(bounds, np.int64)).any():
        raise ImportModelError(f"{subject} has an index outside its dimensions {list(shape)}")
    try:
        dense = np.zeros(bounds, values.dtype)
    except MemoryError as error:
        raise out_of_memory(subject, error) from None
    dense[tuple(places.T)] = values
    return dense.reshape(shape)


def _is_elsewhere(tensor: TensorProto) -> bool:
    return tensor.HasField("raw_data") or tensor.data_location == TensorProto.EXTERNAL


def _strings(tensor: TensorProto, shape: tuple[int, ...], subject: str) -> np.ndarray:
    _check_count(len(tensor.string_data), shape, subject, "elements")
    result = np.empty(len(tensor.string_data), object)
    try:
        result[:] = [item.decode() for item in tensor.string_data]
    except UnicodeDecodeError as error:
        raise ImportModelError(f"{subject} has an element that is no UTF-8 text ({error.reason})") from None
    return result.reshape(shape)


def _check_count(found: int, shape: Sequence[int], subject: str, unit: str, each: int = 1) -> None:
    expected = math.prod(shape) * each
    if found != expected:
        raise ImportModelError(
            f"{subject} has {found} {unit}, but its dimensions {list(shape)} need {expected}; export the model again"
        )


def _raw(data: bytes, shape: tuple[int, ...], dtype: np.dtype, subject: str) -> np.ndarray:
    packed = _per_byte(dtype)
    if packed > 1:
        return _unpacked(np.frombuffer(data, np.uint8), shape, dtype, subject)
    _check_count(len(data), shape, subject, "bytes", dtype.itemsize)
    if dtype == np.bool_:  # any byte but 0 is true
        return (np.frombuffer(data, np.uint8) != 0).reshape(shape)
    return np.frombuffer(data, dtype).reshape(shape)


def _per_byte(dtype: np.dtype) -> int:
    """How many elements ONNX stores in one byte."""
    bits = dtypes.from_numpy(dtype).bits
    return 1 if dtype == np.bool_ else max(1, 8 // bits)


def _unpacked(data: np.ndarray, shape: tuple[int, ...], dtype: np.dtype, subject: str) -> np.ndarray:
    """Elements that share bytes, the first in the lowest bits."""
    packed, count = _per_byte(dtype), math.prod(shape)
    expected = -(-count // packed)
    if data.size != expected:
        raise ImportModelError(
            f"{subject} has {data.size} bytes, but its dimensions {list(shape)} need {expected}; export the model again"
        )
    bits = 8 // packed
    parts = (data[:, None] >> (bits * np.arange(packed, dtype=np.uint8))) & ((1 << bits) - 1)
    return parts.reshape(-1)[:count].astype(np.uint8).view(dtype).reshape(shape)


def _typed(elements: np.ndarray, shape: tuple[int, ...], dtype: np.dtype, subject: str) -> np.ndarray:
    """Elements from a list of numbers; those of small floating-point types are bit patterns."""
    if _per_byte(dtype) > 1:
        if elements.size and not 0 <= int(elements.min()) <= int(elements.max()) < 256:
            raise ImportModelError(
                f"{subject} has elements from {elements.min()} to {elements.max()}; bytes are 0 to 255"
            )
        return _unpacked(elements.astype(np.uint8), shape, dtype, subject)
    _check_count(elements.size, shape, subject, "elements")
    if elements.size == 0 or dtype in (np.float32, np.float64):
        return elements.astype(dtype).reshape(shape)
    stored = dtype if dtype.kind in "iub" else np.dtype(f"uint{8 * dtype.itemsize}")
    low, high = (0, 1) if dtype == np.bool_ else (np.iinfo(stored).min, np.iinfo(stored).max)
    least, most = int(elements.min()), int(elements.max())
    if least < low or most > high:
        raise ImportModelError(f"{subject} has elements from {least} to {most}; those of {dtype} are {low} to {high}")
    return elements.astype(stored).view(dtype).reshape(shape)


def _external(
    tensor: TensorProto, folder: Path | None, shape: tuple[int, ...], dtype: np.dtype, subject: str
) -> np.ndarray:
    """A view of the mapped data file in the model's folder."""
    entries = {entry.key: entry.value for entry in tensor.external_data}
    location = entries.get("location", "")
    if not all(isinstance(text, str) for item in entries.items() for text in item):
        raise ImportModelError(f"{subject} has external data whose place is no UTF-8 text; the file is damaged")
    if folder is None:
        raise ImportModelError(f"{subject} is in the file {location!r}: import the model by its path")
    path = _inside(folder, location, subject)
    offset = _number(entries.get("offset", "0"), "offset", subject)
    packed = _per_byte(dtype)
    size = math.prod(shape) * dtype.itemsize if packed == 1 else -(-math.prod(shape) // packed)
    if "length" in entries and packed == 1:
        _check_count(_number(entries["length"], "length", subject), shape, subject, "bytes", dtype.itemsize)
    try:
        status = path.stat()
    except OSError:
        raise ImportModelError(
            f"{subject}: the data file {location!r} is missing: put it into the model's folder, {folder}"
        ) from None
    if not stat.S_ISREG(status.st_mode):
        raise ImportModelError(f"{subject}: the data file {location!r} is no regular file")
    if status.st_size < offset + size:
        raise ImportModelError(
            f"{subject}: the data file {location!r} is too short: it has {status.st_size} bytes, and bytes {offset} to "
            f"{offset + size} are needed; copy it again, or export the model again"
        )
    if size == 0:
        return np.zeros(shape, dtype)
    try:
        if packed > 1:
            return _unpacked(np.memmap(path, np.uint8, "r", offset, (size,)), shape, dtype, subject)
        return np.memmap(path, dtype, "r", offset, shape)
    except OSError as error:
        raise ImportModelError(f"{subject}: the data file {location!r} cannot be read: {error.strerror}") from None


def _inside(folder: Path, location: str, subject: str) -> Path:
    """The file that a location names, which must lie in the model's folder, links followed."""
    if not location or "\0" in location:
        raise ImportModelError(f"{subject}: {location!r} is no name of a data file")
    try:
        home = folder.resolve()
        path = (home / location).resolve()
    except (OSError, RuntimeError) as error:  # too long, links in a circle
        raise ImportModelError(f"{subject}: the data file {location!r} cannot be found: {error}") from None
    if not path.is_relative_to(home) or Path(location).is_absolute():
        raise ImportModelError(f"{subject}: the data file {location!r} leaves the model's folder")
    return path


def _number(text: str, key: str, subject: str) -> int:
    if not (text.isascii() and text.isdigit() and len(text) < 19):
        raise ImportModelError(f"{subject}: the external data's {key} {text[:40]!r} is no number of bytes")
    return int(text)
