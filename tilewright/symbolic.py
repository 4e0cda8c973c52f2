"""Symbolic integer sizes: the dimensions of graphs, grids and memory plans.

An expression is an immutable tree over symbols such as ``batch`` and ``sequence``.  `+ - * // %`,
`maximum` and `minimum` build expressions; polynomials are kept in a normal form, so that
``batch * sequence == sequence * batch`` holds.  Plain ints are expressions too (`Size`).
Engines store expressions as JSON (`to_json`, `from_json`) and evaluate them without the compiler.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import reduce
from math import prod
from typing import Any, Union

from tilewright.forks import cached_property

Size = Union[int, "Expression"]


@dataclass(frozen=True)
class Symbol:
    """A named dimension with an inclusive range of the values it may take at run time."""

    name: str
    low: int = 1
    high: int = 2**31 - 1

    def __str__(self) -> str:
        return self.name


@dataclass(frozen=True)
class FunctionCall:
    """An integer function that is not a polynomial: `function` is one of // % max min."""

    function: str
    arguments: tuple[Expression, ...]

    def __str__(self) -> str:
        return self._text

    def __hash__(self) -> int:
        return self._hash

    def __reduce__(self) -> tuple[Any, ...]:  # hashes of texts differ from process to process
        return FunctionCall, (self.function, self.arguments)

    @cached_property
    def _hash(self) -> int:
        return hash((self.function, self.arguments))

    @cached_property
    def _text(self) -> str:
        if self.function in ("max", "min"):
            return f"{self.function}({', '.join(map(str, self.arguments))})"
        left, right = self.arguments
        return f"({left}) {self.function} ({right})"


Atom = Union[Symbol, FunctionCall]
Monomial = tuple[tuple[Atom, int], ...]  # atoms with their powers, sorted by text


@dataclass(frozen=True)
class Expression:
    """A polynomial in atoms with integer coefficients; build it from `symbol` and arithmetic."""

    terms: tuple[tuple[Monomial, int], ...]  # sorted by text, no zero coefficients

    def __add__(self, other: Size) -> Size:
        return _polynomial([*self.terms, *_terms(other)])

    def __sub__(self, other: Size) -> Size:
        return self + (-1) * lift(other)

    def __rsub__(self, other: Size) -> Size:
        return lift(other) - self

    def __mul__(self, other: Size) -> Size:
        return _polynomial([(_times(a, b), x * y) for a, x in self.terms for b, y in _terms(other)])

    __radd__ = __add__
    __rmul__ = __mul__

    def __floordiv__(self, other: Size) -> Size:
        return floor_divide(self, other)

    def __rfloordiv__(self, other: Size) -> Size:
        return floor_divide(other, self)

    def __mod__(self, other: Size) -> Size:
        return modulo(self, other)

    def __str__(self) -> str:
        return self._text

    def __hash__(self) -> int:
        return self._hash

    def __reduce__(self) -> tuple[Any, ...]:  # hashes of texts differ from process to process
        return Expression, (self.terms,)

    @cached_property
    def _hash(self) -> int:  # kept, as the text is: nested expressions are hashed and sorted at every level
        return hash(self.terms)

    @cached_property
    def _free(self) -> frozenset[Symbol]:
        found: set[Symbol] = set()
        for monomial, _ in self.terms:
            for atom, _power in monomial:
                parts = [{atom}] if isinstance(atom, Symbol) else map(free_symbols, atom.arguments)
                found.update(*parts)
        return frozenset(found)

    @cached_property
    def _plain(self) -> Symbol | None:
        if len(self.terms) == 1:
            monomial, factor = self.terms[0]
            if factor == 1 and len(monomial) == 1 and monomial[0][1] == 1 and isinstance(monomial[0][0], Symbol):
                return monomial[0][0]
        return None

    @cached_property
    def _names(self) -> tuple[str, ...]:
        return tuple(sorted({symbol.name for symbol in self._free}))

    @cached_property
    def _known_values(self) -> dict[tuple[int, ...], int]:  # values by those of the symbols in `_names`
        return {}

    @cached_property
    def _range(self) -> tuple[int, int]:
        low = high = 0
        for monomial, factor in self.terms:
            term_low = term_high = factor
            for atom, power in monomial:
                atom_low, atom_high = _atom_bounds(atom)
                for _ in range(power):
                    corners = [a * b for a in (term_low, term_high) for b in (atom_low, atom_high)]
                    term_low, term_high = min(corners), max(corners)
            low, high = low + term_low, high + term_high
        return low, high

    @cached_property
    def _text(self) -> str:
        return " + ".join(_term_text(monomial, factor) for monomial, factor in self.terms) or "0"

    def __repr__(self) -> str:
        return str(self)


