"""Calls on PyTorch tensors that were seen before: what was checked then holds, and the plan's graph is there.

A tensor is known by its address, shape, element type and GPU.  Everything else that a call depends on (names, sizes,
alignment, overlaps) follows from these, so that a repeated call has only to look them up.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from tilewright.runtime.plan import Plan
from tilewright.runtime.tensors import torch_dtype

_KEPT = 64  # signatures of calls

Signature = tuple[Any, ...]


def signature(values: Sequence[Any], ordinal: int) -> Signature | None:
    """What tensors are known by, four entries each; None when one of them is no contiguous tensor of GPU `ordinal`."""
    torch = sys.modules.get("torch")
    if torch is None:
        return None
    kind = torch.Tensor
    found: list[Any] = []
    for value in values:
        if type(value) is not kind or value.get_device() != ordinal:
            return None
        if not value.is_contiguous() or value.is_neg():
            return None
        found += (value.data_ptr(), value.shape, value.dtype)
    return tuple(found)


@dataclass(frozen=True)
class Repeat:
    """A call that was checked: values of the symbols, addresses of the inputs, and where outputs come from."""

    values: tuple[int, ...]
    inputs: tuple[int, ...]
    outputs: tuple[tuple[str, str, tuple[int, ...], Any], ...]  # name, input that it is ("": none), shape, dtype


class Repeats:
    """The calls of one session that may come again."""

    def __init__(self, plan: Plan, ordinal: int) -> None:
        self._names = [spec.name for spec in plan.inputs]
        self._outputs = [(spec.name, spec.mutates or "", spec.dtype) for spec in plan.outputs]
        self._fresh = [spec.name for spec in plan.outputs if spec.mutates is None]
        self._ordinal = ordinal
        self._known: dict[Signature, Repeat] = {}

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
        return signature(values, self._ordinal)

    def find(self, key: Signature) -> Repeat | None:
        """The call of a key, if it was remembered."""
        return self._known.get(key)

    def remember(self, key: Signature, values: tuple[int, ...], shapes: Sequence[tuple[int, ...]]) -> None:
        """A call that was checked and run: the symbols' values, and the outputs' shapes."""
        if len(self._known) >= _KEPT:
            self._known.pop(next(iter(self._known)))
        outputs = tuple(
            (name, source, shape, torch_dtype(dtype))
            for (name, source, dtype), shape in zip(self._outputs, shapes, strict=True)
        )
        self._known[key] = Repeat(values, key[: 3 * len(self._names) : 3], outputs)

    def results(
        self, repeat: Repeat, inputs: Mapping[str, Any], out: Mapping[str, Any]
    ) -> tuple[dict[str, Any], tuple[int, ...]]:
        """The outputs of a call, fresh where they are not given, and all addresses, as sessions number them."""
        empty = sys.modules["torch"].empty
        like = inputs[self._names[0]].device
        results: dict[str, Any] = {}
        addresses = [*repeat.inputs]
        for name, source, shape, dtype in repeat.outputs:
            if source:
                results[name] = inputs[source]
            elif out:
                results[name] = out[name]
            else:
                results[name] = empty(shape, dtype=dtype, device=like)
            addresses.append(results[name].data_ptr())
        return results, tuple(addresses)
