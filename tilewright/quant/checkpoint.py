"""Quantizes a language model's checkpoint folder: linear layers in 4 or 8 bits, written as another folder.

The result is what `compressed-tensors` calls ``pack-quantized``: ``weight_packed``, ``weight_scale`` and
``weight_shape`` for each layer, and ``quantization_config`` in config.json.  Tensors are read from the mapped files and
written one by one, so that memory holds one of them.

Work goes on in ``OUTPUT.part``, which becomes ``OUTPUT`` when all is there.  The sizes of all tensors are known before
the first is written, and files are written from front to back: what a stopped run has left is a front part of the very
file, and a run with the same checkpoint and settings goes on after its last whole tensor.
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

from tilewright.dtypes import bfloat16, float16, float32
from tilewright.errors import InputError
from tilewright.importers.huggingface import Checkpoint, read_settings, stored_type
from tilewright.importers.quantized_checkpoints import KEY
from tilewright.quant.layers import GROUPS, WEIGHT_BITS

Progress = Callable[[str, str, float], None]
_LEAST_WEIGHTS = 1 << 14  # fewer stay in floats
_INDEX, _SINGLE, _STATE = "model.safetensors.index.json", "model.safetensors", "tilewright-quantize.json"
_WEIGHT_FILES = (".safetensors", ".bin", ".pt", ".pth", ".gguf", ".h5", ".msgpack", ".onnx")
_IN_FLOATS = ("embed", "wte", "wpe", "lm_head", "norm", "rotary", "shared_head")  # parts of names
_ROUTERS = (".gate", ".router")
_TYPES = {float32.numpy: "F32", float16.numpy: "F16", bfloat16.numpy: "BF16"}
_TRANSPOSED = ("gpt2",)  # families that store a layer's weight as [inputs, outputs]


@dataclass(frozen=True)
class StoredLayer:
    """A linear layer: its path, outputs and inputs; the error of its weights (root mean square, as a part of theirs),
    None where an earlier run has written them; or why it stays in floats."""

    name: str
    shape: tuple[int, int]
    error: float | None = None
    reason: str | None = None


@dataclass(frozen=True)
class QuantizedCheckpoint:
    """The folder, the layers, and the bytes of all weights before and after."""

    folder: Path
    scheme: str
    layers: tuple[StoredLayer, ...]
    bytes_before: int
    bytes_after: int


@dataclass(frozen=True)
class _Entry:
    """A tensor of the result: its name, type and shape as the format spells them, and its bytes, made when written."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    size: int
    data: Callable[[], bytes]