def symbol(name: str, low: int = 1, high: int = 2**31 - 1) -> Expression:
    """The expression of one symbol."""
    return Expression((((((Symbol(name, low, high)), 1),), 1),))


def lift(value: Size) -> Expression:
    """An int as an `Expression`; expressions are returned as they are."""
    if isinstance(value, Expression):
        return value
    return Expression((((), int(value)),) if value else ())


def simplify(value: Size) -> Size:
    """A constant expression as an int; others as they are."""
    if isinstance(value, Expression):
        if not value.terms:
            return 0
        if len(value.terms) == 1 and value.terms[0][0] == ():
            return value.terms[0][1]
    return value


def _terms(value: Size) -> tuple[tuple[Monomial, int], ...]:
    return lift(value).terms


def _atom_key(atom: Atom) -> str:
    return str(atom)


def _times(left: Monomial, right: Monomial) -> Monomial:
    powers: dict[Atom, int] = dict(left)
    for atom, power in right:
        powers[atom] = powers.get(atom, 0) + power
    return tuple(sorted(powers.items(), key=lambda item: _atom_key(item[0])))


def _monomial_text(monomial: Monomial) -> str:
    return "*".join(
        "*".join([f"({atom})" if isinstance(atom, FunctionCall) else str(atom)] * power) for atom, power in monomial
    )


def _term_text(monomial: Monomial, factor: int) -> str:
    if not monomial:
        return str(factor)
    return _monomial_text(monomial) if factor == 1 else f"{factor}*{_monomial_text(monomial)}"


def _polynomial(terms: list[tuple[Monomial, int]]) -> Size:
    sums: dict[Monomial, int] = {}
    for monomial, factor in terms:
        sums[monomial] = sums.get(monomial, 0) + factor
    nonzero = [(monomial, factor) for monomial, factor in sums.items() if factor]
    return simplify(Expression(tuple(sorted(nonzero, key=lambda term: _monomial_text(term[0])))))


def _call(function: str, *arguments: Size) -> Expression:
    return Expression((((((FunctionCall(function, tuple(map(lift, arguments)))), 1),), 1),))


def floor_divide(left: Size, right: Size) -> Size:
    """`left // right`; exact where the divisor divides.

    By a number, whole parts are taken out and divisions of divisions are one, so that ``1 + (n - 1) // 2`` and
    ``(n + 1) // 2`` are the same expression.
    """
    left, right = simplify(left), simplify(right)
    if isinstance(left, int) and isinstance(right, int):
        return left // right
    if right == 1 or left == 0:
        return left
    if left == right:
        return 1
    if upper_bound(right) < 0:  # no divisor is below zero, where it is known
        return floor_divide(lift(left) * -1, lift(right) * -1)
    if isinstance(right, int):
        return _divide_by_number(left, right) if right else _call("//", left, right)
    quotient = _exact_quotient(left, right)
    return _call("//", left, right) if quotient is None else quotient


