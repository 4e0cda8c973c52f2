"""Plans as JSON, for the engine's manifest. Reading checks everything; nothing of the compiler is imported."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tilewright import dtypes
from tilewright.runtime.plan import (
    Argument,
    BufferReference,
    Condition,
    IndexRange,
    LaunchChoice,
    Plan,
    PlanStep,
    TableReference,
    TensorSpec,
    TiledReference,
)
from tilewright.runtime.tables import RUN_TIME_TABLES
from tilewright.symbolic import SizeReader, Symbol, lower_bound, to_json

_BUFFER_KINDS = ("input", "output", "arena", "weight")
_LARGEST_SIZE = 2**62
_MOST_SYMBOLS = 1000
_LONGEST_SYMBOL = 256  # letters
_LANES = 63  # a plan has at most


def plan_to_json(plan: Plan) -> dict[str, Any]:
    """The plan as JSON values; `plan_from_json` is the inverse."""
    conditions = [[to_json(each.left), to_json(each.right), each.operation] for each in plan.conditions]
    return {
        **({"conditions": conditions} if conditions else {}),
        "symbols": [[symbol.name, symbol.low, symbol.high] for symbol in plan.symbols.values()],
        "inputs": [_spec_to_json(spec) for spec in plan.inputs],
        "outputs": [_spec_to_json(spec) for spec in plan.outputs],
        "arena_bytes": to_json(plan.arena_bytes),
        "scratch_bytes": plan.scratch_bytes,
        "nanoseconds": to_json(plan.nanoseconds),
        "index_ranges": [
            [allowed.input, to_json(allowed.low), to_json(allowed.high), allowed.operation]
            + ([] if allowed.column is None else [allowed.column])
            for allowed in plan.index_ranges
        ],
        "steps": [_step_to_json(step) for step in plan.steps],
    }


def plan_from_json(data: Any, with_steps: bool = True, in_parts: bool = False) -> Plan:
    """The plan that `plan_to_json` wrote; raises `ValueError` on anything malformed.

    Running needs no steps, they are in the native code: `with_steps=False` leaves them out.  Only an engine `in_parts`
    takes and gives what is no tensor of numbers.
    """
    try:
        symbols = _symbols(data["symbols"])
        sizes, known = SizeReader(symbols), dtypes.ANY_BY_NAME if in_parts else dtypes.BY_NAME
        inputs = [_spec_from_json(spec, sizes, known) for spec in data["inputs"]]
        return Plan(
            symbols=symbols,
            inputs=inputs,
            outputs=[_spec_from_json(spec, sizes, known) for spec in data["outputs"]],
            steps=[_step_from_json(n, step, sizes) for n, step in enumerate(data["steps"])] if with_steps else [],
            arena_bytes=sizes.read(data["arena_bytes"]),
            scratch_bytes=_natural(data["scratch_bytes"]),
            nanoseconds=sizes.read(data["nanoseconds"]),
            index_ranges=[_index_range_from_json(entry, sizes, inputs) for entry in data["index_ranges"]],
            conditions=[
                Condition(sizes.read(left), sizes.read(right), _text(operation))
                for left, right, operation in data.get("conditions", [])
            ],
        )
    except (KeyError, TypeError, IndexError, AttributeError, RecursionError) as error:
        raise ValueError(f"the plan is malformed: {type(error).__name__} {error}") from error


def _spec_to_json(spec: TensorSpec) -> dict[str, Any]:
    data = {"name": spec.name, "dtype": spec.dtype, "shape": [to_json(size) for size in spec.shape]}
    return data if spec.mutates is None else {**data, "mutates": spec.mutates}


def _spec_from_json(data: Any, sizes: SizeReader, known: Mapping[str, dtypes.DType]) -> TensorSpec:
    dtype = _text(data["dtype"])
    if dtype not in known:
        raise ValueError(f"unknown element type {dtype!r}")
    shape = tuple(sizes.read(size) for size in data["shape"])
    mutates = data.get("mutates")
    if mutates is not None and dtype not in dtypes.BY_NAME:
        raise ValueError(f"an input of {dtype} is updated in place")
    return TensorSpec(_text(data["name"]), dtype, shape, None if mutates is None else _text(mutates))


def _index_range_from_json(data: Any, sizes: SizeReader, inputs: list[TensorSpec]) -> IndexRange:
    name, low, high, operation, *rest = data
    shapes = {spec.name: spec.shape for spec in inputs}
    if name not in shapes:
        raise ValueError(f"an index range is for {name!r}, which is no input")
    column = _natural(*rest) if rest else None
    last = shapes[name][-1] if shapes[name] else 0
    if column is not None and column >= lower_bound(last):
        raise ValueError(f"an index range is for column {column} of {name!r}, which has none")
    return IndexRange(_text(name), sizes.read(low), sizes.read(high), _text(operation), column)


def _step_to_json(step: PlanStep) -> dict[str, Any]:
    lanes = {"lane": step.lane, "after": list(step.after)} if step.lane or step.after else {}
    return {
        **lanes,
        "name": step.name,
        "operations": list(step.operations),
        "bytes": to_json(step.bytes),
        "flops": to_json(step.flops),
        "choices": [_choice_to_json(choice) for choice in step.choices],
        "evidence": step.evidence,
    }


def _step_from_json(number: int, data: Any, sizes: SizeReader) -> PlanStep:
    evidence = data["evidence"]
    lane, after = _natural(data.get("lane", 0)), tuple(map(_natural, data.get("after", ())))
    if lane > _LANES or any(other >= number for other in after):
        raise ValueError("a step waits for a later one, or has an unknown lane")
    if not isinstance(evidence, dict):
        raise ValueError("a step's evidence is no object")
    return PlanStep(
        _text(data["name"]),
        tuple(_choice_from_json(choice, sizes) for choice in data["choices"]),
        tuple(map(_text, data["operations"])),
        sizes.read(data["bytes"]),
        sizes.read(data["flops"]),
        evidence,
        lane,
        after,
    )


def _choice_to_json(choice: LaunchChoice) -> dict[str, Any]:
    data: dict[str, Any] = {
        "kernel": choice.kernel,
        "grid": [to_json(extent) for extent in choice.grid],
        "arguments": [_argument_to_json(argument) for argument in choice.arguments],
    }
    if choice.planes:
        data["planes"] = True
    if choice.at_most is not None:
        data |= {"size": to_json(choice.size), "at_most": choice.at_most}
    return data


def _choice_from_json(data: Any, sizes: SizeReader) -> LaunchChoice:
    x, y, z = (sizes.read(extent) for extent in data["grid"])
    arguments = tuple(_argument_from_json(argument, sizes) for argument in data["arguments"])
    planes = data.get("planes", False) is True
    if "at_most" not in data:
        return LaunchChoice(_text(data["kernel"]), arguments, (x, y, z), planes=planes)
    size, at_most = sizes.read(data["size"]), _natural(data["at_most"])
    return LaunchChoice(_text(data["kernel"]), arguments, (x, y, z), size, at_most, planes)


def _argument_to_json(argument: Argument) -> dict[str, Any]:
    value = argument.value
    if isinstance(value, TiledReference):
        extents: dict[str, Any] = {name: list(map(to_json, getattr(value, name))) for name in ("shape", "strides")}
        if value.steps:
            extents["steps"] = list(value.steps)
        if value.rounded:
            extents["rounded"] = True
        return {**_argument_to_json(Argument(argument.type, value.place)), **extents}
    if isinstance(value, TableReference):
        table = {"table": value.name, "sizes": list(map(to_json, value.sizes)), "columns": value.columns}
        return {"type": argument.type, **table}
    if isinstance(value, BufferReference):
        return {"type": argument.type, value.kind: value.name, "offset": to_json(value.offset)}
    if isinstance(value, float):
        return {"type": argument.type, "number": value if abs(value) < float("inf") else str(value)}
    return {"type": argument.type, "value": to_json(value)}


def _argument_from_json(data: Any, sizes: SizeReader) -> Argument:
    type_text = _text(data["type"])
    if "number" in data:
        return Argument(type_text, float(data["number"]))
    if "value" in data:
        return Argument(type_text, sizes.read(data["value"]))
    if "table" in data:
        if data["table"] not in RUN_TIME_TABLES:
            raise ValueError(f"there is no table {data['table']!r}")
        numbers = tuple(sizes.read(size) for size in data["sizes"])
        return Argument(type_text, TableReference(data["table"], numbers, bool(data["columns"])))
    (kind,) = [key for key in data if key in _BUFFER_KINDS]
    place = BufferReference(kind, _text(data[kind]), sizes.read(data["offset"]))
    if "shape" not in data:
        return Argument(type_text, place)
    shape, strides = (tuple(sizes.read(size) for size in data[name]) for name in ("shape", "strides"))
    steps = tuple(map(_natural, data.get("steps", ())))
    return Argument(type_text, TiledReference(place, shape, strides, steps, data.get("rounded", False) is True))


def _symbols(data: Any) -> dict[str, Symbol]:
    symbols = {name: _symbol(name, low, high) for name, low, high in data}
    if not len(data) == len(symbols) <= _MOST_SYMBOLS:
        raise ValueError(f"the plan has {len(data)} symbols, of which some are equal, or more than {_MOST_SYMBOLS}")
    return symbols


def _symbol(name: Any, low: Any, high: Any) -> Symbol:
    symbol = Symbol(_text(name), _natural(low), _natural(high))
    if len(symbol.name) > _LONGEST_SYMBOL:
        raise ValueError(f"the name of a symbol has {len(symbol.name)} letters, at most {_LONGEST_SYMBOL} are read")
    if symbol.low > symbol.high:
        raise ValueError(f"the range of {symbol} is empty")
    return symbol


def _text(value: Any) -> str:
    if not isinstance(value, str):
        raise ValueError(f"expected a text, found {repr(value)[:200]}")
    return value


def _natural(value: Any) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value <= _LARGEST_SIZE:
        raise ValueError(f"expected a whole number from 0 to 2**62, found {repr(value)[:200]}")
    return value
