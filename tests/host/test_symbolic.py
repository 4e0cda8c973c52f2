"""Symbolic sizes: arithmetic agrees with integers, bounds hold, JSON round-trips."""

import os
import pickle
import subprocess
import sys

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from tilewright import symbolic
from tilewright.symbolic import Symbol, evaluate, lower_bound, maximum, symbol, upper_bound

SYMBOLS = {"batch": Symbol("batch", 1, 16), "sequence": Symbol("sequence", 1, 64)}
LEAVES = [symbol(item.name, item.low, item.high) for item in SYMBOLS.values()]


def _combine(children: st.SearchStrategy) -> st.SearchStrategy:
    positive = st.integers(1, 9)
    return st.one_of(
        st.tuples(children, children).map(lambda pair: symbolic.simplify(symbolic.lift(pair[0]) + pair[1])),
        st.tuples(children, children).map(lambda pair: symbolic.simplify(symbolic.lift(pair[0]) - pair[1])),
        st.tuples(children, st.sampled_from(LEAVES)).map(
            lambda pair: symbolic.simplify(symbolic.lift(pair[0]) * pair[1])
        ),
        st.tuples(children, positive).map(lambda pair: symbolic.floor_divide(*pair)),
        st.tuples(children, positive).map(lambda pair: symbolic.modulo(*pair)),
        st.tuples(children, children).map(lambda pair: symbolic.maximum(*pair)),
        st.tuples(children, children).map(lambda pair: symbolic.minimum(*pair)),
    )


SIZES = st.recursive(st.one_of(st.integers(-20, 20), st.sampled_from(LEAVES)), _combine, max_leaves=8)
BINDINGS = st.fixed_dictionaries({name: st.integers(item.low, item.high) for name, item in SYMBOLS.items()})

OPERATIONS = {
    "add": (lambda a, b: symbolic.lift(a) + b, lambda a, b: a + b),
    "subtract": (lambda a, b: symbolic.lift(a) - b, lambda a, b: a - b),
    "multiply": (lambda a, b: symbolic.lift(a) * b, lambda a, b: a * b),
    "maximum": (symbolic.maximum, max),
    "minimum": (symbolic.minimum, min),
}


@given(SIZES, SIZES, BINDINGS, st.sampled_from(sorted(OPERATIONS)))
def test_operations_agree_with_integers(left, right, bindings, name):
    build, compute = OPERATIONS[name]
    assert evaluate(symbolic.simplify(build(left, right)), bindings) == compute(
        evaluate(left, bindings), evaluate(right, bindings)
    )


