"""Kernels for ranges of a run-time size: for each range the launch of the candidate that was fastest there.

A candidate has alternatives of a launch for ranges of a size (`library.candidate.KernelCall.condition`).  What is
fastest for one row says little about a thousand.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from tilewright.library.candidate import Candidate, KernelCall, Stage, TiledOperand
from tilewright.library.cost import spans
from tilewright.measure.choosing import Choice, typical_time
from tilewright.symbolic import Size, plain_symbol

Times = Sequence[tuple[Mapping[str, int], Mapping[int, float]]]  # sizes, and microseconds by the candidates' numbers


def representatives(found: Iterable[Candidate]) -> list[int]:
    """A value of each range of the size that launches depend on; none where they depend on none, or on several."""
    size, ends = _ranges(found)
    return [] if size is None else sorted({value for value, _ in spans(size, ends)})


def combined(found: Sequence[Candidate], choice: Choice, times: Times) -> tuple[Candidate, Choice] | None:
    """A further candidate, number `len(found)`: the chosen one with the fastest launch for each range; and its choice.

    `times` are those of `choice` for each example of sizes.  None where the chosen one is as fast, or has no ranges.
    """
    chosen = found[choice.index]
    others = [number for number in choice.microseconds if _may_replace(found[number], chosen)]
    size, ends = _ranges(found[number] for number in others)
    symbol = None if size is None else plain_symbol(size)
    if size is None or symbol is None or choice.index not in others:
        return None
    stages: list[list[KernelCall]] = [[] for _ in found[choice.index].stages]
    numbers, best = {}, []
    for begin, end in zip([0, *ends], [*ends, symbol.high], strict=True):
        inside = [each for sizes, each in times if begin < sizes[symbol.name] <= end]
        number = (
            min(others, key=lambda number: typical_time([each[number] for each in inside])) if inside else choice.index
        )
        best += [each[number] for each in inside]
        numbers[f"{symbol.name} to {end}"] = number
        for calls, stage in zip(stages, found[number].stages, strict=True):
            call = stage.call_for({symbol.name: end})
            calls.append(replace(call, condition=None if end == symbol.high else (size, end)))
    microseconds = typical_time(best)
    if microseconds >= choice.microseconds[choice.index]:
        return None
    used = [found[number] for number in numbers.values()]
    reasons = {
        key: value for key, value in chosen.reasons.items() if all(each.reasons.get(key) == value for each in used)
    }
    reasons |= {text: _described(call) for text, call in zip(numbers, stages[0], strict=True)}
    whole = tuple(Stage(tuple(calls)) for calls in stages)
    candidate = Candidate(chosen.name, whole, chosen.cost, chosen.temporaries, reasons)
    text = f"for each range of {symbol.name} the {choice.reason}"
    every = {**choice.microseconds, len(found): microseconds}
    return candidate, Choice(len(found), choice.source, text, every, choice.failures)


def _ranges(found: Iterable[Candidate]) -> tuple[Size | None, list[int]]:
    """The size that the launches of candidates depend on, a symbol, and the ends of its ranges but the last."""
    conditions = {
        call.condition for candidate in found for stage in candidate.stages for call in stage.calls if call.condition
    }
    sizes = {size for size, _ in conditions}
    if len(sizes) != 1:
        return None, []
    (size,) = sizes
    symbol = plain_symbol(size)
    if symbol is None:
        return None, []
    return size, sorted({end for _, end in conditions if symbol.low <= end < symbol.high})


def _may_replace(candidate: Candidate, chosen: Candidate) -> bool:
    """Whether launches of two candidates are alternatives of each other: both have as many stages, on the same tensors,
    stored the same way, with the same ones between the stages."""
    alike = len(candidate.stages) == len(chosen.stages) and candidate.temporaries == chosen.temporaries
    return alike and _tensors(candidate) == _tensors(chosen)


def _tensors(candidate: Candidate) -> frozenset[Any]:
    calls = [call for stage in candidate.stages for call in stage.calls]
    operands = [operand for call in calls for operand in call.operands.values()]
    values = [operand.value if isinstance(operand, TiledOperand) else operand for operand in operands]
    return frozenset(value for value in values if not isinstance(value, (int, float)))


def _described(call: KernelCall) -> str:
    """A launch in a few words, for people."""
    config = call.constants.get("CONFIG")
    return str(getattr(config, "described", call.kernel.__name__))
