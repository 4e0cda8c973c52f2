"""Collects the operations that an import cannot express and raises one error that lists them all."""

from __future__ import annotations

from dataclasses import dataclass

from tilewright.errors import UnsupportedOperationError

NO_RULE = "no import rule for this operation"
NO_RULE_ADVICE = "rewrite the module with supported operations, or add a rule (see docs/internals/importers.md)"


class Unsupported(Exception):
    """Raised inside a rule: this use of the operation cannot be expressed. Never reaches the user."""

    def __init__(self, reason: str, advice: str = NO_RULE_ADVICE) -> None:
        super().__init__(reason)
        self.reason = reason
        self.advice = advice


class Invalid(Exception):
    """Raised inside a rule: the model breaks a rule of its own format here. Never reaches the user as such."""


@dataclass(frozen=True)
class ImportProblem:
    """One operation that was not imported."""

    operation: str  # aten.sort.default, ai.onnx::Sort
    node: str
    inputs: tuple[str, ...]  # f32[batch, 8]
    source: str  # module path and source line
    reason: str
    advice: str

    def text(self) -> str:
        lines = [
            f"{self.operation} (node {self.node!r})",
            f"    inputs: {', '.join(self.inputs) or 'none'}",
            f"    from:   {self.source or 'unknown'}",
            f"    why:    {self.reason}",
            f"    do:     {self.advice}",
        ]
        return "\n".join(lines)


class ImportReport:
    """The problems of one import."""

    def __init__(self, model: str) -> None:
        self.model = model
        self.problems: list[ImportProblem] = []

    def add(self, problem: ImportProblem) -> None:
        self.problems.append(problem)

    def text(self) -> str:
        count = len(self.problems)
        head = f"model {self.model!r}: {count} operation{' is' if count == 1 else 's are'} not supported"
        entries = [f"{index}. {problem.text()}" for index, problem in enumerate(self.problems, start=1)]
        return "\n\n".join([head, *entries])

    def check(self) -> None:
        """Raise `UnsupportedOperationError` when anything was reported."""
        if self.problems:
            reasons = tuple((problem.operation, problem.node, problem.reason) for problem in self.problems)
            raise UnsupportedOperationError(self.text(), reasons)
