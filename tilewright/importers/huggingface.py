"""Hugging Face checkpoint folders -> Graph: config.json and memory-mapped safetensors, nothing else.

Neither PyTorch nor transformers is needed: the structure of a family is in `families/`.
"""

from __future__ import annotations

import json
import math
import mmap
import os
import stat
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from tilewright import dtypes
from tilewright.dtypes import DType
from tilewright.errors import ImportModelError
from tilewright.importers.shapes import Axes, Dimension

_DTYPES: dict[str, DType] = {
    "BOOL": dtypes.int1,
    "I8": dtypes.int8,
    "I16": dtypes.int16,
    "I32": dtypes.int32,
    "I64": dtypes.int64,
    "U8": dtypes.uint8,
    "U16": dtypes.uint16,
    "U32": dtypes.uint32,
    "U64": dtypes.uint64,
    "F8_E4M3": dtypes.float8e4nv,
    "F8_E5M2": dtypes.float8e5,
    "F8_E4M3FNUZ": dtypes.float8e4b8,
    "F8_E5M2FNUZ": dtypes.float8e5b16,
    "F8_E8M0": dtypes.float8e8,
    "F16": dtypes.float16,
    "BF16": dtypes.bfloat16,
    "F32": dtypes.float32,
    "F64": dtypes.float64,
}
_NOT_READ = {  # other types of the format, and what to do
    "F4": "store pairs of them as U8, as compressed-tensors does (nvfp4-pack-quantized)",
    "F6_E2M3": "store them as F8_E4M3, which has all of their numbers",
    "F6_E3M2": "store them as F8_E5M2, which has all of their numbers",
    "C64": "store real and imaginary parts as F32",
}
_STORED = {dtype.numpy: name for name, dtype in _DTYPES.items()}
# Graph ops and their attributes, by the names of activations in config.json.
_GELU, _GELU_TANH = (("gelu", {"approximate": form}) for form in ("none", "tanh"))
HUGGING_FACE_ACTIVATIONS: dict[str, tuple[str, dict[str, str]]] = {
    "silu": ("silu", {}),
    "swish": ("silu", {}),
    "relu": ("relu", {}),
    "gelu": _GELU,
    "gelu_new": _GELU_TANH,
    "gelu_fast": _GELU_TANH,
    "gelu_pytorch_tanh": _GELU_TANH,
}
_LARGEST_HEADER = 100 << 20  # bytes, as the format says
_LARGEST_CONFIG = 64 << 20  # bytes of config.json, or of the index of shards
_MOST_PROBLEMS = 100  # missing and misshapen tensors, after which reading stops


def read_safetensors(path: Path) -> dict[str, np.ndarray]:
    """Every tensor of a safetensors file as a read-only view of the mapped file.

    Layout: 8 bytes little-endian header length, JSON header ``{name: {dtype, shape, data_offsets}}``,
    then the data.  Raises `ImportModelError` when anything does not fit.
    """
    _check_file(path)
    try:
        with path.open("rb") as file:
            data = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
    except (OSError, ValueError) as error:
        raise ImportModelError(f"{path}: cannot be mapped ({error})") from error
    length = int.from_bytes(data[:8], "little") if len(data) >= 8 else -1
    if not 0 < length <= min(_LARGEST_HEADER, len(data) - 8):
        raise ImportModelError(f"{path}: not a safetensors file, or cut off inside its header; fetch it again")
    try:
        header = json.loads(data[8 : 8 + length])
        entries = {name: entry for name, entry in header.items() if name != "__metadata__"}
        for name, entry in entries.items():
            _check_type(path, name, entry["dtype"])
        return {name: _tensor(data, 8 + length, entry) for name, entry in entries.items()}
    except (ValueError, KeyError, TypeError, AttributeError, OverflowError, RecursionError) as error:
        text = f"{type(error).__name__}: {error}"[:300]
        raise ImportModelError(f"{path}: damaged safetensors file ({text}); fetch it again") from error


def _check_type(path: Path, name: str, dtype: Any) -> None:
    """Raise `ImportModelError` for a tensor of a type that is not read."""
    if not isinstance(dtype, str) or dtype not in _DTYPES:
        known = dtype if isinstance(dtype, str) else ""
        advice = _NOT_READ.get(known, f"those that are: {', '.join(_DTYPES)}")
        raise ImportModelError(f"{path}: {name} has elements of {repr(dtype)[:40]}, which are not read here; {advice}")


def stored_type(dtype: np.dtype) -> str:
    """What a safetensors file calls an element type."""
    return _STORED[dtype]


