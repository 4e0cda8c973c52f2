"""Inputs for `run` and `bench`: from .npy files or drawn at random."""

from __future__ import annotations

import itertools
import math
import re
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from string import ascii_lowercase
from typing import Any

import numpy as np

from tilewright.cli.console import wrong_usage
from tilewright.dtypes import ANY_BY_NAME, string
from tilewright.engine.file import check_replaceable
from tilewright.errors import InputError, ShapeError
from tilewright.runtime.plan import Plan, TensorSpec
from tilewright.runtime.safe_files import why_not_readable
from tilewright.runtime.shapes import check_conditions
from tilewright.symbolic import evaluate, free_symbols

_OTHERS = (1, 2, 8, 16, 32, 128)  # sizes that are tried where a model does not take the usual ones
_MOST_TRIED = 4096  # of their combinations


def parse_sizes(texts: list[str], plan: Plan) -> dict[str, int]:
    """``["batch=4"]`` as sizes of the plan's symbols; the rest get a small default in their range."""
    sizes = {name: min(max(symbol.low, 4 if i == 0 else 64), symbol.high) for i, (name, symbol) in
             enumerate(plan.symbols.items())}  # fmt: skip
    for text in texts:
        name, separator, value = text.partition("=")
        if not separator or name not in plan.symbols or not re.fullmatch(r"[0-9]{1,18}", value):
            known = ", ".join(f"{symbol.name} ({symbol.low}..{symbol.high})" for symbol in plan.symbols.values())
            raise wrong_usage(f"{text!r}: expected NAME=NUMBER with a size of this engine: {known or 'none'}")
        symbol = plan.symbols[name]
        if not symbol.low <= int(value) <= symbol.high:
            raise ShapeError(f"{name}={value} is outside this engine's range {symbol.low}..{symbol.high}")
        sizes[name] = int(value)
    return _sizes_allowed(plan, sizes, {text.partition("=")[0] for text in texts})


def _sizes_allowed(plan: Plan, sizes: dict[str, int], named: set[str]) -> dict[str, int]:
    """Sizes of which those that nobody asked for are others where the model does not take them (a batch of 1)."""
    free = [name for name in sizes if name not in named]
    choices = [[sizes[name], *(size for size in _OTHERS if _allows(plan, name, size))] for name in free]
    for chosen in itertools.islice(itertools.product(*choices), _MOST_TRIED):
        found = {**sizes, **dict(zip(free, chosen, strict=True))}
        try:
            check_conditions(plan, found)
        except ShapeError:
            continue
        return found
    return sizes


def _allows(plan: Plan, name: str, size: int) -> bool:
    return plan.symbols[name].low <= size <= plan.symbols[name].high


def numpy_dtype(name: str) -> np.dtype:
    """The NumPy dtype of an engine's dtype name."""
    return ANY_BY_NAME[name].numpy


def random_input(spec: TensorSpec, sizes: dict[str, int], generator: np.random.Generator) -> np.ndarray:
    """Normal floats; letters; ones for masks; small non-negative integers elsewhere (safe as indices)."""
    shape = tuple(evaluate(size, sizes) for size in spec.shape)
    dtype = numpy_dtype(spec.dtype)
    if min(shape, default=0) < 0 or math.prod(shape) > sys.maxsize // 8:
        chosen = ", ".join(f"{name}={size}" for name, size in sizes.items())
        raise ShapeError(f"input {spec.name!r} has the shape {list(shape)} for {chosen}: choose other sizes by --size")
    if spec.dtype == string.name:
        return generator.choice(list(ascii_lowercase), shape).astype(object)
    if dtype.kind == "O":
        raise InputError(
            f"input {spec.name!r} is {spec.dtype}, which cannot be drawn or read from a file: run this engine from "
            "Python, with Engine.load(path).run(inputs)"
        )
    if dtype.kind == "b" or "mask" in spec.name:
        return np.ones(shape, dtype)
    if dtype.kind in "iu":
        return generator.integers(0, 2, shape).astype(dtype)
    return generator.standard_normal(shape).astype(dtype)