@dataclass
class _Rounding:
    """How layers are rounded."""

    bits: int
    group: int  # 0: a scale for each output
    exclude: frozenset[str]
    layers: dict[str, StoredLayer] = field(default_factory=dict)

    def entries(self, name: str, data: np.ndarray, folder: Path) -> list[_Entry]:
        """What a tensor becomes."""
        path = name.removesuffix(".weight")
        if not _is_layer(name, data):
            return [_as_is(name, data)]
        rows, columns = data.shape
        reason = self._why_not(path, data)
        self.layers[path] = StoredLayer(path, (rows, columns), reason=reason)
        if reason is not None:
            return [_as_is(name, data)]
        made: dict[str, bytes] = {}
        count, words = columns // (self.group or columns), -(-columns * self.bits // 32)

        def part(kind: str) -> Callable[[], bytes]:
            def take() -> bytes:
                if not made:
                    made.update(self._rounded(path, data, folder))
                return made.pop(kind)

            return take

        return [
            _Entry(f"{path}.weight_packed", "I32", (rows, words), rows * words * 4, part("packed")),
            _Entry(f"{path}.weight_scale", _TYPES[data.dtype], (rows, count), rows * count * data.dtype.itemsize,
                   part("scale")),
            _Entry(f"{path}.weight_shape", "I64", (2,), 16, lambda: np.array([rows, columns], "<i8").tobytes()),
        ]  # fmt: skip

    def _why_not(self, path: str, data: np.ndarray) -> str | None:
        if path in self.exclude:
            return "it was left out"
        if path.endswith(_ROUTERS):
            return "it chooses experts"
        if data.size < _LEAST_WEIGHTS:
            return f"its {data.size} weights are few"
        if self.group and data.shape[1] % self.group:
            return f"its {data.shape[1]} inputs are no multiple of the group {self.group}"
        return None

    def _rounded(self, path: str, data: np.ndarray, folder: Path) -> dict[str, bytes]:
        """The nearest of 2^bits - 1 numbers around zero, by scales that were rounded to the type of the weights."""
        weights = data.astype(np.float32)
        if not np.isfinite(weights).all():
            raise InputError(f"{folder}: {path}.weight has numbers that are infinite or not a number")
        rows, columns = weights.shape
        most = (1 << (self.bits - 1)) - 1
        grouped = weights.reshape(rows, -1, self.group or columns)
        scales = (np.abs(grouped).max(axis=2) / np.float32(most)).astype(data.dtype)
        wide = scales.astype(np.float32)
        wide[wide == 0] = 1  # of zeros, or of numbers too small for a scale of this type
        scales = wide.astype(data.dtype)
        codes = np.clip(np.rint(grouped / wide[..., None]), -most, most)
        error = float(np.sqrt(((codes * wide[..., None] - grouped) ** 2).sum(dtype=np.float64)))
        total = float(np.sqrt((grouped**2).sum(dtype=np.float64)))
        self.layers[path] = StoredLayer(path, (rows, columns), error / total if total else 0.0)
        levels = (codes.reshape(rows, columns) + (most + 1)).astype(np.uint8)
        return {"packed": _packed(levels, self.bits), "scale": scales.tobytes()}


def quantize_checkpoint(
    folder: str | Path, output: str | Path, scheme: str = "int4-weights", *, group: int | None = None,
    exclude: Sequence[str] = (), progress: Progress | None = None,
) -> QuantizedCheckpoint:  # fmt: skip
    """Write the checkpoint `folder` with the linear layers of its blocks in few bits as the folder `output`.

    `scheme` is ``int4-weights`` (a scale for each 64 inputs of a row) or ``int8-weights`` (for each row); `group` is
    another number of inputs, 0 for all.  Weights are rounded to the nearest; embeddings, the layer before the logits,
    norms, routers of experts and the layers in `exclude` stay what they are.  The same checkpoint and settings give the
    same files.  A run that was stopped goes on when it is called again with the same arguments; `output` is there only
    when it is whole.

    Raises `ImportModelError` for a damaged checkpoint, and `InputError` for one that is quantized already, for an
    output that exists, for numbers that are not finite, and for names and numbers that do not fit.
    """
    source, target = Path(folder), Path(output)
    report = progress or (lambda stage, item, seconds: None)
    rounding = _checked(scheme, group, exclude)
    checkpoint = Checkpoint(source)
    _check_source(checkpoint, source)
    _check_target(source, target)
    shards = _shards(source, checkpoint)
    entries = {
        shard: [entry for name in names for entry in rounding.entries(name, checkpoint.tensors[name], source)]
        for shard, names in shards.items()
    }
    unknown = sorted(rounding.exclude - rounding.layers.keys())
    if unknown:
        raise InputError(
            f"no linear layer is called {unknown[0]!r}; names are such as {next(iter(rounding.layers), '')!r}"
        )
    if all(layer.reason is not None for layer in rounding.layers.values()):
        raise InputError(f"{source}: no linear layer can be rounded{_first_reason(rounding.layers.values())}")
    part = target.with_name(f"{target.name}.part")
    _begin(
        part,
        {
            "scheme": scheme,
            "group": rounding.group,
            "exclude": sorted(rounding.exclude),
            "files": _identity(source, shards),
        },
    )
    try:
        for shard, list_of in entries.items():
            _write(part / shard, list_of, report)
    except InputError:
        shutil.rmtree(part)  # nothing to go on with: the checkpoint itself has to change
        raise
    _copy_others(source, part)
    _finish(part, target, checkpoint.config, rounding, entries)
    before, after = (sum(file.stat().st_size for file in where.glob("*.safetensors")) for where in (source, target))
    return QuantizedCheckpoint(target, scheme, tuple(rounding.layers.values()), before, after)


