"""Reads files of `torch.export.save` without running their contents.

`torch.export.load` reads pickles, which are programs, and hands texts to Python.  Here the archive is read as data:
a zip file with the program as JSON (checked by `torch_schema`), and weights as plain bytes.  Examples of inputs, which
are pickled always, are not read.  Weights that are pickled, as earlier versions of PyTorch did, are read by
`torch.load(weights_only=True)`, which makes tensors and nothing else.
"""

from __future__ import annotations

import io
import json
import math
import re
import zipfile
from pathlib import Path
from typing import Any

import torch
from torch._export.serde import schema
from torch._export.serde.serialize import _SERIALIZE_TO_TORCH_DTYPE, ExportedProgramDeserializer
from torch.export import ExportedProgram

from tilewright.errors import ImportModelError
from tilewright.importers.torch_log_messages import without_tracebacks
from tilewright.importers.torch_schema import ValueRefused, checked, without_metadata
from tilewright.importers.torch_size_bounds import check_growth

_LARGEST_JSON = 256 << 20  # bytes
_MOST_MEMBERS = 1_000_000
_REPEATED = 1 << 24  # elements that a weight may have beyond those that are stored (a step of 0 repeats them)
_EARLIER = ("serialized_exported_program.json", "serialized_state_dict.pt", "serialized_constants.pt")


def read_program(path: str | Path) -> ExportedProgram:
    """The program of a .pt2 file.

    Raises `ImportModelError` when it is missing or damaged, and for what cannot be read without running it.
    """
    try:
        with zipfile.ZipFile(path) as archive:
            return _Archive(archive, Path(path).stat().st_size).program()
    except ValueRefused as error:
        raise ImportModelError(
            f"{path}: cannot be read without running it: {error}. A torch.export file of that kind is a program; if "
            "you trust who made it, allow it: tilewright.compile(path, trust=True), tilewright build --trust"
        ) from error
    except ImportModelError as error:
        raise ImportModelError(f"{path}: {error}") from error
    except Exception as error:  # PyTorch's reader meets anything that a file can say
        text = f"{type(error).__name__}: {error}".splitlines()[0][:300]
        raise ImportModelError(
            f"{path}: not a loadable torch.export file ({text}); save it again with this version of PyTorch"
        ) from error


class _Archive:
    """The members of a zip file; their sizes are checked before anything is read."""

    def __init__(self, archive: zipfile.ZipFile, size: int) -> None:
        self.archive = archive
        members = archive.infolist()
        if len(members) > _MOST_MEMBERS:
            raise ImportModelError(f"the archive has {len(members)} members, more than {_MOST_MEMBERS}")
        self.members: dict[str, zipfile.ZipInfo] = {}
        root = "" if any(info.filename in _EARLIER for info in members) else "/"
        for info in members:
            name = info.filename.split("/", 1)[-1] if root else info.filename  # below the archive's folder
            if name in self.members:
                raise ImportModelError(f"the archive has two members {name[:200]!r}")
            self.members[name] = info
        _check_expansion(members, size, compressed=_LARGEST_JSON)

    def read(self, name: str) -> bytes:
        """A member; raises `ImportModelError` when it is missing."""
        info = self.members.get(name)
        if info is None:
            raise ImportModelError(f"the archive has no {name}")
        return self.archive.read(info)

    def json(self, name: str) -> dict[str, Any]:
        """A member that is a JSON object."""
        if name in self.members and self.members[name].file_size > _LARGEST_JSON:
            raise ImportModelError(f"{name} has {self.members[name].file_size} bytes, more than {_LARGEST_JSON}")
        try:
            data = json.loads(self.read(name))
        except (ValueError, RecursionError) as error:
            raise ImportModelError(f"{name} is no JSON ({str(error)[:200]})") from error
        if not isinstance(data, dict):
            raise ImportModelError(f"{name} is no JSON object")
        return data

    def _model_name(self) -> str:
        """The name of the model, ``model`` if there are several."""
        found = [match[1] for name in self.members if (match := re.fullmatch(r"models/([\w.-]+)\.json", name))]
        if not found:
            raise ImportModelError("the archive has no models/NAME.json")
        return "model" if "model" in found else found[0]

    def program(self) -> ExportedProgram:
        """The program, of PyTorch's present or earlier format."""
        if "byteorder" in self.members and self.read("byteorder") != b"little":
            raise ImportModelError(
                "its weights are stored in another byte order than little endian; save it again on a CPU that is"
            )
        if _EARLIER[0] in self.members:
            text, weights, constants = self.json(_EARLIER[0]), self._pickled(_EARLIER[1]), self._pickled(_EARLIER[2])
        else:
            name = self._model_name()
            text = self.json(f"models/{name}.json")
            weights, constants = self._tensors("weights", name), self._tensors("constants", name)
        program = checked(schema.ExportedProgram, without_metadata(text), "ExportedProgram")
        check_growth(program.graph_module.graph)
        with torch.no_grad(), without_tracebacks():
            return ExportedProgramDeserializer().deserialize(program, weights, constants, b"")

    def _tensors(self, kind: str, model: str) -> dict[str, torch.Tensor]:
        """The weights or the constants by name; those that share memory in the file share it here."""
        if f"data/{kind}/{model}.pt" in self.members:
            return self._pickled(f"data/{kind}/{model}.pt")
        name = f"data/{kind}/{model}_{kind}_config.json"
        config = checked(schema.PayloadConfig, self.json(name), "PayloadConfig").config
        stored: dict[str, bytearray] = {}
        found: dict[str, torch.Tensor] = {}
        for weight, payload in config.items():
            member = f"data/{kind}/{payload.path_name}"
            if not re.fullmatch(r"(weight|tensor)_\d+", payload.path_name):
                raise ValueRefused(f"{weight} is an object of a class of its own, which is pickled")
            if payload.use_pickle:
                found[weight] = self._pickled_tensor(member)
                continue
            if payload.tensor_meta is None:
                raise ImportModelError(f"{name} does not say what {weight} is")
            data = stored.get(member)
            if data is None:
                data = stored[member] = bytearray(self.read(member))
            tensor = _tensor(weight, data, payload.tensor_meta)
            found[weight] = torch.nn.Parameter(tensor, requires_grad=False) if payload.is_param else tensor
        return found

    def _pickled(self, name: str) -> dict[str, torch.Tensor]:
        """Tensors by name that an earlier version pickled."""
        data = self.read(name)
        found = _restricted(name, data) if data else {}
        if not isinstance(found, dict) or not all(
            isinstance(key, str) and _is_plain(tensor) for key, tensor in found.items()
        ):
            raise ValueRefused(f"{name} holds other things than tensors by name")
        return dict(found)

    def _pickled_tensor(self, name: str) -> torch.Tensor:
        tensor = _restricted(name, self.read(name))
        if not _is_plain(tensor):
            raise ValueRefused(f"{name} is no plain tensor")
        return tensor