def gather_inputs(
    specs: list[TensorSpec], files: list[str], sizes: dict[str, int], seed: int, texts: list[str]
) -> dict[str, np.ndarray]:
    """Inputs by name: NAME=FILE.npy where given, random otherwise.

    `sizes` takes the sizes of the given arrays, unless `texts`, the user's ``["batch=4"]``, says otherwise:
    that is a `ShapeError`.
    """
    fixed = {text.partition("=")[0] for text in texts}
    given: dict[str, np.ndarray] = {}
    names = [spec.name for spec in specs]
    for text in files:  # a name may hold a "="
        name = max((name for name in names if text.startswith(f"{name}=")), key=len, default=None)
        if name is None:
            raise wrong_usage(f"{text!r}: expected NAME=FILE.npy with NAME one of {', '.join(names)}")
        given[name] = _load_array(name, Path(text.removeprefix(f"{name}=")))
    for spec in specs:
        if spec.name in given:
            _bind_sizes(spec, given[spec.name], sizes, fixed)
    generator = np.random.default_rng(seed)
    return {
        spec.name: given[spec.name] if spec.name in given else random_input(spec, sizes, generator) for spec in specs
    }


@contextmanager
def advice_for_drawn(specs: list[TensorSpec], files: list[str]) -> Iterator[None]:
    """Around a run: an error of values or shapes says which numbers were drawn, as a model may take few of them."""
    try:
        yield
    except (InputError, ShapeError) as error:
        names = [spec.name for spec in specs if not any(text.startswith(f"{spec.name}=") for text in files)]
        drawn = [spec.name for spec in specs if spec.name in names and numpy_dtype(spec.dtype).kind in "iu"]
        if not drawn:
            raise
        raise type(error)(
            f"{error}; the values of {', '.join(drawn)} were drawn at random: give those that the model takes by "
            f"--input {drawn[0]}=FILE.npy"
        ) from error


def _load_array(name: str, path: Path) -> np.ndarray:
    reason = why_not_readable(path)
    if reason is not None:
        raise InputError(f"input {name!r}: {path} cannot be read: {reason}")
    try:
        array = np.load(path, allow_pickle=False)
    except (ValueError, EOFError, OSError, MemoryError) as error:
        reason = str(error)
        if "pickle" in reason:
            reason = "it is not a .npy file, or holds Python objects; write an array of numbers or text with numpy.save"
        raise InputError(f"input {name!r}: {path} cannot be read: {reason}") from error
    if not isinstance(array, np.ndarray):
        raise InputError(f"input {name!r}: {path} holds several arrays (.npz); give one .npy file for each input")
    return array.astype(object) if array.dtype.kind == "U" else array


def flattened(results: Mapping[str, Any]) -> dict[str, np.ndarray]:
    """Results as tensors: of a sequence the items, of maps with the same keys one of the values at each key, of an
    optional what it holds."""
    found: dict[str, np.ndarray] = {}
    for name, value in results.items():
        if isinstance(value, np.ndarray) and value.dtype == object and not all(isinstance(x, str) for x in value.flat):
            value = value.tolist()
        if isinstance(value, dict):
            found |= flattened({f"{name}[{key!r}]": item for key, item in value.items()})
        elif isinstance(value, (list, tuple)) and value and all(isinstance(item, dict) for item in value):
            keys = dict.fromkeys(key for item in value for key in item)
            found |= {f"{name}[{key!r}]": np.asarray([item[key] for item in value if key in item]) for key in keys}
        elif isinstance(value, (list, tuple)):
            found |= flattened({f"{name}[{place}]": item for place, item in enumerate(value)})
        elif value is not None:
            array = np.asarray(value)
            found[name] = array.astype(object) if array.dtype.kind == "U" else array
    return found


def save_outputs(outputs: dict[str, np.ndarray], folder: Path) -> None:
    """Write FOLDER/NAME.npy for every output; in names, ``_`` stands for what a file name cannot hold, and numbers tell
    apart those that are equal then."""
    folder.mkdir(parents=True, exist_ok=True)
    written: set[str] = set()
    for name, array in outputs.items():  # names come from the model: they must not lead out of the folder
        plain = re.sub(r"[^\w.-]", "_", name)
        spellings = itertools.chain([plain], (f"{plain}_{number}" for number in itertools.count(2)))
        written.add(spelling := next(entry for entry in spellings if entry not in written))
        path = folder / f"{spelling}.npy"
        check_replaceable(path)
        np.save(path, array.astype(str) if array.dtype == object else array)


def _bind_sizes(spec: TensorSpec, array: np.ndarray, sizes: dict[str, int], fixed: set[str]) -> None:
    """Take the sizes that a given array fixes, so that random inputs fit it."""
    for axis, (size, extent) in enumerate(zip(spec.shape, array.shape, strict=False)):
        name = str(size)
        if {symbol.name for symbol in free_symbols(size)} != {name}:
            continue
        if name in fixed and sizes[name] != extent:
            raise ShapeError(
                f"--size {name}={sizes[name]}, but dimension {axis} of the array given for input {spec.name!r} is "
                f"{extent}; leave --size {name} out, or give an array of that size"
            )
        sizes[name] = extent