def _checked(scheme: str, group: int | None, exclude: Sequence[str]) -> _Rounding:
    if scheme not in WEIGHT_BITS:
        raise InputError(
            f"a checkpoint folder is written with the scheme {' or '.join(WEIGHT_BITS)}; {scheme} is for engines"
        )
    bits = WEIGHT_BITS[scheme]
    size = GROUPS[scheme] if group is None else group
    if type(size) is not int or size < 0 or size % (32 // bits):
        raise InputError(f"group is {size!r}: give a multiple of {32 // bits} inputs, or 0 for all of a row")
    return _Rounding(bits, size, frozenset(exclude))


def _check_source(checkpoint: Checkpoint, source: Path) -> None:
    if checkpoint.config.get(KEY) is not None:
        method = (checkpoint.config[KEY] or {}).get("quant_method", "some method")
        raise InputError(f"{source} is quantized already ({method}); give the checkpoint in floats")
    kind = checkpoint.config.get("model_type")
    if kind in _TRANSPOSED:
        raise InputError(f"checkpoints of {kind} store weights as [inputs, outputs], which the format has no name for")


def _check_target(source: Path, target: Path) -> None:
    if target.exists() and (not target.is_dir() or any(target.iterdir())):
        raise InputError(f"{target} exists; name a folder that does not")
    if not target.resolve().parent.is_dir():
        raise InputError(f"there is no folder {target.resolve().parent}")
    if source.resolve() in (target.resolve(), *target.resolve().parents):
        raise InputError(f"{target} is inside of the checkpoint; name a folder elsewhere")


def _shards(source: Path, checkpoint: Checkpoint) -> dict[str, list[str]]:
    """By file the names of its tensors."""
    index = source / _INDEX
    if (source / _SINGLE).exists() or not index.exists():
        return {_SINGLE: sorted(checkpoint.tensors)}
    found: dict[str, list[str]] = {}
    for name, shard in sorted(read_settings(index)["weight_map"].items()):
        found.setdefault(str(shard), []).append(name)
    return dict(sorted(found.items()))


def _identity(source: Path, shards: Mapping[str, Sequence[str]]) -> dict[str, list[int]]:
    """What tells that files are still those that an earlier run has read."""
    states = {shard: (source / shard).stat() for shard in shards}
    return {shard: [state.st_size, state.st_mtime_ns] for shard, state in states.items()}


def _first_reason(layers: Iterable[StoredLayer]) -> str:
    return next((f": of {layer.name}, {layer.reason}" for layer in layers), "")


def _is_layer(name: str, data: np.ndarray) -> bool:
    """Whether a tensor is the weight of a linear layer."""
    if not name.endswith(".weight") or data.ndim != 2 or data.dtype not in _TYPES:
        return False
    return not any(part in name.lower() for part in _IN_FLOATS)


def _as_is(name: str, data: np.ndarray) -> _Entry:
    return _Entry(name, stored_type(data.dtype), data.shape, data.nbytes, lambda: np.ascontiguousarray(data).tobytes())


def _packed(codes: np.ndarray, bits: int) -> bytes:
    """Codes [rows, columns] in words of 32 bits, the first in the low bits; rows end with whole words."""
    each = 32 // bits
    filled = np.pad(codes, ((0, 0), (0, -codes.shape[1] % each))).astype(np.uint32)
    words = np.zeros((len(codes), filled.shape[1] // each), np.uint32)
    for place in range(each):
        words |= filled[:, place::each] << np.uint32(bits * place)
    return words.astype("<u4").tobytes()


# Files ------------------------------------------------------------------------------------------------


def _begin(part: Path, state: dict[str, Any]) -> None:
    """The folder of unfinished work, empty if it is that of other work."""
    text = json.dumps(state, sort_keys=True)
    if part.is_symlink() or part.exists():
        known = part / _STATE
        folder = part.is_dir() and not part.is_symlink()
        if not folder or any(part.iterdir()) and not known.is_file():
            raise InputError(
                f"{part} exists and is no unfinished work of this command; remove it, or name another folder"
            )
        if known.is_file() and known.read_text() == text:
            return
        shutil.rmtree(part)
    part.mkdir()
    (part / _STATE).write_text(text)


def _write(path: Path, entries: Sequence[_Entry], progress: Progress) -> None:
    """A safetensors file, from where an earlier run has stopped."""
    header: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    place = 0
    for entry in entries:
        header[entry.name] = {
            "dtype": entry.dtype, "shape": list(entry.shape), "data_offsets": [place, place + entry.size]
        }  # fmt: skip
        place += entry.size
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    front = len(text).to_bytes(8, "little") + text
    with path.open("r+b" if path.exists() else "w+b") as file:
        written = file.seek(0, os.SEEK_END)
        if written < len(front):
            file.truncate(0)
            file.seek(0)
            file.write(front)
        _append(file, len(front), entries, max(0, written - len(front)), progress)
        file.flush()
        os.fsync(file.fileno())


def _append(file: BinaryIO, start: int, entries: Sequence[_Entry], written: int, progress: Progress) -> None:
    """The tensors after the first `written` bytes; one that is there in part is written again."""
    place = 0
    for number, entry in enumerate(entries, 1):
        if place + entry.size > written:
            written = 0  # from here on nothing is there
            file.seek(start + place)
            file.truncate()
            progress("round weights", f"{entry.name}, {number} of {len(entries)}", 0.0)
            file.write(entry.data())
            file.flush()
        place += entry.size


def _copy_others(source: Path, part: Path) -> None:
    """Tokenizer, templates and whatever else is no weights."""
    for file in sorted(source.iterdir()):
        if file.is_file() and file.suffix not in _WEIGHT_FILES and file.name not in (_INDEX, "config.json"):
            shutil.copyfile(file, part / file.name)


def _finish(
    part: Path, target: Path, config: Mapping[str, Any], rounding: _Rounding, entries: Mapping[str, Sequence[_Entry]]
) -> None:
    """The index and config.json; then the folder gets its name."""
    if list(entries) != [_SINGLE]:
        total = sum(entry.size for list_of in entries.values() for entry in list_of)
        names = {entry.name: shard for shard, list_of in entries.items() for entry in list_of}
        index = {"metadata": {"total_size": total}, "weight_map": dict(sorted(names.items()))}
        (part / _INDEX).write_text(json.dumps(index, indent=2) + "\n")
    strategy, size = ("group", rounding.group) if rounding.group else ("channel", None)
    weights = {
        "num_bits": rounding.bits, "type": "int", "symmetric": True, "strategy": strategy, "group_size": size,
        "dynamic": False,
    }  # fmt: skip
    scheme = {"targets": ["Linear"], "weights": weights, "input_activations": None, "output_activations": None}
    left = sorted(layer.name for layer in rounding.layers.values() if layer.reason is not None)
    settings = {
        "quant_method": "compressed-tensors", "format": "pack-quantized", "quantization_status": "compressed",
        "config_groups": {"group_0": scheme}, "ignore": ["lm_head", *left],
    }  # fmt: skip
    (part / "config.json").write_text(json.dumps({**config, KEY: settings}, indent=2) + "\n")
    if target.exists():
        target.rmdir()
    part.rename(target)
    (target / _STATE).unlink()  # last: without it the folder of work would be nobody's
