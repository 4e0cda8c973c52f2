"""Symbolic sizes against plain integers: values, bounds, substitution and JSON."""

from __future__ import annotations

import json
import random

from tilewright.symbolic import (
    Size,
    Symbol,
    apply,
    evaluate,
    from_json,
    lower_bound,
    simplify,
    substitute,
    symbol,
    to_json,
    upper_bound,
)
from tools.fuzz.target import Base, Failed

FUNCTIONS = {"//": lambda a, b: a // b, "%": lambda a, b: a % b, "max": max, "min": min}


class Case:
    """A random expression, built twice: as a size and as its value for one choice of the symbols."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.symbols: dict[str, Symbol] = {}
        self.values: dict[str, int] = {}
        for name in "abc":
            low = self.random.choice([1, 1, 2, 5])
            high = low + self.random.choice([0, 1, 7, 100, 2**31 - 10])
            self.symbols[name] = Symbol(name, low, high)
            self.values[name] = self.random.choice([low, high, self.random.randint(low, high)])

    def draw(self, depth: int) -> tuple[Size, int]:
        kind = self.random.random()
        if depth == 0 or kind < 0.15:
            if self.random.random() < 0.35:
                number = self.random.choice([0, 1, 2, 3, 8, 64, self.random.randint(-20, 200)])
                return number, number
            name = self.random.choice("abc")
            return symbol(name, self.symbols[name].low, self.symbols[name].high), self.values[name]
        (left, x), (right, y) = self.draw(depth - 1), self.draw(depth - 1)
        if kind < 0.35:
            return simplify(left + right), x + y
        if kind < 0.5:
            return simplify(left - right), x - y
        if kind < 0.65:
            return simplify(left * right), x * y
        function = self.random.choice(list(FUNCTIONS))
        if function in ("//", "%"):
            divisor = self.random.choice([1, 2, 3, 7, 16, 64])
            right, y = self.random.choice([(divisor, divisor), (right, y)])
            if lower_bound(right) <= 0:
                right, y = divisor, divisor
        return apply(function, left, right), FUNCTIONS[function](x, y)


class Target(Base):
    megabytes = 500

    def run(self, seed: int) -> str:
        case = Case(seed)
        size, expected = case.draw(case.random.randint(1, 4))
        found = evaluate(size, case.values)
        if found != expected:
            raise Failed("wrong", f"{size} is {found}, expected {expected} for {case.values}", "value")
        if not lower_bound(size) <= expected <= upper_bound(size):
            raise Failed("wrong", f"{size}: {expected} outside {lower_bound(size)}..{upper_bound(size)}", "bounds")
        again = from_json(json.loads(json.dumps(to_json(size))), case.symbols)
        if evaluate(again, case.values) != expected:
            raise Failed("wrong", f"{size} became {again} through JSON", "json")
        name = case.random.choice("abc")
        replaced = substitute(size, {name: case.values[name]})
        if evaluate(replaced, case.values) != expected:
            raise Failed("wrong", f"{size} with {name} = {case.values[name]} became {replaced}", "substitute")
        return "right"


TARGET = Target()