def _check_file(path: Path) -> None:
    """Raise `ImportModelError` for what is no regular file of the checkpoint: a pipe, a device, a link to elsewhere.

    Links may lead to the blobs of a Hugging Face cache: ``snapshots/REVISION/NAME -> ../../blobs/DIGEST``.
    """
    try:
        status, real, folder = path.stat(), path.resolve(), path.parent.resolve()
    except (OSError, ValueError, RuntimeError) as error:
        raise ImportModelError(f"{path}: cannot be mapped ({error})") from error
    if not stat.S_ISREG(status.st_mode):
        raise ImportModelError(f"{path}: no regular file")
    blobs = folder.parent.parent / "blobs" if folder.parent.name == "snapshots" else folder
    if folder not in real.parents and blobs not in real.parents:
        raise ImportModelError(f"{path}: a link that leads out of the folder, to {real}; copy that file here")


def _tensor(data: mmap.mmap, start: int, entry: Mapping[str, Any]) -> np.ndarray:
    dtype = _DTYPES[entry["dtype"]].numpy
    shape, (first, last) = tuple(entry["shape"]), entry["data_offsets"]
    if not all(type(number) is int for number in (*shape, first, last)):
        raise ValueError("a shape or an offset that is no whole number")
    count = math.prod(shape)
    if any(extent < 0 for extent in shape) or first < 0 or last - first != count * dtype.itemsize:
        raise ValueError(f"offsets {first}..{last} do not hold {shape} of {entry['dtype']}")
    if start + last > len(data):
        raise ValueError(f"data ends at byte {len(data)}, a tensor at {start + last}")
    if (start + first) % dtype.itemsize:  # views must be aligned; writers align, the format does not ask for it
        return np.frombuffer(data[start + first : start + last], dtype).reshape(shape)
    return np.frombuffer(data, dtype, count, start + first).reshape(shape)


def read_settings(path: Path) -> dict[str, Any]:
    """The JSON object of a file of a checkpoint; raises `ImportModelError` for what is none."""
    if not os.path.lexists(path):
        raise ImportModelError(f"{path}: missing; a checkpoint folder needs config.json and weights")
    _check_file(path)
    try:
        with path.open("rb") as file:
            data = file.read(_LARGEST_CONFIG + 1)
        if len(data) > _LARGEST_CONFIG:
            raise ImportModelError(f"{path}: more than {_LARGEST_CONFIG} bytes")
        content = json.loads(data.decode())
    except (OSError, ValueError, RecursionError) as error:
        raise ImportModelError(f"{path}: cannot be read as JSON ({str(error)[:300]})") from error
    if not isinstance(content, dict):
        raise ImportModelError(f"{path}: expected a JSON object")
    return content


