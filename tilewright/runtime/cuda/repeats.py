"""Calls on PyTorch tensors that were seen before: what was checked then holds, and the plan's graph is there.

A tensor is known by its address, shape, element type and GPU.  Everything else that a call depends on (names, sizes,
alignment, overlaps) follows from these, so that a repeated call has only to look them up.
"""

from __future__ import annotations

import operator
import sys
import weakref
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from tilewright.runtime.plan import Plan
from tilewright.runtime.tensors import torch_dtype

_KEPT = 64  # signatures of calls

Signature = tuple[Any, ...]


def signature(values: Sequence[Any], ordinal: int) -> Signature | None:
    """What tensors are known by: all addresses, then all shapes, then all element types; None when one of them is no
    contiguous tensor of GPU `ordinal`."""
    torch = sys.modules.get("torch")
    if torch is None:
        return None
    kind = torch.Tensor
    if any(type(value) is not kind for value in values) or any(map(kind.is_neg, values)):
        return None
    if not all(map(kind.is_contiguous, values)) or any(number != ordinal for number in map(kind.get_device, values)):
        return None
    shapes, kinds = [value.shape for value in values], [value.dtype for value in values]
    return (*map(kind.data_ptr, values), *shapes, *kinds)


@dataclass(frozen=True)
class _Last:
    """The tensors of the last call, and what they were known by: as long as they are the same objects at the same
    addresses, which nothing has changed in place, so is the rest."""

    tensors: tuple[weakref.ref[Any], ...]
    versions: list[int]
    addresses: list[int]
    key: Signature

    @classmethod
    def of(cls, values: Sequence[Any], key: Signature) -> _Last | None:
        """None for tensors of PyTorch's inference mode, which do not count their changes."""
        if any(value.is_inference() for value in values):
            return None
        references = tuple(weakref.ref(value) for value in values)
        return cls(references, [value._version for value in values], list(key[: len(values)]), key)

    def holds(self, values: Sequence[Any]) -> bool:
        """Whether these are the tensors, unchanged."""
        if len(values) != len(self.tensors) or not all(map(operator.is_, values, map(operator.call, self.tensors))):
            return False
        return [v._version for v in values] == self.versions and [v.data_ptr() for v in values] == self.addresses


@dataclass(frozen=True)
class Repeat:
    """A call that was checked: values of the symbols, addresses of inputs and outputs, and what outputs are.

    `fresh` are outputs that are allocated unless they are given: number among the addresses, name, shape, type.
    """

    values: tuple[int, ...]
    addresses: tuple[int, ...]  # 0 for fresh outputs
    sources: tuple[tuple[str, str], ...]  # by output, the input that it is, or ""
    fresh: tuple[tuple[int, str, tuple[int, ...], Any], ...]


class Repeats:
    """The calls of one session that may come again."""

    def __init__(self, plan: Plan, ordinal: int) -> None:
        self._names = [spec.name for spec in plan.inputs]
        self._outputs = [(spec.name, spec.mutates or "", spec.dtype) for spec in plan.outputs]
        self._fresh = [spec.name for spec in plan.outputs if spec.mutates is None]
        self._ordinal = ordinal
        self._known: dict[Signature, Repeat] = {}
        self._last: _Last | None = None

    def key(self, inputs: Mapping[str, Any], out: Mapping[str, Any]) -> Signature | None:
        """What a call is known by; None for calls that are not of this kind."""
        if len(inputs) != len(self._names) or (out and len(out) != len(self._fresh)):
            return None
        try:
            values = [inputs[name] for name in self._names]
            if out:
                values += [out[name] for name in self._fresh]
        except KeyError:
            return None
        if self._last is not None and self._last.holds(values):
            return self._last.key
        self._last = None
        key = signature(values, self._ordinal)
        if key is not None:
            self._last = _Last.of(values, key)
        return key

    def find(self, key: Signature) -> Repeat | None:
        """The call of a key, if it was remembered."""
        return self._known.get(key)

    def remember(self, key: Signature, values: tuple[int, ...], shapes: Sequence[tuple[int, ...]]) -> None:
        """A call that was checked and run: the symbols' values, and the outputs' shapes."""
        if len(self._known) >= _KEPT:
            self._known.pop(next(iter(self._known)))
        inputs = dict(zip(self._names, key, strict=False))
        addresses = [*inputs.values(), *(inputs[source] if source else 0 for _, source, _ in self._outputs)]
        fresh = tuple(
            (len(inputs) + number, name, shape, torch_dtype(dtype))
            for number, ((name, source, dtype), shape) in enumerate(zip(self._outputs, shapes, strict=True))
            if not source
        )
        sources = tuple((name, source) for name, source, _ in self._outputs)
        self._known[key] = Repeat(values, tuple(addresses), sources, fresh)

    def results(
        self, repeat: Repeat, inputs: Mapping[str, Any], out: Mapping[str, Any]
    ) -> tuple[dict[str, Any], tuple[int, ...]]:
        """The outputs of a call, fresh where they are not given, and all addresses, as sessions number them."""
        results = {name: inputs[source] if source else None for name, source in repeat.sources}
        addresses = list(repeat.addresses)
        for number, name, shape, dtype in repeat.fresh:
            if out:
                result = out[name]
            else:
                result = sys.modules["torch"].empty(shape, dtype=dtype, device=inputs[self._names[0]].device)
            results[name] = result
            addresses[number] = result.data_ptr()
        return results, tuple(addresses)