def _divide_by_number(left: Size, right: int) -> Size:
    """Division by a positive number in normal form: whole multiples outside, one division inside."""
    whole: list[tuple[Monomial, int]] = []
    rest: list[tuple[Monomial, int]] = []
    for monomial, factor in _terms(left):
        outside, inside = divmod(factor, right)
        if not monomial:
            whole.append((monomial, outside))
            rest.append((monomial, inside))
        else:
            (rest if inside else whole).append((monomial, factor if inside else outside))
    remainder = _polynomial(rest)
    if isinstance(remainder, int):
        return _polynomial(whole)
    constant = sum(factor for monomial, factor in rest if not monomial)
    inner = [(monomial, factor) for monomial, factor in remainder.terms if monomial]
    nested = _division(inner[0]) if len(inner) == 1 else None
    if nested is not None:  # (a // c + k) // d is (a + k c) // (c d)
        dividend, divisor = nested
        divided = floor_divide(lift(dividend) + constant * divisor, divisor * right)
    else:
        divided = _call("//", remainder, right)
    return simplify(lift(_polynomial(whole)) + divided)


def _division(term: tuple[Monomial, int]) -> tuple[Size, int] | None:
    """What a term divides, and by which positive number, if it is nothing but such a division."""
    monomial, factor = term
    if factor != 1 or len(monomial) != 1 or monomial[0][1] != 1:
        return None
    atom = monomial[0][0]
    if not isinstance(atom, FunctionCall) or atom.function != "//":
        return None
    divisor = simplify(atom.arguments[1])
    return (simplify(atom.arguments[0]), divisor) if isinstance(divisor, int) and divisor > 0 else None


MOST_QUOTIENT_TERMS = 16


def _exact_quotient(left: Size, right: Size) -> Size | None:
    """The polynomial that gives `left` when it is multiplied by `right`, or None: long division."""
    atoms = sorted({atom for monomial, _ in (*_terms(left), *_terms(right)) for atom, _ in monomial}, key=_atom_key)

    def order(term: tuple[Monomial, int]) -> tuple[int, tuple[int, ...]]:
        powers = dict(term[0])
        exponents = tuple(powers.get(atom, 0) for atom in atoms)
        return sum(exponents), exponents

    if len(_terms(left)) > MOST_QUOTIENT_TERMS * MOST_QUOTIENT_TERMS:
        return None
    divisor, scale = max(_terms(right), key=order)
    quotient: list[tuple[Monomial, int]] = []
    rest: Size = left
    while rest != 0:
        monomial, factor = max(_terms(rest), key=order)
        powers = dict(monomial)
        for atom, power in divisor:
            powers[atom] = powers.get(atom, 0) - power
        if factor % scale or min(powers.values(), default=0) < 0 or len(quotient) == MOST_QUOTIENT_TERMS:
            return None
        nonzero = [(atom, power) for atom, power in powers.items() if power]
        term = tuple(sorted(nonzero, key=lambda item: _atom_key(item[0]))), factor // scale
        quotient.append(term)
        rest = simplify(lift(rest) - lift(right) * _polynomial([term]))
    return _polynomial(quotient)


def modulo(left: Size, right: Size) -> Size:
    """`left % right`; zero where the division is known to be exact.  Multiples of a number are left out."""
    left, right = simplify(left), simplify(right)
    if isinstance(left, int) and isinstance(right, int):
        return left % right
    if upper_bound(right) < 0:
        return simplify(lift(modulo(lift(left) * -1, lift(right) * -1)) * -1)
    if isinstance(right, int) and right > 0:
        left = _polynomial([(monomial, factor if monomial else factor % right) for monomial, factor in _terms(left)
                            if factor % right])  # fmt: skip
        inner = _without_modulo(left, right)
        if inner is not None:
            return modulo(inner, right)
        if isinstance(left, int):
            return left % right
        if all(factor < 0 for monomial, factor in left.terms if monomial):  # n + -n % c is -c * (-n // c): one term
            return simplify(left - lift(floor_divide(left, right)) * right)
        return _call("%", left, right)
    if isinstance(floor_divide(left, right), int) or _exact_quotient(left, right) is not None:
        return simplify(left - lift(floor_divide(left, right)) * right)
    return _call("%", left, right)