@given(SIZES, st.integers(1, 12), BINDINGS)
def test_division_agrees_with_integers(value, divisor, bindings):
    number = evaluate(value, bindings)
    assert evaluate(symbolic.floor_divide(value, divisor), bindings) == number // divisor
    assert evaluate(symbolic.modulo(value, divisor), bindings) == number % divisor
    assert evaluate(symbolic.ceil_divide(value, divisor), bindings) == -(-number // divisor)
    assert evaluate(symbolic.round_up(value, divisor), bindings) == -(-number // divisor) * divisor


@given(SIZES, st.one_of(SIZES, st.integers(-12, -1)), BINDINGS)
def test_division_by_sizes_agrees_with_integers(value, divisor, bindings):
    """Divisors may be negative, which quotients are rounded down by, too."""
    number, by = evaluate(value, bindings), evaluate(divisor, bindings)
    assume(by != 0)
    for divide, expected in ((symbolic.floor_divide, number // by), (symbolic.modulo, number % by)):
        found = divide(value, divisor)
        assert evaluate(found, bindings) == expected
        assert lower_bound(found) <= expected <= upper_bound(found)


@given(SIZES, BINDINGS)
def test_bounds_hold(value, bindings):
    assert lower_bound(value) <= evaluate(value, bindings) <= upper_bound(value)


@given(SIZES, BINDINGS)
def test_json_round_trip(value, bindings):
    again = symbolic.from_json(symbolic.to_json(value), SYMBOLS)
    assert evaluate(again, bindings) == evaluate(value, bindings)


def test_the_memory_of_many_tensors_of_dynamic_sizes_round_trips():
    height, width = symbol("height", 1, 4096), symbol("width", 1, 4096)
    total = 64
    for channels in range(3, 203, 2):  # each rounded up to whole cache lines
        total = symbolic.simplify(total + 64 * ((channels * ((height + 1) // 2) * ((width + 1) // 2) + 63) // 64))
    symbols = {name: Symbol(name, 1, 4096) for name in ("height", "width")}
    assert symbolic.from_json(symbolic.to_json(total), symbols) == total


@given(SIZES, BINDINGS, st.integers(1, 16))
def test_substitution_agrees_with_evaluation(value, bindings, batch):
    fixed = symbolic.substitute(value, {"batch": batch})
    assert evaluate(fixed, bindings) == evaluate(value, {**bindings, "batch": batch})


def test_polynomials_have_one_form():
    batch, sequence = LEAVES
    assert batch * sequence == sequence * batch
    assert (batch + 1) * (batch - 1) == batch * batch - 1
    assert symbolic.floor_divide(batch * sequence * 8, sequence * 4) == 2 * batch
    assert symbolic.modulo(batch * 64, 64) == 0
    assert symbolic.product([batch, 3, sequence]) == 3 * batch * sequence


@pytest.mark.parametrize("data", [None, "x", {"terms": [[1, [["nobody", 1]]]]}, {"terms": [[1, [["batch", 99]]]]}, {}])
def test_malformed_json_is_refused(data):
    with pytest.raises(ValueError):
        symbolic.from_json(data, SYMBOLS)


def test_sizes_are_equal_in_other_processes() -> None:
    size = maximum(symbol("rows") * 2 + 1, symbol("columns"))
    code = (
        "import pickle, sys; from tilewright.symbolic import maximum, symbol; "
        "size = maximum(symbol('rows') * 2 + 1, symbol('columns')); "
        "assert {size: 1}[pickle.loads(bytes.fromhex(sys.argv[1]))]"
    )
    hash(size), hash(size.terms[0][0][0][0])  # both are kept
    for seed in ("1", "2"):
        environment = {**os.environ, "PYTHONHASHSEED": seed}
        subprocess.run([sys.executable, "-c", code, pickle.dumps(size).hex()], env=environment, check=True)


def test_divisions_have_one_form():
    n, m = symbol("n"), symbol("m")
    assert symbolic.floor_divide(n - 1, 2) + 1 == symbolic.floor_divide(n + 1, 2)
    assert symbolic.floor_divide(symbolic.floor_divide(n - 1, 2) + 1, 2) == symbolic.floor_divide(n + 1, 4)
    assert symbolic.floor_divide(6 * n + 7, 3) == 2 * n + 2
    half = symbolic.floor_divide(n, 2)
    assert symbolic.floor_divide(512 + 512 * half, 1 + half) == 512
    assert symbolic.floor_divide(m * n * n - m, n + 1) == m * n - m
    assert symbolic.modulo(8 * n + m + 13, 8) == symbolic.modulo(m + 5, 8)
    padded = n + symbolic.modulo(symbolic.lift(64) - symbolic.modulo(n, 64), 64)  # to a multiple of 64
    assert symbolic.floor_divide(padded, symbolic.floor_divide(padded, 64)) == 64


@given(SIZES, st.sampled_from([1, 2, 3, 6]), st.sampled_from([2, 4, 6]), st.integers(-3, 3), BINDINGS)
def test_remainders_of_remainders_agree_with_integers(value, divisor, multiple, factor, bindings):
    inner = symbolic.lift(symbolic.modulo(value, divisor * multiple)) * factor + 5
    expected = (evaluate(value, bindings) % (divisor * multiple) * factor + 5) % divisor
    assert evaluate(symbolic.modulo(inner, divisor), bindings) == expected


def test_functions_are_bounded_by_what_they_divide():
    """ceil(640 n / 441) is never more than 640 (n // 441 + 1), as audio of 441 samples has 640 at another rate."""
    n = symbol("n")
    left, right = symbolic.floor_divide(440 + 640 * n, 441), 640 * (symbolic.floor_divide(n, 441) + 1)
    assert symbolic.minimum(left, right) == left and maximum(left, right) == right
    assert symbolic.at_most(symbolic.minimum(n, 30) - n, 0) and not symbolic.at_most(right, left)


@given(SIZES, SIZES, BINDINGS)
def test_what_is_proved_to_be_at_most_is(left, right, bindings):
    if symbolic.at_most(left, right):
        assert evaluate(left, bindings) <= evaluate(right, bindings)


def test_values_of_many_sizes_and_of_the_same_ones_again() -> None:
    """More than are kept; and a missing symbol is an error whatever was asked before."""
    n, m = symbol("n", 1, 10_000), symbol("m", 1, 100)
    size = maximum(symbolic.simplify(symbolic.lift(symbolic.floor_divide(symbolic.lift(n) + 7, 8)) * m), 40)
    for _ in range(2):
        for number in range(1, 1000, 7):
            assert evaluate(size, {"n": number, "m": 3, "other": number}) == max((number + 7) // 8 * 3, 40)
    with pytest.raises(KeyError):
        evaluate(size, {"n": 1})
