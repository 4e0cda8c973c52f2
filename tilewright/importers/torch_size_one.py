"""Dimensions of size 1 that the model's code asks about: compared with the graph of greater sizes, or refused.

    if x.shape[1] == 1:     # torch.export answers no for every size of a range
        ...

The program of greater sizes then runs for size 1 too.  The model is exported once more with this dimension fixed to 1.
If both graphs give the same results there, on the example and on random inputs (of a small model with several other
sizes, too), it serves size 1; otherwise size 1 is a path of its own, or every call checks that it is not 1.  Code that
asks about several dimensions is also compared where several are 1.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import sympy
import torch
from torch.export import ExportedProgram

from tilewright.graph import reference
from tilewright.graph.core import Graph
from tilewright.importers.torch_data_conditions import Assumption
from tilewright.importers.torch_results import constants_of
from tilewright.importers.torch_symbols import linear_in
from tilewright.symbolic import evaluate, free_symbols

_MOST_EXPORTS = 8
_LENGTH = 64  # a size for which code such as ``x[:, :50]`` differs from the example's
_MOST_NUMBERS = 1 << 28  # of the constants of a graph that runs in float64
_FEW_NUMBERS = 1 << 24  # of one that runs with other sizes than the example's: each run takes seconds else
_TOLERANCES = {np.float64: 1e-6, np.float32: 1e-3}  # of a tensor's largest element

_OTHER_SIZES: tuple[Callable[[int], int], ...] = (
    lambda now: now,
    lambda now: 2 * now + 1,
    lambda now: max(now, _LENGTH),
    lambda now: 1,
)  # of the dimensions that are not 1, by those of the example

Ones = frozenset[str]  # names of the dimensions that are 1
Export = Callable[[Ones, "Mapping[str, tuple[int, ...]]"], "Imported"]  # for inputs of these shapes


@dataclass(frozen=True)
class Imported:
    """A program, its graph, the conditions on sizes that the export took for granted, and the names of inputs that
    have others in the program."""

    program: ExportedProgram
    graph: Graph
    assumed: Sequence[Assumption]
    names: Mapping[str, str]

    @property
    def dimensions(self) -> dict[Any, str]:
        """The names of the graph's symbols, by those of the program."""
        values = {value.name: value for value in self.graph.inputs}
        found = {}
        for node in self.program.graph.find_nodes(op="placeholder"):
            value = values.get(self.names.get(node.name, node.name))
            for extent, size in zip(getattr(node.meta.get("val"), "shape", ()), value.shape if value else ()):  # noqa: B905
                linear = linear_in(extent.node.expr) if isinstance(extent, torch.SymInt) else None
                symbols = free_symbols(size)
                if linear is not None and len(symbols) == 1:
                    found[linear[0]] = next(iter(symbols)).name
        return found

    def questions(self) -> list[tuple[Ones, str]]:
        """The dimensions that code asks about whether they are 1, each with the line, as far as they may be 1."""
        names, symbols = self.dimensions, self.graph.symbols
        return [
            (frozenset([names[symbol]]), assumption.place)
            for assumption in self.assumed
            if assumption.only_one
            for symbol in sorted(assumption.condition.free_symbols, key=str)
            if symbol in names and symbols[names[symbol]].low <= 1
        ]


def refused_at_one(general: Imported, examples: Mapping[str, torch.Tensor], export: Export) -> list[Assumption]:
    """Conditions for every call: that dimensions are not 1, alone or together, for which the model's code takes a path
    with other results, or which cannot be compared.

    `examples` are the example's inputs and the buffers that are inputs, by name; `export` gives the model with
    dimensions fixed to 1.
    """
    symbols = {name: symbol for symbol, name in general.dimensions.items()}
    waiting = dict(general.questions())
    seen: set[Ones] = set()
    refused: dict[Ones, Assumption] = {}
    while waiting:
        ones, place = min(waiting.items(), key=lambda item: len(item[0]))
        del waiting[ones]
        seen.add(ones)
        if any(others <= ones for others in refused):
            continue
        more = _further_questions(general, ones, examples, export) if len(seen) <= _MOST_EXPORTS else None
        if more is None:
            condition = sympy.Ne(sympy.Add(*(symbols[name] for name in sorted(ones))), len(ones))
            refused[ones] = Assumption(condition, place, only_one=True)
            continue
        waiting.update({ones | others: line for others, line in more if ones | others not in seen})
    return list(refused.values())