def _without_modulo(left: Size, right: int) -> Size | None:
    """`left` without remainders by multiples of `right`, which do not change ``left % right``; None if it has none."""
    total: Size = 0
    found = False
    for monomial, factor in _terms(left):
        (atom, power), *others = monomial or ((None, 0),)
        inner: Size | None = None
        if isinstance(atom, FunctionCall) and atom.function == "%" and power == 1 and not others:
            dividend, divisor = map(simplify, atom.arguments)
            inner = dividend if isinstance(divisor, int) and divisor % right == 0 else None
        found = found or inner is not None
        total = lift(total) + (_polynomial([(monomial, factor)]) if inner is None else lift(inner) * factor)
    return simplify(total) if found else None


def ceil_divide(left: Size, right: Size) -> Size:
    """`ceil(left / right)` for positive `right`."""
    return floor_divide(lift(left) + right - 1, right)


def round_up(value: Size, multiple: int) -> Size:
    """The least multiple of `multiple` that is not below `value`."""
    return simplify(lift(ceil_divide(value, multiple)) * multiple)


PROOF_DEPTH = 4
MOST_PROOF_TERMS = 16


def at_most(left: Size, right: Size) -> bool:
    """Whether ``left <= right`` is certain for every value of the symbols."""
    return upper_bound(left) <= lower_bound(right) or _never_positive(simplify(lift(left) - right), PROOF_DEPTH)


def _never_positive(size: Size, depth: int) -> bool:
    """Whether a size is certainly 0 or less: by its bounds, or after its functions are replaced by what bounds them.

    ``a // c`` lies between ``(a - c + 1) / c`` and ``a / c``; a whole number is 0 or less if it is below 1.
    """
    if upper_bound(size) <= 0:
        return True
    terms = _terms(size)
    if depth == 0 or len(terms) > MOST_PROOF_TERMS:
        return False
    for monomial, factor in terms:
        if len(monomial) != 1 or monomial[0][1] != 1 or not isinstance(monomial[0][0], FunctionCall):
            continue
        atom = monomial[0][0]
        rest = lift(size) - Expression(((monomial, factor),))
        first, second = atom.arguments
        if atom.function in ("max", "min"):
            every = all if (atom.function == "max") == (factor > 0) else any
            return every(_never_positive(simplify(rest + factor * part), depth - 1) for part in (first, second))
        number = simplify(second)
        if not isinstance(number, int) or number < 1:
            continue
        if atom.function == "%":
            return _never_positive(simplify(rest + max(0, factor * (number - 1))), depth - 1)
        slack = 0 if factor > 0 else number - 1
        return _never_positive(simplify(rest * number + factor * (first - slack) - (number - 1)), depth - 1)
    return False


def _covers(function: str, outer: Size, inner: Size) -> bool:
    """Whether `outer` is that function of `inner` and something: ``min(min(a, b), b)`` is ``min(a, b)``."""
    terms = _terms(outer)
    if len(terms) != 1 or terms[0][1] != 1 or len(terms[0][0]) != 1:
        return False
    atom, power = terms[0][0][0]
    return isinstance(atom, FunctionCall) and power == 1 and atom.function == function and lift(inner) in atom.arguments


def plain_symbol(size: Size) -> Symbol | None:
    """The symbol that a size consists of; None for another size."""
    return size._plain if isinstance(size, Expression) else None


def maximum(left: Size, right: Size) -> Size:
    left, right = simplify(left), simplify(right)
    if isinstance(left, int) and isinstance(right, int):
        return max(left, right)
    if at_most(right, left) or _covers("max", left, right):
        return left
    return right if at_most(left, right) or _covers("max", right, left) else _call("max", left, right)


def minimum(left: Size, right: Size) -> Size:
    left, right = simplify(left), simplify(right)
    if isinstance(left, int) and isinstance(right, int):
        return min(left, right)
    if at_most(left, right) or _covers("min", left, right):
        return left
    return right if at_most(right, left) or _covers("min", right, left) else _call("min", left, right)


