"""Rule tables: an importer's rule for each operation, section by section."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, TypeVar

Rule = Callable[..., Any]
F = TypeVar("F", bound=Rule)


class RuleTable:
    """The rules of one section; `prefix` is put before every name."""

    def __init__(self, title: str, prefix: str = "") -> None:
        self.title = title
        self.prefix = prefix
        self.rules: dict[str, Rule] = {}

    def rule(self, *names: str) -> Callable[[F], F]:
        """Register the decorated function for operations."""

        def register(function: F) -> F:
            for name in names:
                self.add(name, function)
            return function

        return register

    def add(self, name: str, function: Rule) -> None:
        """Register one rule; a second one for the same name is a mistake."""
        name = self.prefix + name
        if name in self.rules:
            raise ValueError(f"two rules for {name}")
        self.rules[name] = function


def merge(tables: Iterable[RuleTable]) -> dict[str, Rule]:
    """All rules by name; raises `ValueError` when two sections claim one name."""
    merged: dict[str, Rule] = {}
    for table in tables:
        for name, function in table.rules.items():
            if name in merged:
                raise ValueError(f"two sections have a rule for {name}")
            merged[name] = function
    return merged