def _further_questions(
    general: Imported, ones: Ones, examples: Mapping[str, torch.Tensor], export: Export
) -> list[tuple[Ones, str]] | None:
    """What else code asks where these dimensions are 1; None where the results are others, or unknown."""
    try:
        sizes = _sizes(general.graph, examples) | dict.fromkeys(ones, 1)
        special = export(ones, _shapes(general.graph, sizes))
        known = {str(assumption.condition) for assumption in general.assumed}
        if any(not each.only_one and str(each.condition) not in known for each in special.assumed):
            return None
        return special.questions() if _agree(general.graph, special.graph, sizes, ones, examples) else None
    except Exception:  # the model itself may refuse the size
        return None


def _sizes(graph: Graph, examples: Mapping[str, torch.Tensor]) -> dict[str, int]:
    return reference.bind_symbols(graph, {name: _array(tensor) for name, tensor in examples.items()})


def _shapes(graph: Graph, sizes: Mapping[str, int]) -> dict[str, tuple[int, ...]]:
    return {value.name: tuple(evaluate(extent, sizes) for extent in value.shape) for value in graph.inputs}


def _agree(
    general: Graph, special: Graph, sizes: Mapping[str, int], ones: Ones, examples: Mapping[str, torch.Tensor]
) -> bool:
    """Whether two graphs give the same results at size 1, for the example and for random inputs."""
    arrays = {name: _array(tensor) for name, tensor in examples.items()}
    others = {name: symbol for name, symbol in general.symbols.items() if name in sizes and name not in ones}
    generator = np.random.default_rng(0)
    numbers = sum(math.prod(data.shape) for data in general.constants.values())
    working = np.float64 if numbers <= _MOST_NUMBERS else np.float32

    def results(graph: Graph, given: Mapping[str, np.ndarray]) -> dict[str, Any] | None:
        try:
            return {**reference.run(graph, given, working), **constants_of(graph)}
        except Exception:  # random numbers that the model does not take
            return None

    def agree(given: Mapping[str, np.ndarray]) -> bool | None:
        with np.errstate(all="ignore"):
            found, wanted = results(general, given), results(special, given)
        if found is None or wanted is None:
            return None
        return found.keys() == wanted.keys() and all(_close(found[k], wanted[k], _TOLERANCES[working]) for k in found)

    def compare(given: Mapping[str, np.ndarray]) -> bool | None:
        """With integers up to 1 where a graph takes no others: lengths and places are bounded by sizes."""
        same = agree(given)
        if same is not None:
            return same
        return agree({name: np.minimum(each, 1) if each.dtype.kind in "iu" else each for name, each in given.items()})

    shapes = _shapes(general, sizes)
    example = {name: array[tuple(slice(0, size) for size in shapes[name])] for name, array in arrays.items()}
    compared = [compare(example)]
    for size_of in _OTHER_SIZES if numbers <= _FEW_NUMBERS else _OTHER_SIZES[:1]:
        chosen = {name: min(max(size_of(sizes[name]), each.low), each.high) for name, each in others.items()}
        shapes = _shapes(general, {**sizes, **chosen})
        for wide in (False, True):
            compared.append(compare({k: _drawn(array, shapes[k], generator, wide) for k, array in arrays.items()}))
    return compared[0] is True and compared.count(True) > 2 and False not in compared


def _array(tensor: torch.Tensor) -> np.ndarray:
    """A tensor as the graph takes it: complex numbers as pairs."""
    tensor = torch.view_as_real(tensor.resolve_conj()) if tensor.is_complex() else tensor
    array: np.ndarray = (tensor.double() if tensor.is_floating_point() else tensor).numpy(force=True)
    return array


def _drawn(example: np.ndarray, shape: Sequence[int], generator: np.random.Generator, wide: bool) -> np.ndarray:
    """Random numbers in place of an example: integers between its own, `wide` floats of many magnitudes."""
    if example.dtype.kind == "f":
        return generator.standard_normal(shape) * (10.0 ** generator.uniform(-2, 3, shape) if wide else 1.0)
    if example.dtype.kind == "b":
        return generator.integers(0, 2, shape).astype(bool)
    low, high = (int(example.min()), int(example.max())) if example.size else (0, 0)
    return generator.integers(low, high, shape, endpoint=True).astype(example.dtype)


def _close(found: Any, wanted: Any, tolerance: float) -> bool:
    found, wanted = np.asarray(found), np.asarray(wanted)
    if found.shape != wanted.shape or found.dtype != wanted.dtype:
        return False
    if found.dtype.kind != "f":
        return bool(np.array_equal(found, wanted))
    finite = np.abs(wanted[np.isfinite(wanted)])
    largest = float(finite.max()) if finite.size else 0.0
    return bool(np.allclose(found, wanted, rtol=0, atol=tolerance * largest, equal_nan=True))