def product(values: list[Size] | tuple[Size, ...]) -> Size:
    """The product of sizes; 1 for none."""
    if all(type(value) is int for value in values):
        return prod(values)  # as nearly all are
    return simplify(reduce(lambda left, right: lift(left) * right, values, lift(1)))


_CACHED_VALUES = 64  # values of an expression that are kept
_EVALUATE: dict[str, Callable[[int, int], int]] = {
    "//": lambda a, b: a // b,
    "%": lambda a, b: a % b,
    "max": max,
    "min": min,
}


def evaluate(value: Size, symbols: Mapping[str, int]) -> int:
    """The value for given symbols; raises `KeyError` for a missing symbol."""
    if isinstance(value, int):
        return value
    key = tuple([symbols[name] for name in value._names])
    found = value._known_values.get(key)
    if found is None:
        found = _evaluated(value, symbols)
        if len(value._known_values) >= _CACHED_VALUES:
            value._known_values.clear()
        value._known_values[key] = found
    return found


def _evaluated(value: Expression, symbols: Mapping[str, int]) -> int:
    total = 0
    for monomial, factor in value.terms:
        for atom, power in monomial:
            if isinstance(atom, Symbol):
                part = symbols[atom.name]
            else:
                part = _EVALUATE[atom.function](*(evaluate(argument, symbols) for argument in atom.arguments))
            factor *= part**power
        total += factor
    return total


def _bounds(value: Size) -> tuple[int, int]:
    """Interval arithmetic over the symbols' ranges."""
    return (value, value) if isinstance(value, int) else value._range


