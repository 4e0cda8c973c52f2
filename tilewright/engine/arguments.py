"""Maps the arguments of a call to an engine's inputs: by name, position, and in dicts, lists and objects.

What was no tensor in the example (a number, a text, None) is no input. It may be left out, or given with the example's
value, in its place or by its name.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from tilewright.errors import InputError, brief

Plain = bool | int | float | str | None


class Arguments:
    """The names of inputs and of fixed arguments, and how many inputs stand before each of the latter."""

    def __init__(self, names: Sequence[str], fixed: Mapping[str, Plain], places: Mapping[str, int]) -> None:
        self._names = tuple(names)
        self._known = frozenset(names)
        self._fixed = dict(fixed)
        self._places = {name: places[name] for name in self._fixed if name in places}

    def named(self, named: Mapping[str, Any]) -> dict[str, Any]:
        """Inputs by name; dicts, lists and objects as the inputs that their parts are.

        Raises `InputError` for a fixed argument of another value.
        """
        found: dict[str, Any] = {}
        for name, value in named.items():
            if name in self._known:
                found[name] = value
            elif name in self._fixed:
                self._check(name, value)
            else:
                parts = dict(leaves(name, value))
                if not any(key in self._known or key in self._fixed for key in parts):
                    found[name] = value
                    continue
                for key, item in parts.items():
                    self._check(key, item)
                self._check_extent(name, value, named)
                found.update((key, item) for key, item in parts.items() if key in self._known)
        return found

    def in_order(self, arguments: Sequence[Any]) -> tuple[dict[str, Any], list[Any]]:
        """Arguments in order as inputs by name, and in a row; dicts, lists and objects as the inputs that follow and
        have the names of their parts.

        Raises `InputError` for a fixed argument of another value.
        """
        rest, inputs, row = list(self._names), {}, []
        pending = list(self._places)
        for number, argument in enumerate(arguments):
            consumed = len(self._names) - len(rest)
            pending = [name for name in pending if self._places[name] >= consumed]
            parts = dict(leaves("", argument))
            arrays = [part for part, item in parts.items() if hasattr(item, "shape")]
            own = self._here(list(parts), pending, consumed)
            too_many = len(arguments) - number > len(rest)
            plain = not arrays or (too_many and all(isinstance(parts[part], np.generic) for part in arrays))
            if plain and own and self._is_fixed(parts, own, too_many):
                self._check_extent(own[0].removesuffix(next(iter(parts))), argument, own)
                pending = [name for name in pending if name not in own]
                continue
            if all(item is None for item in parts.values()):
                continue
            starts = [rest[0].removesuffix(part) for part in arrays if part and rest and rest[0].endswith(part)]
            start = next((start for start in starts if all(start + part in rest for part in arrays)), None)
            if start is None:
                named = {rest[0]: argument} if rest else {}
                row.append(argument)
            else:
                named = {start + part: item for part, item in parts.items() if start + part in rest}
                for part, item in parts.items():
                    self._check(start + part, item)
                self._check_extent(start, argument, named)
                row += named.values()
            inputs.update(named)
            rest = [name for name in rest if name not in named]
        return inputs, row

    def always(self) -> str:
        """What is said of fixed arguments where there are too many inputs."""
        given = ", ".join(f"{name}={brief(value)}" for name, value in self._fixed.items())
        return f"; always as in its example: {given}" if given else ""

    def _here(self, parts: Sequence[str], pending: Sequence[str], consumed: int) -> list[str]:
        """The fixed arguments that stand here and are called as the parts of a container are; none where one is not."""
        here = [name for name in pending if self._places[name] == consumed]
        for first in here if parts else ():
            names = [first.removesuffix(parts[0]) + part for part in parts]
            if first in names and all(name in here for name in names):
                return names
        return []

    def _is_fixed(self, parts: Mapping[str, Any], own: Sequence[str], too_many: bool) -> bool:
        """Whether values are those of fixed arguments; `too_many`: there is no input for each argument that is left.

        A number that is not may be one for an input without dimensions.
        """
        pairs = list(zip(own, parts.values(), strict=True))
        if any(value is not None and not _is_same(value, self._fixed[name]) for name, value in pairs):
            if not too_many:
                return False
            for name, value in pairs:
                self._check(name, value)
        return bool(pairs)

    def _check(self, name: str, value: Any) -> None:
        if name in self._fixed and not _is_same(value, self._fixed[name]):
            raise InputError(
                f"argument {name!r} is always {brief(self._fixed[name])} in this engine, as in its example, "
                f"not {brief(value)}; compile the model with that value"
            )

    def _check_extent(self, name: str, value: Any, given: Collection[str]) -> None:
        """Raise `InputError` where a list or dict has parts that the example had not, or a list is shorter.

        `given` are arguments of their own, whatever their names. A missing tensor is reported as a missing input.
        """
        if isinstance(value, Mapping):
            parts = dict(value)
        elif isinstance(value, (list, tuple)):
            parts = dict(zip(getattr(value, "_fields", range(len(value))), value, strict=True))
            later = re.compile(rf"{re.escape(name)}_(\d+)(_|$)")
            for key in self._fixed.keys() - given:
                found = later.match(key)
                if found and int(found[1]) >= len(value):
                    raise InputError(
                        f"argument {name!r} has {len(value)} items; in the example of this engine it had more"
                    )
        else:
            if name not in self._known and name not in self._fixed and _is_part(value):
                raise InputError(f"the example of this engine had no {name!r}; compile the model with such arguments")
            return
        for key, part in parts.items():
            self._check_extent(f"{name}_{key}", part, given)


def _is_part(value: Any) -> bool:
    """Whether a value is an input or a fixed argument; objects have attributes that are neither."""
    return hasattr(value, "shape") or isinstance(value, (bool, int, float, str))


def _is_same(value: Any, known: Plain) -> bool:
    """Numbers of NumPy are those of Python, and NaN is itself."""
    value = value.item() if isinstance(value, np.generic) else value
    if type(value) not in (bool, int, float, str, type(None)):
        return False
    return bool(value == known or (value != value and known != known))


def leaves(name: str, value: Any) -> Iterator[tuple[str, Any]]:
    """What is in containers and objects, by names as importers give them: ``cache_layers_0_keys``."""
    if isinstance(value, Mapping):
        parts = list(value.items())
    elif isinstance(value, (list, tuple)):
        parts = list(zip(getattr(value, "_fields", range(len(value))), value, strict=True))
    elif hasattr(value, "shape") or not hasattr(value, "__dict__"):
        yield name, value
        return
    else:
        parts = list(vars(value).items())
    for key, part in parts:
        yield from leaves(f"{name}_{key}", part)