def _restricted(name: str, data: bytes) -> Any:
    """What a pickle of PyTorch's holds, if it is tensors alone; raises `ValueRefused` for anything else."""
    if not data.startswith(b"PK"):
        raise ValueRefused(f"{name} is a pickle of another kind than torch.save writes")
    try:
        with zipfile.ZipFile(io.BytesIO(data)) as inner:
            _check_expansion(inner.infolist(), len(data), compressed=0)
        return torch.load(io.BytesIO(data), map_location="cpu", weights_only=True)
    except ImportModelError as error:
        raise ImportModelError(f"{name}: {error}") from error
    except Exception as error:  # what the restricted unpickler refuses, and what is damaged
        raise ValueRefused(f"{name} is no pickle of tensors alone{_named_global(str(error))}") from error


def _named_global(message: str) -> str:
    """What the restricted unpickler met, from its message, whose advice is how to run the pickle all the same."""
    found = re.search(r"GLOBAL ([\w.]{1,100})", message)
    return f" (it names {found[1]})" if found else ""


def _check_expansion(members: list[zipfile.ZipInfo], size: int, compressed: int) -> None:
    """Raise `ImportModelError` for a zip of `size` bytes whose members share bytes or expand beyond `compressed`."""
    stored = sum(info.file_size for info in members if info.compress_type == zipfile.ZIP_STORED)
    if stored > size:
        raise ImportModelError(f"the archive's members have {stored} bytes, and the file has {size}")
    others = sum(info.file_size for info in members if info.compress_type != zipfile.ZIP_STORED)
    if others > compressed:
        raise ImportModelError(f"the archive's compressed members expand to {others} bytes, more than {compressed}")


def _is_plain(tensor: Any) -> bool:
    """Whether a value is a tensor of numbers in memory, and not far larger than that memory."""
    if type(tensor) not in (torch.Tensor, torch.nn.Parameter) or tensor.is_nested or tensor.is_quantized:
        return False
    if tensor.layout != torch.strided or tensor.device.type != "cpu":
        return False
    return math.prod(tensor.shape) <= tensor.untyped_storage().nbytes() // tensor.itemsize + _REPEATED


def _tensor(name: str, data: bytearray, meta: Any) -> torch.Tensor:
    """A view of stored bytes; raises `ImportModelError` for one that leaves them."""
    if meta.layout != schema.Layout.Strided:
        raise ValueRefused(f"{name} is no plain tensor")
    dtype = _SERIALIZE_TO_TORCH_DTYPE[meta.dtype]
    sizes, strides = ([_number(name, entry) for entry in entries] for entries in (meta.sizes, meta.strides))
    offset = _number(name, meta.storage_offset)
    itemsize = dtype.itemsize
    count = len(data) // itemsize
    elements, last = 1, offset
    for size, stride in zip(sizes, strides, strict=True):
        elements *= size
        last += max(size - 1, 0) * stride
    if elements == 0:
        return torch.zeros(sizes, dtype=dtype)
    if last >= count or elements > count + _REPEATED:
        raise ImportModelError(f"{name} of {sizes} with steps {strides} from {offset} leaves its {len(data)} bytes")
    return torch.frombuffer(data, dtype=dtype, count=count).as_strided(sizes, strides, offset)


def _number(name: str, entry: Any) -> int:
    if entry.type != "as_int" or entry.value < 0:
        raise ImportModelError(f"{name} has a size or a step that is no number")
    return int(entry.value)