def _atom_bounds(atom: Atom) -> tuple[int, int]:
    if isinstance(atom, Symbol):
        return atom.low, atom.high
    (low, high), (other_low, other_high) = (_bounds(argument) for argument in atom.arguments)
    if atom.function == "max":
        return max(low, other_low), max(high, other_high)
    if atom.function == "min":
        return min(low, other_low), min(high, other_high)
    if atom.function == "%":
        return min(0, other_low + 1), max(0, other_high - 1)
    # The least and the greatest divisors of each sign; one of 0 is never divided by.
    divisors = [number for number in (other_low, -1, 1, other_high) if number and other_low <= number <= other_high]
    corners = [a // b for a in (low, high) for b in divisors or (1,)]
    return min(corners), max(corners)


def lower_bound(value: Size) -> int:
    """A value that the expression never goes below."""
    return _bounds(value)[0]


def upper_bound(value: Size) -> int:
    """A value that the expression never exceeds."""
    return _bounds(value)[1]


def fits_32_bits(size: Size) -> bool:
    """Whether a size can never reach 2^31, so that places are signed numbers of 32 bits."""
    return upper_bound(size) < 2**31


def free_symbols(value: Size) -> set[Symbol]:
    """All symbols in an expression."""
    return set() if isinstance(value, int) else set(value._free)


def substitute(value: Size, replacements: Mapping[str, Size]) -> Size:
    """The expression with symbols replaced by sizes."""
    if isinstance(value, int):
        return value
    total: Size = 0
    for monomial, factor in value.terms:
        term: Size = factor
        for atom, power in monomial:
            if isinstance(atom, Symbol):
                part: Size = replacements.get(atom.name, Expression(((((atom, 1),), 1),)))
            else:
                part = apply(atom.function, *(substitute(argument, replacements) for argument in atom.arguments))
            for _ in range(power):
                term = simplify(lift(term) * part)
        total = simplify(lift(total) + term)
    return total


def apply(function: str, left: Size, right: Size) -> Size:
    """The non-polynomial function named `//`, `%`, `max` or `min`."""
    return {"//": floor_divide, "%": modulo, "max": maximum, "min": minimum}[function](left, right)


def to_json(value: Size) -> Any:
    """An int, or ``{"terms": [[factor, [[atom, power], …]], …]}`` where an atom is a symbol's name
    or ``[function, expression, expression]``."""
    if isinstance(value, int):
        return value
    terms = []
    for monomial, factor in value.terms:
        atoms: list[Any] = []
        for atom, power in monomial:
            text = atom.name if isinstance(atom, Symbol) else [atom.function, *map(to_json, atom.arguments)]
            atoms.append([text, power])
        terms.append([factor, atoms])
    return {"terms": terms}


def from_json(data: Any, symbols: Mapping[str, Symbol]) -> Size:
    """The inverse of `to_json`; raises `ValueError` on malformed data, unknown symbols, and what is beyond the bounds
    of `SizeReader`."""
    return SizeReader(symbols).read(data)


class SizeReader:
    """Reads the sizes of one file, of which nobody knows where it comes from: what they cost is bounded.

    A size is nested at most `MOST_DEPTH` deep, has at most `MOST_PARTS` symbols, powers, numbers and functions, also
    while it is computed, and numbers below `LARGEST`.  All sizes of the file together take at most `MOST_WORK` parts.
    """

    MOST_DEPTH = 24
    MOST_PARTS = 6000  # the memory of a model of dynamic sizes is a sum over its tensors
    LARGEST = 2**64
    MOST_WORK = 2_000_000

    def __init__(self, symbols: Mapping[str, Symbol]) -> None:
        self.symbols = symbols
        self._work = 0

    def read(self, data: Any) -> Size:
        """A size from its JSON value; raises `ValueError`."""
        if type(data) is int:
            return self._number(data)
        try:
            return self._read(data, self.MOST_DEPTH)
        except (KeyError, TypeError, IndexError, ZeroDivisionError, RecursionError) as error:
            raise ValueError(f"not a size expression: {str(data)[:200]}") from error

    def _read(self, data: Any, depth: int) -> Size:
        if type(data) is int:
            return self._number(data)
        if depth == 0:
            raise ValueError(f"a size that is nested deeper than {self.MOST_DEPTH}")
        total: Size = 0
        for factor, atoms in data["terms"]:
            term: Size = self._number(factor)
            for text, power in atoms:
                part = self._atom(text, depth)
                if type(power) is not int or not 0 < power <= 8:
                    raise ValueError(f"power {str(power)[:40]} out of range")
                for _ in range(power):
                    self._check(_parts(term) * len(_terms(part)) + _parts(part) * len(_terms(term)))
                    term = simplify(lift(term) * part)
            self._check(_parts(total) + _parts(term))
            total = simplify(lift(total) + term)
        return total

    def _atom(self, data: Any, depth: int) -> Size:
        """A symbol by its name, or a function of sizes."""
        if isinstance(data, str):
            return Expression(((((self.symbols[data], 1),), 1),))
        function, left, right = data
        operands = self._read(left, depth - 1), self._read(right, depth - 1)
        # Functions that simplify may look at each part of one operand for each of the other's.
        left_parts, right_parts = map(_parts, operands)
        self._check(1 + left_parts + right_parts)
        self._work += left_parts * right_parts
        return apply(function, *operands)

    def _number(self, value: Any) -> int:
        if type(value) is not int or abs(value) > self.LARGEST:
            raise ValueError(f"not a whole number of a size: {str(value)[:80]}")
        self._work += 1
        return value

    def _check(self, parts: int) -> None:
        self._work += parts
        if parts > self.MOST_PARTS or self._work > self.MOST_WORK:
            raise ValueError(f"a size of more than {self.MOST_PARTS} parts, or sizes that take too long to read")


def _parts(value: Size) -> int:
    """Numbers, symbols and functions in an expression, powers counted out."""
    if isinstance(value, int):
        return 1
    count = 0
    for monomial, _ in value.terms:
        count += 1
        for atom, power in monomial:
            count += power if isinstance(atom, Symbol) else power * (1 + sum(map(_parts, atom.arguments)))
    return count
