"""Element-by-element code in block operations: inline assembly, and scalar functions mapped over blocks."""

from __future__ import annotations

from typing import Any

from tilewright.dtypes import DType
from tilewright.ir.core import Region, SSAValue
from tilewright.ir.ops import effects_of
from tilewright.language.context import LanguageError, active, written
from tilewright.language.function import SourceFunction
from tilewright.language.semantic.convert import broadcast, convert, to_tensor
from tilewright.language.semantic.shape import reshape, static_int, take
from tilewright.language.tensor import emit, emit_many, tensor, type_text
from tilewright.language.types import dtype, unwrap


def _text(value: Any, argument: str) -> str:
    text = unwrap(value)
    if not isinstance(text, str):
        raise LanguageError(
            f"{argument} of inline_asm_elementwise must be a string, got {type_text(text)}", "pass a literal string"
        )
    return text


def inline_asm(asm: Any, constraints: Any, args: Any, dtypes: Any, is_pure: Any, pack: Any) -> Any:
    """Machine text on each group of `pack` elements; one block for a dtype, a tuple of blocks for a tuple."""
    several = isinstance(unwrap(dtypes), (tuple, list))
    listed = list(unwrap(dtypes)) if several else [unwrap(dtypes)]
    elements: list[DType] = []
    for entry in listed:
        if not isinstance(entry, dtype) or entry.is_ptr():
            raise LanguageError(
                f"a result dtype of inline_asm_elementwise is needed here, got {type_text(entry)}",
                "pass a dtype such as tl.int32, or a tuple of dtypes",
            )
        elements.append(entry._number)
    given = unwrap(args)
    values = broadcast(*(to_tensor(value) for value in given)) if given else []
    count = static_int(pack, "pack")
    size = values[0].numel if values else 1
    if count < 1 or (size % count and size > count):
        raise LanguageError(f"pack must divide the {size} elements of the blocks, got {count}", "use a divisor")
    text, form = _text(asm, "the text"), _text(constraints, "the constraints")
    _check_constraints(form, values, elements, count)
    attributes: dict[str, Any] = {
        "asm": text, "constraints": form, "results": tuple(elements), "pack": count, "pure": bool(unwrap(is_pure)),
    }  # fmt: skip
    results = emit_many("inline_asm", values, attributes)
    return tuple(results) if several else results[0]


def _registers(count: int, bits: int) -> int:
    """Registers for `count` elements: those of less than 32 bits share one."""
    return -(-count * bits // 32) if bits < 32 else count


def _check_constraints(form: str, values: list[tensor], elements: list[DType], pack: int) -> None:
    """The constraints must name as many registers as results and arguments take."""
    entries = [entry.strip() for entry in form.split(",") if entry.strip() and not entry.strip().startswith("~")]
    outputs = sum(entry.startswith("=") for entry in entries)
    wanted = sum(_registers(pack, max(8, element.bits)) for element in elements)
    if outputs != wanted:
        raise LanguageError(
            f"the constraints have {outputs} outputs, the results take {wanted} registers",
            "write one '=r' (or '=f', …) for each register; elements under 32 bits share 32-bit registers",
        )
    inputs = len(entries) - outputs
    wanted = sum(_registers(pack, max(8, value.element.bits)) for value in values)
    if inputs != wanted:
        raise LanguageError(
            f"the constraints have {inputs} inputs, the arguments take {wanted} registers",
            "write one 'r' (or 'f', …) for each register; elements under 32 bits share 32-bit registers",
        )


def external(arguments: Any, symbols: Any, called: str) -> Any:
    """A function of a vendor's mathematical library by its symbol: the language's own function of that name."""
    values = [to_tensor(value) for value in unwrap(arguments)]
    kinds = tuple(value.dtype for value in values)
    if kinds not in symbols:
        known = "; ".join(", ".join(map(str, row)) for row in symbols)
        raise LanguageError(f"{called} has no function for ({', '.join(map(str, kinds))})", f"cast to one of: {known}")
    symbol, result = symbols[kinds]
    name = str(symbol).removeprefix("__nv_").removeprefix("__ocml_")
    for candidate in (name, name.removesuffix("f"), name.removesuffix("d"), name.rpartition("_")[0]):
        function = written["libdevice"].get(candidate)
        if function is not None:
            traced = isinstance(function, SourceFunction)
            return convert(active().call(function, values, {}) if traced else function(*values), result)
    raise LanguageError(
        f"the external function '{symbol}' cannot be linked", "tl.extra.libdevice has the mathematical functions"
    )


def map_elements(function: Any, arguments: Any, pack: Any) -> Any:
    """A function of scalars on each element of some blocks; with `pack`, of that many elements of each at once."""
    if not arguments:
        raise LanguageError("map_elementwise needs at least one block", "pass the blocks after the function")
    values = broadcast(*(to_tensor(value) for value in arguments))
    count, shape = static_int(pack, "pack"), values[0].shape
    if count < 1 or values[0].numel % count:
        raise LanguageError(
            f"pack must divide the {values[0].numel} elements of the blocks, got {count}", "use a divisor"
        )
    if count > 1:
        flat = [reshape(value, (value.numel // count, count)) for value in values]
        values = [_column(value, place) for value in flat for place in range(count)]
    region, single = _scalar_region(function, values)
    results = emit_many("map", values, None, [region])
    if count > 1:
        if len(results) % count:
            raise LanguageError(
                f"the mapped function returns {len(results)} values, which pack={count} does not divide",
                "return the results of all packed elements: first, second, … of the first result, then of the next",
            )
        groups = [results[start : start + count] for start in range(0, len(results), count)]
        if any(entry.element != group[0].element for group in groups for entry in group):
            raise LanguageError("the mapped function returns packed results of different dtypes", "cast them to one")
        results = [reshape(_interleaved(group), shape) for group in groups]
        return results[0] if len(results) == 1 else tuple(results)
    return results[0] if single else tuple(results)


def _column(value: tensor, place: int) -> tensor:
    places = emit("splat", [to_tensor(place)], {"shape": (1,)})
    return reshape(take(value, 1, places), value.shape[:1])


def _interleaved(columns: list[tensor]) -> tensor:
    expanded = [emit("expand_dims", [column], {"axis": 1}) for column in columns]
    return emit("cat", expanded, {"axis": 1})


def _scalar_region(function: Any, values: list[tensor]) -> tuple[Region, bool]:
    """The function traced on scalars; True when it returns one value and no tuple."""
    tracer = active()
    region = Region([SSAValue(value.handle.type.with_shape(())) for value in values])
    with tracer.builder.at(region):
        returned = tracer.call(unwrap(function), [tensor(argument) for argument in region.arguments], {})
        listed = list(returned) if isinstance(returned, (tuple, list)) else [returned]
        if returned is None or not listed:
            raise LanguageError("the mapped function returns nothing", "return the new elements")
        results = [to_tensor(entry) for entry in listed]
        for result in results:
            if result.shape:
                raise LanguageError(
                    f"the mapped function must return scalars, got {result.type}",
                    "it gets one element of each block, and returns one of each result",
                )
        tracer.builder.create("yield", [result.handle for result in results])
    effects = [inner.opcode for operation in region.operations for inner in operation.walk() if effects_of(inner)]
    if effects:
        raise LanguageError(
            f"the mapped function does more than compute: {effects[0]}", "load before, and store after, the mapping"
        )
    return region, not isinstance(returned, (tuple, list))
