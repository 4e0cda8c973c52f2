"""Maps the arguments of a call to an engine's inputs: by name, position, and in dicts, lists and objects.

What was no tensor in the example (a number, a text, None) is no input. It may be left out, or given with the example's
value, in its place or by its name.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
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
                inputs = {key: item for key, item in parts.items() if key in self._known}
                for key, item in parts.items() if inputs else ():
                    self._check(key, item)
                found.update(inputs or {name: value})
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
            own = [self._here(part, pending, consumed) for part in parts]
            too_many = len(arguments) - number > len(rest)
            plain = not arrays or (too_many and all(isinstance(parts[part], np.generic) for part in arrays))
            if plain and all(own) and self._is_fixed(parts, own, too_many):
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
                row += named.values()
            inputs.update(named)
            rest = [name for name in rest if name not in named]
        return inputs, row

    def always(self) -> str:
        """What is said of fixed arguments where there are too many inputs."""
        given = ", ".join(f"{name}={brief(value)}" for name, value in self._fixed.items())
        return f"; always as in its example: {given}" if given else ""

    def _here(self, part: str, pending: Sequence[str], consumed: int) -> str | None:
        """The fixed argument that stands here, and is called as a part of a container is; the next one for no part."""
        return next((name for name in pending if self._places[name] == consumed and name.endswith(part)), None)

    def _is_fixed(self, parts: Mapping[str, Any], own: Sequence[str | None], too_many: bool) -> bool:
        """Whether values are those of fixed arguments; `too_many`: there is no input for each argument that is left.

        A number that is not may be one for an input without dimensions.
        """
        pairs = [(name, value) for name, value in zip(own, parts.values(), strict=True) if name is not None]
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
