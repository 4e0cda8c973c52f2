"""The engines that a session compiles: at first, and later for other values, sizes and numbers of dimensions."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from tilewright.errors import ImportModelError, SettingsError, brief
from tilewright.importers import onnx_importer

if TYPE_CHECKING:  # the package is not needed for sessions of engines
    from onnx import AttributeProto, GraphProto, ModelProto, TensorProto

    from tilewright.onnx.binding import OrtValue

State = tuple[int, int, int]  # the file's number, bytes and time of change


class Source:
    """A model that stays the same: a copy of a `ModelProto`, bytes, or files that are checked before each use.

    Raises `ImportModelError` for a file that cannot be read, and `MissingDependencyError` without the onnx package.
    """

    def __init__(self, given: ModelProto | Path | bytes) -> None:
        self._given = given if isinstance(given, (Path, bytes)) else _copy(given)
        self._states: dict[Path, State | None] = {}
        self._model_read: ModelProto | None = None  # what was read, while a session is made
        if isinstance(given, Path) and given.suffix == ".onnx":
            self._states = {given: _state(given)}
            files = [given.parent / name for name in _data_files(self.read())]
            self._states |= {path: _state(path) for path in files}

    def get(self) -> ModelProto | Path | bytes:
        """The model as it was given; raises `ImportModelError` when one of its files is another now."""
        for path, state in self._states.items():
            if _state(path) != state:
                raise ImportModelError(
                    f"{path}: the file has changed since the session was made, and what is compiled now would be "
                    "another model: make a new session"
                )
        return self._given

    @property
    def folder(self) -> Path | None:
        """Where tensors outside the model's file are; None for a model that is in no file."""
        return self._given.parent if isinstance(self._given, Path) else None

    def read(self) -> ModelProto:
        """The model without the tensors in other files, which nobody may change: it is read once until `forget`."""
        given = self.get()
        if not isinstance(given, (Path, bytes)):
            return given
        model: ModelProto = self._model_read or onnx_importer().read_model(given)
        self._model_read = model
        return model

    def forget(self) -> None:
        """Keep no more than was given: a large model need not stay in memory."""
        self._model_read = None

    def whole(self) -> ModelProto:
        """The model with the tensors that are in files of its folder."""
        return self._with_files(self.read())

    def with_initializers(self, given: Mapping[str, OrtValue]) -> Source:
        """With these values in place of the model's constants. Raises `SettingsError` for a name that is no constant,
        and for a value of another shape or type."""
        model = _copy(self.read())
        constants = {tensor.name: tensor for tensor in model.graph.initializer}
        for name, value in given.items():
            if name not in constants:
                raise SettingsError(f"the model has no constant {brief(name)}, for which the options have a value")
            _replace(constants[name], value.numpy())
        return Source(self._with_files(model))

    def with_files(self, given: Mapping[str, bytes]) -> Source:
        """With the contents of some files, by the names that the model has for them. Raises `SettingsError` for a file
        that ends before a constant in it does."""
        model = _copy(self.read())
        for tensor in _all_tensors(model):
            entries = {entry.key: entry.value for entry in tensor.external_data}
            if tensor.data_location != tensor.EXTERNAL or entries.get("location") not in given:
                continue
            data, offset = given[entries["location"]], int(entries.get("offset", 0))
            length = int(entries.get("length", len(data) - offset))
            if not 0 <= offset <= offset + length <= len(data):
                raise SettingsError(
                    f"the constant {brief(tensor.name)} is in the bytes {offset} to {offset + length} of "
                    f"{brief(entries['location'])}, and the options have {len(data)} bytes for that file"
                )
            tensor.raw_data = data[offset : offset + length]
            tensor.data_location = tensor.DEFAULT
            del tensor.external_data[:]
        return Source(self._with_files(model))

    def _with_files(self, model: ModelProto) -> ModelProto:
        from onnx import numpy_helper

        from tilewright.importers.onnx_tensors import read_tensor

        if isinstance(self._given, Path) and any(t.data_location == t.EXTERNAL for t in model.graph.initializer):
            model = _copy(model)
            for tensor in model.graph.initializer:
                if tensor.data_location == tensor.EXTERNAL:
                    tensor.CopyFrom(numpy_helper.from_array(read_tensor(tensor, self._given.parent), tensor.name))
        return model


def _replace(tensor: TensorProto, array: np.ndarray) -> None:
    from onnx import numpy_helper

    from tilewright.importers.onnx_tensors import ONNX_DTYPES

    dtype = ONNX_DTYPES.get(tensor.data_type)
    if array.shape != tuple(tensor.dims) or dtype is None or array.dtype != dtype.numpy:
        raise SettingsError(
            f"the options have {array.dtype}{list(array.shape)} for the constant {brief(tensor.name)} of the model, "
            f"which is {dtype}{list(tensor.dims)}"
        )
    tensor.CopyFrom(numpy_helper.from_array(array, tensor.name))


def _copy(model: ModelProto) -> ModelProto:
    result = type(model)()
    result.CopyFrom(model)
    return result


def _state(path: Path) -> State | None:
    """None where there is no such file."""
    try:
        found = os.stat(path)
    except (OSError, ValueError):
        return None
    return found.st_ino, found.st_size, found.st_mtime_ns


def _data_files(model: ModelProto) -> set[str]:
    """The places of tensors outside the model's file."""
    return {
        entry.value
        for tensor in _all_tensors(model)
        if tensor.data_location == tensor.EXTERNAL
        for entry in tensor.external_data
        if entry.key == "location" and isinstance(entry.value, str)
    }


def _all_tensors(model: ModelProto) -> list[TensorProto]:
    nodes = [node for function in model.functions for node in function.node]
    return [*_tensors(model.graph), *(tensor for node in nodes for tensor in _in_attributes(node.attribute))]


def _tensors(graph: GraphProto) -> Iterator[TensorProto]:
    yield from graph.initializer
    for node in graph.node:
        yield from _in_attributes(node.attribute)


def _in_attributes(attributes: Iterable[AttributeProto]) -> Iterator[TensorProto]:
    for attribute in attributes:
        yield from (attribute.t, *attribute.tensors)
        for graph in (attribute.g, *attribute.graphs):
            yield from _tensors(graph)
