"""Calls on PyTorch tensors that were seen before: what was checked then holds, and the plan's graph is there.

A tensor is known by its address, shape, element type and GPU.  Everything else that a call depends on (names, sizes,
alignment, overlaps) follows from these, so that a repeated call has only to look them up.
"""

from __future__ import annotations

import operator
import sys
import weakref
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from tilewright.runtime.cuda.graphs import CapturedGraph
from tilewright.runtime.plan import Plan
from tilewright.runtime.tensors import raise_versions, torch_dtype

_CACHED_SIGNATURES = 64  # signatures of calls

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


@dataclass
class _Last:
    """The tensors of the last call, and what they were known by: as long as they are the same objects at the same
    addresses, which nothing has changed in place, so is the rest.

    Tensors of PyTorch's inference mode do not count their changes: their shapes are looked at instead.
    """

    tensors: tuple[weakref.ref[Any], ...]
    addresses: list[int]
    counted: bool
    facts: list[Any]  # numbers of changes, or shapes
    key: Signature
    repeat: Repeat | None  # once it is remembered

    @classmethod
    def of(cls, values: Sequence[Any], key: Signature, repeat: Repeat | None) -> _Last:
        references = tuple(map(weakref.ref, values))
        counted = not any(value.is_inference() for value in values)
        facts = list(map(_version if counted else _shape, values))
        return cls(references, list(key[: len(values)]), counted, facts, key, repeat)

    def holds(self, values: Sequence[Any]) -> bool:
        """Whether these are the tensors, unchanged."""
        if len(values) != len(self.tensors) or not all(map(operator.is_, values, map(operator.call, self.tensors))):
            return False
        kind = type(values[0])
        try:
            if list(map(kind.data_ptr, values)) != self.addresses:
                return False
        except (AttributeError, TypeError):  # None, given for a tensor that is no more: its reference is None too
            return False
        if self.counted:
            return list(map(_version, values)) == self.facts
        return list(map(_shape, values)) == self.facts and all(map(kind.is_contiguous, values))


@dataclass(frozen=True)
class Repeat:
    """A call that was checked: values of the symbols, addresses of inputs and outputs, and what outputs are.

    `fresh` are outputs that are allocated unless they are given: number among the addresses, name, shape, type.
    `graphs` are the call's graphs by the addresses of fresh outputs; some may be there no more.
    """

    values: tuple[int, ...]
    addresses: tuple[int, ...]  # 0 for fresh outputs
    fresh: tuple[tuple[int, str, tuple[int, ...], Any], ...]
    graphs: dict[tuple[int, ...], CapturedGraph] = field(default_factory=dict)

    def placed(self, fresh: Sequence[int]) -> tuple[int, ...]:
        """All addresses, as sessions number them, with those of the fresh outputs."""
        addresses = list(self.addresses)
        for (number, *_), address in zip(self.fresh, fresh, strict=True):
            addresses[number] = address
        return tuple(addresses)

    def keep(self, fresh: tuple[int, ...], graph: CapturedGraph) -> None:
        """Remember the graph for fresh outputs at these addresses."""
        if len(self.graphs) >= _CACHED_SIGNATURES:
            self.graphs.clear()
        self.graphs[fresh] = graph


class Repeats:
    """The calls of one session that may come again."""

    def __init__(self, plan: Plan, ordinal: int) -> None:
        self._names = [spec.name for spec in plan.inputs]
        self._outputs = [(spec.name, spec.mutates or "", spec.dtype) for spec in plan.outputs]
        self._output_names = [spec.name for spec in plan.outputs]
        self._fresh = [spec.name for spec in plan.outputs if spec.mutates is None]
        self._take_inputs = _taker(self._names)
        self._take_given = _taker(self._fresh)
        # By output the input that it is; any input in the place of fresh ones.
        self._take_sources = _taker([spec.mutates or name for spec in plan.outputs for name in self._names[:1]])
        self._ordinal = ordinal
        self._known: dict[Signature, Repeat] = {}
        self._last: _Last | None = None

    def find(self, inputs: Mapping[str, Any], out: Mapping[str, Any]) -> tuple[Signature | None, Repeat | None]:
        """What a call is known by (None for calls that are not of this kind), and the call if it was remembered."""
        if not self._names or len(inputs) != len(self._names) or (out and len(out) != len(self._fresh)):
            return None, None
        try:
            values = self._take_inputs(inputs)
            if out:
                values += self._take_given(out)
        except KeyError:
            return None, None
        last = self._last
        if last is not None and last.holds(values):
            if last.repeat is None:
                last.repeat = self._known.get(last.key)
            return last.key, last.repeat
        self._last = None
        key = signature(values, self._ordinal)
        if key is None:
            return None, None
        self._last = last = _Last.of(values, key, self._known.get(key))
        return key, last.repeat

    def track_updates(self, tensors: Sequence[Any]) -> None:
        """Raise the versions of tensors of the last call that its run changes: they are still what was checked."""
        raise_versions(tensors)
        last = self._last
        if last is not None and last.counted:
            for number, reference in enumerate(last.tensors):
                if any(reference() is tensor for tensor in tensors):
                    last.facts[number] = _version(reference())

    def remember(self, key: Signature, values: tuple[int, ...], shapes: Sequence[tuple[int, ...]]) -> None:
        """A call that was checked and run: the symbols' values, and the outputs' shapes."""
        if len(self._known) >= _CACHED_SIGNATURES:
            self._known.pop(next(iter(self._known)))
        inputs = dict(zip(self._names, key, strict=False))
        addresses = [*inputs.values(), *(inputs[source] if source else 0 for _, source, _ in self._outputs)]
        fresh = tuple(
            (len(inputs) + number, name, shape, torch_dtype(dtype))
            for number, ((name, source, dtype), shape) in enumerate(zip(self._outputs, shapes, strict=True))
            if not source
        )
        self._known[key] = Repeat(values, tuple(addresses), fresh)

    def results(
        self, repeat: Repeat, inputs: Mapping[str, Any], out: Mapping[str, Any]
    ) -> tuple[dict[str, Any], tuple[int, ...]]:
        """The outputs of a call, fresh where they are not given, and the addresses of these."""
        results = dict(zip(self._output_names, self._take_sources(inputs), strict=True))
        fresh = []
        for _, name, shape, dtype in repeat.fresh:
            if out:
                result = out[name]
            else:
                result = sys.modules["torch"].empty(shape, dtype=dtype, device=results[name].device)
            results[name] = result
            fresh.append(result.data_ptr())
        return results, tuple(fresh)


_version = operator.attrgetter("_version")
_shape = operator.attrgetter("shape")


def _taker(names: Sequence[str]) -> Callable[[Mapping[str, Any]], tuple[Any, ...]]:
    """A function that gives the entries of these names; raises `KeyError` for one that is absent."""
    if len(names) < 2:
        return lambda entries: tuple(entries[name] for name in names)
    return operator.itemgetter(*names)
