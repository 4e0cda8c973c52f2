"""Atomics composed of others: loads, stores, polling, and updates of 8-bit floats by compare and swap."""

# Their bodies are tile language, which Python's type rules do not describe.
# mypy: disallow-untyped-defs=False, check-untyped-defs=False
# mypy: disable-error-code="assignment,attr-defined,operator,call-arg,arg-type"
from __future__ import annotations

from tilewright.errors import brief
from tilewright.language import core
from tilewright.language.context import written
from tilewright.language.function import language_function
from tilewright.language.standard import max as largest
from tilewright.language.standard import require
from tilewright.language.types import constexpr_function, get_int_dtype, int1, int32, pointer_type, uint8

POLL_NANOSECONDS = 10  # what one load of a poll is taken to last


@constexpr_function
def _word(dtype):
    """The unsigned integer as wide as an element in memory."""
    return get_int_dtype(8 * dtype.itemsize, False)


@constexpr_function
def _check_order(function, sem, choices):
    if sem is not None and sem not in choices:
        raise ValueError(f"sem of {function} must be one of {', '.join(choices)}, got {brief(sem)}")
    return choices[0] if sem is None else sem


@language_function
def atomic_load(pointer, mask=None, sem: core.constexpr = None, scope: core.constexpr = None):
    """Read memory as one step in each lane; `sem` is "acquire" (the default) or "relaxed"."""
    order: core.constexpr = _check_order("atomic_load", sem, ("acquire", "relaxed"))
    element: core.constexpr = pointer.dtype.element_ty
    words = pointer.to(pointer_type(_word(element)))
    bits = core.atomic_or(words, core.full(pointer.shape, 0, _word(element)), mask, order, scope)
    return bits.to(element, bitcast=True) if element.is_floating() else bits.to(element)


@language_function
def atomic_store(pointer, value, mask=None, sem: core.constexpr = None, scope: core.constexpr = None):
    """Write memory as one step in each lane; `sem` is "release" (the default) or "relaxed"."""
    order: core.constexpr = _check_order("atomic_store", sem, ("release", "relaxed"))
    element: core.constexpr = pointer.dtype.element_ty
    cast = core.cast(value, element)
    bits = cast.to(_word(element), bitcast=True) if element.is_floating() else cast.to(_word(element))
    core.atomic_xchg(pointer.to(pointer_type(_word(element))), bits, mask, order, scope)


@language_function
def atomic_poll(
    pointer, expected_value, sem: core.constexpr = None, scope: core.constexpr = None, timeout_ns: core.constexpr = None
):
    """Wait until memory equals a value; gives whether it does, False after a timeout.

    16-, 32- or 64-bit integers.  `sem` is "acquire" (the default) or "relaxed".  `timeout_ns` is the longest time to
    wait in nanoseconds, counted in loads of ten; at least one load is made.  A block waits for all its elements.
    """
    order: core.constexpr = _check_order("atomic_poll", sem, ("acquire", "relaxed"))
    element: core.constexpr = pointer.dtype.element_ty
    require(
        element.is_int() and element.primitive_bitwidth >= 16,
        f"atomic_poll needs 16-, 32- or 64-bit integers, got {element}",
        "keep the flag in a memory of integers, or cast the pointer to integers of the same width",
    )
    wanted = core.cast(expected_value, element) + core.full(pointer.shape, 0, element)
    matched = atomic_load(pointer, None, order, scope) == wanted
    if timeout_ns is None:
        while _any(~matched):
            matched = matched | (atomic_load(pointer, ~matched, order, scope) == wanted)
    else:
        left = timeout_ns // POLL_NANOSECONDS
        while _any(~matched) and left > 0:
            matched = matched | (atomic_load(pointer, ~matched, order, scope) == wanted)
            left = left - 1
    return matched


@language_function
def _any(condition):
    """Whether a condition holds in some element."""
    if len(condition.shape) == 0:
        return condition
    else:
        return largest(condition.to(int32)) > 0


@constexpr_function
def _apply(kind):
    """The function of an update."""
    return {"add": core.add, "max": core.maximum, "min": core.minimum}[kind]


@language_function
def update_float8(pointer, value, mask, KIND: core.constexpr, sem: core.constexpr, scope: core.constexpr):
    """An update of 8-bit floats: computed from what was read, and written where that is still there."""
    element: core.constexpr = pointer.dtype.element_ty
    combine: core.constexpr = _apply(KIND)
    words = pointer.to(pointer_type(uint8))
    pending = core.full(pointer.shape, True, int1) if mask is None else mask
    seen = core.load(words, mask=pending)
    while _any(pending):
        updated = combine(seen.to(element, bitcast=True), value).to(element).to(uint8, bitcast=True)
        found = core.atomic_cas(words, seen, updated, sem, scope, mask=pending)
        pending = pending & (found != seen)
        seen = core.where(pending, found, seen)
    return seen.to(element, bitcast=True)


written["update_float8"] = update_float8
METHODS = {"atomic_load": atomic_load, "atomic_store": atomic_store, "atomic_poll": atomic_poll}
__all__ = ["atomic_load", "atomic_poll", "atomic_store"]
