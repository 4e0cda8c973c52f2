"""Calibration data: samples of a model's inputs, from arrays, a folder of files, or one .npz file."""

from __future__ import annotations

import zlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any
from zipfile import BadZipFile

import ml_dtypes
import numpy as np

from tilewright.dtypes import DType
from tilewright.errors import InputError, ShapeError
from tilewright.graph.core import Graph
from tilewright.graph.reference import bind_symbols
from tilewright.runtime.safe_files import why_not_readable

Sample = dict[str, np.ndarray]


def samples_of(data: Any, graph: Graph, extra_names: Sequence[str] = ()) -> list[Sample]:
    """Every sample by input name, checked against the graph's inputs; others may come with them, called
    as in `extra_names`.

    `data` is a path (`read_samples`), one sample, or any number of them: a dict by input name, a tuple in the order of
    the inputs, or an array where there is one input.  Raises `InputError` for none, for missing and unknown names, and
    for numbers that are not finite or beyond a type's range, `ShapeError` for arrays of other shapes; both name the
    sample and the input.
    """
    if isinstance(data, (str, Path)):
        found = read_samples(Path(data), graph)
    else:
        alone = isinstance(data, (Mapping, np.ndarray)) or hasattr(data, "__array__")
        given: Iterable[Any] = [data] if alone else data
        found = {where: _by_name(item, graph, where) for where, item in _numbered(given)}
    if not found:
        raise InputError("the calibration data has no sample; give some inputs as the model will see them")
    for where, sample in found.items():
        _check(sample, graph, where, extra_names)
    return list(found.values())


def read_samples(path: Path, graph: Graph) -> dict[str, Sample]:
    """The samples in a folder, one for each .npz or .npy file in the order of their names, or those of one .npz file.

    Arrays in an .npz file have the names of inputs; with one dimension more than the inputs they are several samples.
    """
    if path.is_dir():
        files = sorted(item for item in path.iterdir() if item.suffix in (".npz", ".npy"))
        if not files:
            raise InputError(f"the folder {path} has no .npz or .npy file to calibrate with")
    else:
        reason = why_not_readable(path)
        if reason is not None or path.suffix not in (".npz", ".npy"):
            raise InputError(f"calibration data {path}: {reason or 'expected a folder, an .npz or an .npy file'}")
        files = [path]
    return {where: sample for file in files for where, sample in _read(file, graph).items()}


def _read(file: Path, graph: Graph) -> dict[str, Sample]:
    try:
        loaded = np.load(file, allow_pickle=False)
        arrays = loaded if isinstance(loaded, np.ndarray) else {name: loaded[name] for name in loaded.files}
    except (ValueError, EOFError, OSError, KeyError, BadZipFile, zlib.error) as error:
        raise InputError(f"calibration data {file} is not what numpy.savez or numpy.save wrote ({error})") from error
    sample = _by_name(arrays, graph, str(file))
    ranks = {value.name: value.rank for value in graph.inputs}
    stacked = {name: array for name, array in sample.items() if array.ndim == ranks.get(name, -1) + 1}
    if not stacked or len(stacked) != len(sample.keys() & ranks.keys()):
        return {str(file): sample}
    stacked = {name: array for name, array in sample.items() if array.ndim}
    counts = {len(array) for array in stacked.values()}
    if len(counts) > 1:
        raise ShapeError(f"calibration data {file}: arrays have {sorted(counts)} samples; give each as many")
    return {f"{file}, sample {n}": {name: item[n] for name, item in stacked.items()} for n in range(counts.pop())}


def _numbered(given: Iterable[Any]) -> Iterator[tuple[str, Any]]:
    try:
        items = iter(given)
    except TypeError:
        raise InputError(f"the calibration data is {given!r:.100}, expected a path or samples") from None
    for number, item in enumerate(items):
        yield f"sample {number}", item


def _by_name(item: Any, graph: Graph, where: str) -> Sample:
    if isinstance(item, Mapping):
        return {str(name): _array(array, where, name) for name, array in item.items()}
    given: Sequence[Any] = item if isinstance(item, (tuple, list)) else [item]
    if len(given) != len(graph.inputs):
        names = ", ".join(value.name for value in graph.inputs)
        raise InputError(f"{where} has {len(given)} arrays; the model has the inputs {names}")
    return {value.name: _array(array, where, value.name) for value, array in zip(graph.inputs, given, strict=True)}


def _array(given: Any, where: str, name: Any) -> np.ndarray:
    """An array, list or number as an array; raises `InputError` with the sample and the name."""
    if getattr(given, "requires_grad", False):  # a tensor of PyTorch
        given = given.detach()
    try:
        return np.asarray(given)
    except Exception as error:  # of the object's own
        raise InputError(f"{where}: {str(name)!r} is no array that NumPy can read ({error})") from error


def _check(sample: Sample, graph: Graph, where: str, extra_names: Sequence[str]) -> None:
    names = [value.name for value in graph.inputs]
    unknown = sorted(set(sample) - {*names, *extra_names})
    if unknown:
        raise InputError(f"{where}: there is no input {unknown[0]!r}; the model has {', '.join(names)}")
    try:
        bind_symbols(graph, sample)
    except ShapeError as error:
        raise ShapeError(f"{where}: {error}") from None
    for value in graph.inputs:
        array = sample[value.name]
        if array.dtype.kind not in "fiub" and value.dtype.numpy != array.dtype:
            raise InputError(f"{where}: input {value.name!r} has elements of {array.dtype}, expected {value.dtype}")
        if value.dtype.is_float and not np.isfinite(array.astype(np.float64)).all():
            raise InputError(f"{where}: input {value.name!r} has numbers that are infinite or not a number")
        if not _fits(array, value.dtype):
            raise InputError(f"{where}: input {value.name!r} has numbers beyond the range of {value.dtype}")


def _fits(array: np.ndarray, dtype: DType) -> bool:
    """Whether all numbers are within a type's range; NaN is in that of no integer."""
    if dtype.is_float:
        with np.errstate(over="ignore"):
            return bool(np.isfinite(array.astype(dtype.numpy).astype(np.float64)).all())
    if not dtype.is_integer or not array.size or array.dtype == dtype.numpy:
        return True
    limits = ml_dtypes.iinfo(dtype.numpy)
    return bool(limits.min <= array.min() and array.max() <= limits.max)