class Checkpoint:
    """A checkpoint folder: its configuration and its tensors, which a family takes one by one.

    `take` and `finish` keep account of names and shapes; `finish` raises one `ImportModelError` that
    lists everything missing, misshapen and unexpected.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        if not os.path.lexists(folder):
            parts = folder.parts  # of the name of a model on a hub there are two
            hint = f"; models are not downloaded: hf download {folder.as_posix()} --local-dir FOLDER does it"
            raise ImportModelError(f"{folder}: no such folder{hint if len(parts) == 2 and '/' not in parts else ''}")
        self.config: dict[str, Any] = read_settings(folder / "config.json")
        self.tensors = self._read_weights()
        self._used: set[str] = set()
        self._problems: list[str] = []

    def _read_weights(self) -> dict[str, np.ndarray]:
        single, index = self.folder / "model.safetensors", self.folder / "model.safetensors.index.json"
        if os.path.lexists(single):
            return read_safetensors(single)
        if not os.path.lexists(index):
            hint = "; convert the PyTorch weights to safetensors" if any(self.folder.glob("*.bin")) else ""
            raise ImportModelError(f"{self.folder}: no model.safetensors and no model.safetensors.index.json{hint}")
        mapping = read_settings(index).get("weight_map")
        if not isinstance(mapping, dict):
            raise ImportModelError(f"{index}: has no weight_map")
        tensors: dict[str, np.ndarray] = {}
        for shard in sorted(set(map(str, mapping.values()))):
            if Path(shard).name != shard or shard in ("", ".", "..") or "\\" in shard:
                raise ImportModelError(f"{index}: the shard name {shard[:200]!r} leaves the folder")
            tensors.update(read_safetensors(self.folder / shard))
        absent = sorted(set(mapping) - set(tensors))
        if absent:
            raise ImportModelError(f"{index}: listed tensors that no shard holds: {_listed(absent)}")
        return tensors

    def setting(self, key: str, kind: type, default: Any = None) -> Any:
        """One entry of config.json; raises `ImportModelError` when it is missing or of another type."""
        value = self.config.get(key, default)
        if kind is float and isinstance(value, int) and not isinstance(value, bool) and abs(value) < 2**53:
            value = float(value)
        if not isinstance(value, kind) or (kind is int and isinstance(value, bool)):
            described = repr(value)[:100] if not isinstance(value, int) else "a whole number"
            raise ImportModelError(f"{self.folder / 'config.json'}: {key!r} is {described}, expected {kind.__name__}")
        return value

    def number(self, key: str, default: int | None = None, low: int = 1, high: int = 2**31 - 1) -> int:
        """A whole number of config.json from `low` to `high`; raises `ImportModelError`."""
        value: int = self.setting(key, int, default)
        if not low <= value <= high:
            described = value if abs(value) < 2**63 else "a number of more than 64 bits"
            raise ImportModelError(f"{self.folder / 'config.json'}: {key!r} is {described}, expected {low} to {high}")
        return value

    def check_layers(self, prefix: str, count: int, key: str) -> None:
        """Raise `ImportModelError` when the weights hold fewer layers (``PREFIX0.``, ...) than config.json says, before
        anything is done for each of them."""
        present = {name.removeprefix(prefix).split(".")[0] for name in self.tensors if name.startswith(prefix)}
        if len(present) < count:
            raise ImportModelError(
                f"{self.folder}: {key!r} is {count} in config.json, and the weights hold {len(present)} layers "
                f"({prefix}NUMBER). Check that config.json and the weights belong together."
            )

    def strip_prefix(self, prefix: str) -> None:
        """Drop a common prefix of the names (``bert.``), which task models put before their base."""
        if any(name.startswith(prefix) for name in self.tensors):
            self.tensors = {name.removeprefix(prefix): data for name, data in self.tensors.items()}

    def has(self, name: str) -> bool:
        return name in self.tensors

    def take(self, name: str, shape: tuple[int, ...], setting: str = "") -> np.ndarray:
        """A tensor of a known shape; what does not fit is noted for `finish` and stands in as zeros.

        `setting` names what of config.json the shape follows from, where that is not plain.
        """
        self._used.add(name)
        data = self.tensors.get(name)
        if data is None:
            self._problems.append(f"missing: {name} {list(shape)}{f' ({setting})' if setting else ''}")
        elif data.shape != shape:
            said = f"the configuration says {list(shape)}{f' ({setting})' if setting else ''}"
            self._problems.append(f"wrong shape: {name} is {list(data.shape)}, {said}")
        else:
            return data
        if len(self._problems) == _MOST_PROBLEMS:
            self.finish(ignored=("",))
        return np.broadcast_to(np.float32(0), shape)  # no memory: the shape comes from config.json

    def take_stored(self, name: str, shape: tuple[int, ...], setting: str = "") -> np.ndarray:
        """As `take`, for readers that work on the elements: what does not fit is an error at once, so that memory
        follows the file and not config.json."""
        before = len(self._problems)
        data = self.take(name, shape, setting)
        if len(self._problems) > before:
            self.finish(ignored=("",))
        return data

    def finish(self, ignored: Iterable[str] = ()) -> None:
        """Check the account; names that start with one of `ignored` may be left over."""
        prefixes = tuple(ignored)
        rest = [name for name in self.tensors if name not in self._used and not name.startswith(prefixes)]
        problems = self._problems + [f"unexpected: {name} {list(self.tensors[name].shape)}" for name in sorted(rest)]
        if problems:
            raise ImportModelError(
                f"{self.folder}: the weights do not fit config.json (model_type {self.config.get('model_type')!r}):\n  "
                + "\n  ".join(problems)
                + "\nCheck that config.json and the weights belong together."
            )


def _listed(names: list[str], most: int = 10) -> str:
    return ", ".join(names[:most]) + (f" and {len(names) - most} more" if len(names) > most else "")


def symbols(dimensions: Mapping[str, Axes], inputs: Iterable[str], axis: int, default: Dimension) -> Dimension | int:
    """The dimension that a caller gave to one axis of any of the inputs, else the family's default.

    The family's range limits the caller's (positions that have an embedding, for example).
    """
    for name in inputs:
        entry = dimensions.get(name, {}).get(axis)
        if isinstance(entry, int):
            return entry
        if entry is not None:
            return Dimension(entry.name, max(entry.low, default.low), min(entry.high, default.high))
    return default
