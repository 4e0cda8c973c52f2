"""Conditions on sizes that PyTorch would refuse a range for: every size is tried, and what still differs is checked at
the call.

``torch.chunk(x, 2)`` of 2*n rows, say, makes ``(3*n - 1)//n`` parts: 2 for every n, which PyTorch takes for a condition
that n is the example's.  It also asks of sizes that it computes whether they are 0 or 1, to tell layouts and what is
stretched: where nothing else changes the answer, it is that of greater sizes, as for the sizes of inputs.
"""

from __future__ import annotations

import functools
import math
import operator
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any
from unittest import mock

import numpy as np
import sympy
from torch import _meta_registrations
from torch._guards import TracingContext
from torch.fx.experimental.symbolic_shapes import ShapeEnv
from torch.utils._sympy.functions import IntTrueDiv, ToFloat

from tilewright.importers.torch_data_conditions import Assumption, asking_line, line_of
from tilewright.importers.torch_source_lines import is_written_by_user

_MOST_PROVED_SIZES = 1 << 20  # combinations that are tried, for a proof
_FEW_SIZES = 1 << 10  # before that, to see that there is none
_MOST_FOR_A_NUMBER = 1 << 14
_LARGEST_TRIED = 1 << 20  # size of a range that has no end
_FLOATS = (ToFloat, IntTrueDiv)  # which make a float of a size
_QUESTIONS = ("__bool__", "__int__", "__index__", "__float__")  # by which Python code asks
_BETWEEN = ("torch/__init__.py", "experimental/symbolic_shapes.py", "experimental/sym_node.py",
            "experimental/recording.py", "unittest/mock.py", "contextlib.py", "functools.py",
            "importers/torch_python_values.py")  # fmt: skip
_OF_DYNAMO = ("evaluate_expr", "guard_scalar")  # functions by which Dynamo asks for a condition of the code
_JUMPS_OF_DYNAMO = "torch/_dynamo/symbolic_convert.py"  # which asks for that of an ``if`` itself
_OF_GUARDS = "produce_guards_verbose"
# Functions that ask for the room of a tensor without elements, and how its dimensions lie in memory.
_OF_MEMORY = frozenset(
    {"_get_output_tensor_from_cache_entry", "argsort_sym", "suggest_memory_format", "is_contiguous_for_memory_format",
     "is_contiguous", "is_contiguous_or_false", "is_channels_last_contiguous_2d", "is_channels_last_contiguous_3d",
     "are_strides_like_channels_last", "are_strides_like_channels_last_or_false", "is_non_overlapping_and_dense",
     "compute_elementwise_output_logical_to_physical_perm", "compute_elementwise_output_strides",
     "check_contiguous_sizes_strides", "is_expanded"}
)  # fmt: skip
_ASSERTING = frozenset({"_assert", "_"})  # of the code that PyTorch writes for a program's own conditions
_NEAR = 6  # frames
_OF_MODULES = ("torch/nn/", "torch/functional.py")  # PyTorch's code that branches as a user's does


@contextmanager
def deciding(asserted: bool = False, ones: bool = True) -> Iterator[list[Assumption]]:
    """For the time of an export: what is the same for all sizes in their ranges is no condition.

    Where the answer differs it is the example's; yields a list that takes up these conditions, with who asked.
    `asserted`: only what the program asserts, as for one that is decomposed and asks nothing else of sizes.
    `ones`: numbers that operators ask for, such as that of the parts of a dimension, and that a size of 1 changes are
    conditions on sizes of 1.
    """
    known: dict[Any, Any] = {}  # what was found, by shape environment, expression and whether the user's code asks
    found: list[Assumption] = []
    evaluate = ShapeEnv.evaluate_expr

    envs: dict[ShapeEnv, None] = {}

    def decided(self: ShapeEnv, expression: Any, *rest: Any, **named: Any) -> Any:
        envs[self] = None
        by_user = _is_called_by_user()
        left_out = _is_called_by(_OF_MEMORY) or (asserted and not _is_called_by(_ASSERTING))
        key = (id(self), expression, by_user, left_out)
        if key not in known:
            answers = _Answers.of(self, expression, found)
            known[key] = None if answers is None else _decide(answers, by_user, [] if left_out else found, ones)
        return evaluate(self, expression, *rest, **named) if known[key] is None else known[key]

    with (
        mock.patch.object(ShapeEnv, "evaluate_expr", decided),
        mock.patch.object(_meta_registrations, "div_rtn", operator.floordiv),  # PyTorch 2.11 asks for the remainder
    ):
        yield found
    _in_final_symbols(found, envs)


@contextmanager
def questions() -> Iterator[list[Assumption]]:
    """For the time of an export: the list of what the module's own code asks of sizes that PyTorch answers without a
    condition, though sizes in their ranges differ in the answer: whether one is 1, or two are equal.
    """
    found: list[Assumption] = []
    known: set[Any] = set()  # by shape environment and expression
    evaluate = ShapeEnv.evaluate_expr

    envs: dict[ShapeEnv, None] = {}

    def recorded(self: ShapeEnv, expression: Any, *rest: Any, **named: Any) -> Any:
        envs[self] = None
        key = (id(self), expression)
        if getattr(expression, "free_symbols", ()) and key not in known and _is_called_by_user():
            known.add(key)
            answers = _Answers.of(self, expression)
            if answers is not None and not answers.equal:
                _take_up(found, answers, answers.differ_at_one)
        return evaluate(self, expression, *rest, **named)

    with mock.patch.object(ShapeEnv, "evaluate_expr", recorded):
        yield found
    _in_final_symbols(found, envs)


def _in_final_symbols(found: list[Assumption], envs: Iterable[ShapeEnv]) -> None:
    """Word conditions in the symbols that an export ends with: dimensions of one name have one, and are equal."""
    worded: dict[Any, Assumption] = {}
    for each in found:
        condition = each.condition
        for env in envs:
            condition = env.replace(condition)
        if condition != sympy.true:
            worded.setdefault(condition, replace(each, condition=condition))
    found[:] = worded.values()


class RangeBroken(BaseException):
    """An export was stopped; no `Exception`, which the model's code may catch."""


@contextmanager
def stopping(deferred: bool = False) -> Iterator[None]:
    """For the time of an export: raises `RangeBroken` as soon as PyTorch takes for granted what some sizes in their
    ranges do not fulfil, which it would refuse after the last line of a long model.

    `deferred`: PyTorch asserts conditions, on any sizes; without, it refuses guards on one size.
    """
    evaluate = ShapeEnv.evaluate_expr

    def stopped(self: ShapeEnv, expression: Any, *rest: Any, **named: Any) -> Any:
        symbols = getattr(expression, "free_symbols", ())
        if not symbols or not symbols <= self.backed_var_to_val.keys() or (len(symbols) > 1 and not deferred):
            return evaluate(self, expression, *rest, **named)
        before = len(self.guards) + self.num_deferred_runtime_asserts
        ranges = {symbol: _bounds(self, symbol) for symbol in symbols}  # which a guard narrows
        answer = evaluate(self, expression, *rest, **named)
        if len(self.guards) + self.num_deferred_runtime_asserts > before and _differs(expression, answer, ranges):
            raise RangeBroken
        return answer

    with mock.patch.object(ShapeEnv, "evaluate_expr", stopped):
        yield


def _differs(expression: Any, answer: Any, ranges: Mapping[Any, tuple[int, int]]) -> bool:
    """Whether an expression has another value for some sizes from 2 on; not known for ranges without an end."""
    if any(high == sys.maxsize for _, high in ranges.values()):
        return False
    most = int(_FEW_SIZES ** (1 / len(ranges)))
    try:
        grid = _mesh({symbol: _sizes(max(low, 2), high, most)[0] for symbol, (low, high) in ranges.items()})
        return bool((evaluated(expression, grid) != (bool if answer.is_Boolean else float)(answer)).any())
    except (TypeError, ValueError, OverflowError, AttributeError):
        return False


@contextmanager
def watching() -> Iterator[list[Any]]:
    """For the time of an export that asserts conditions: the list of those on floats, such as ``n * 0.5 > 4.2``, that
    do not hold for all sizes. PyTorch takes them, and the ``1`` of ``int(n * 0.5)``, for granted without an assertion.
    """
    found: list[Any] = []
    evaluate = ShapeEnv.evaluate_expr

    def watched(self: ShapeEnv, expression: Any, *rest: Any, **named: Any) -> Any:
        if isinstance(expression, sympy.Basic) and of_floats(expression):
            answers = _Answers.of(self, expression) if self._maybe_evaluate_static(expression) is None else None
            if answers is not None and not (answers.equal and answers.whole):
                found.append(expression)
        return evaluate(self, expression, *rest, **named)

    with mock.patch.object(ShapeEnv, "evaluate_expr", watched):
        yield found


def of_floats(expression: sympy.Basic) -> bool:
    """Whether an expression makes a float of a size."""
    return bool(expression.has(*_FLOATS) or expression.atoms(sympy.Float))


@dataclass(frozen=True)
class _Answers:
    """What an expression is for the sizes in a range. `whole`: for each of them; otherwise for some."""

    expression: Any
    example: Any
    values: np.ndarray
    grid: Mapping[Any, np.ndarray]  # the sizes, by symbol
    whole: bool

    @staticmethod
    def of(env: ShapeEnv, expression: Any, assumed: Sequence[Assumption] = ()) -> _Answers | None:
        """For the sizes that are assumed already. None for an expression of other things than sizes of inputs, or of
        operations that are not known."""
        symbols = sorted(getattr(expression, "free_symbols", ()), key=str)
        known = env.backed_var_to_val
        if not symbols or any(symbol not in known for symbol in symbols):
            return None
        hints = {symbol: np.array([int(known[symbol])]) for symbol in symbols}
        try:
            (example,) = np.broadcast_to(evaluated(expression, hints), 1).tolist()
            ranges = [_bounds(env, symbol) for symbol in symbols]
            for most in (_FEW_SIZES, _MOST_PROVED_SIZES):
                choices = [_sizes(*bounds, int(most ** (1 / len(symbols)))) for bounds in ranges]
                sizes = {symbol: choice for symbol, (choice, _) in zip(symbols, choices, strict=True)}
                grid = _among(_mesh(sizes), assumed)
                values = np.broadcast_to(evaluated(expression, grid), next(iter(grid.values())).shape)
                answers = _Answers(expression, example, values, grid, all(whole for _, whole in choices))
                if answers.whole or not answers.equal:
                    break
        except (TypeError, ValueError, OverflowError):
            return None
        return answers

    @property
    def equal(self) -> bool:
        """Whether it is the example's for all sizes that were tried."""
        return bool((self.values == self.example).all())

    @property
    def differ_at_one(self) -> bool:
        """Whether it is the example's for all sizes that were tried but those that have a 1 among them."""
        ones = np.any([sizes == 1 for sizes in self.grid.values()], axis=0)
        return bool((self.values == self.example)[~ones].all())

    @property
    def regular_answer(self) -> Any:
        """The answer of an operator that asks: what holds for all sizes that make nothing 0 or 1, and that two sizes
        differ which do so for the example. None where it has to be the example's, as for places: they may be negative.
        """
        if not self.equal and self.is_of_places:
            return None
        if isinstance(self.expression, sympy.Ne if self.example else sympy.Eq):
            return self.example
        regular = self.values[_regular(self.expression, self.grid)]
        return regular[0].item() if regular.size and (regular == regular[0]).all() else None

    @property
    def is_of_places(self) -> bool:
        """Whether an operator compares places, as of a slice, rather than a size with a number: with both ends of a
        dimension, with each other, or what is negative for some sizes. Of layouts it asks for sizes less than 2; other
        orders are those of places in a dimension of one size, which may be 1.
        """
        compared = self.expression.atoms(sympy.core.relational.Relational) - self.expression.atoms(sympy.Eq, sympy.Ne)
        if compared and isinstance(self.expression, (sympy.And, sympy.Or)):
            return True
        if any(not isinstance(each, sympy.StrictLessThan) or each.rhs != 2 for each in compared):
            return True
        sides = [[side for side in each.args if side.free_symbols] for each in compared]
        return any(len(each) > 1 or bool((evaluated(side, self.grid) < 0).any()) for each in sides for side in each)


def only_value(expression: Any, ranges: Mapping[Any, tuple[int, int]], assumed: Sequence[Assumption]) -> int | None:
    """The number that a size is for all sizes in their ranges for which conditions on them hold; None where it varies,
    is not known, or sizes are too many."""
    if math.prod(high - low + 1 for low, high in ranges.values()) > _MOST_FOR_A_NUMBER:
        return None
    try:
        every = {symbol: np.arange(low, high + 1) for symbol, (low, high) in ranges.items()}
        grid = _among(_mesh(every), assumed)
        values = evaluated(expression, grid)
    except (TypeError, ValueError, OverflowError):
        return None
    varies = not values.size or not np.issubdtype(values.dtype, np.integer) or (values != values.flat[0]).any()
    return None if varies else int(values.flat[0])


def _mesh(sizes: Mapping[Any, np.ndarray]) -> dict[Any, np.ndarray]:
    """All combinations of sizes."""
    return dict(zip(sizes, map(np.ravel, np.meshgrid(*sizes.values(), indexing="ij")), strict=True))


def _among(grid: dict[Any, np.ndarray], assumed: Sequence[Assumption]) -> dict[Any, np.ndarray]:
    """The sizes for which all conditions on them hold that can be told."""
    for each in assumed:
        if each.condition.free_symbols <= grid.keys():
            holds = np.broadcast_to(evaluated(each.condition, grid), next(iter(grid.values())).shape)
            grid = {symbol: sizes[holds] for symbol, sizes in grid.items()}
    return grid


def _decide(answers: _Answers, by_user: bool, found: list[Assumption], ones: bool) -> Any:
    """The answer that an export is given; `by_user`: to code that branches on it."""
    if (answers.equal and answers.whole) or _is_of_equal_names():
        return _as_sympy(answers.example)
    regular = None if by_user else answers.regular_answer
    if regular is not None:
        if ones and not isinstance(answers.example, bool) and answers.example == regular and answers.differ_at_one:
            _take_up(found, answers, only_one=True)
        return _as_sympy(regular)
    _take_up(found, answers)
    return _as_sympy(answers.example)


def _take_up(found: list[Assumption], answers: _Answers, only_one: bool = False) -> None:
    """Add the condition that the answer is the example's, with the line that asks, once."""
    condition = _condition(answers)
    if condition not in [assumption.condition for assumption in found]:
        traced = _traced_code()
        found.append(Assumption(condition, asking_line() if traced is None else line_of(*traced), only_one))


def _as_sympy(answer: Any) -> Any:
    if isinstance(answer, bool):
        return sympy.true if answer else sympy.false
    return sympy.Integer(answer) if isinstance(answer, int) else sympy.Float(answer)


def _condition(answers: _Answers) -> Any:
    """The relation that holds while an expression is what it is for the example."""
    if isinstance(answers.example, bool):
        return answers.expression if answers.example else sympy.Not(answers.expression)
    return sympy.Eq(answers.expression, answers.example)


def _is_called_by_user() -> bool:
    """Whether code that branches on sizes asks, rather than one of PyTorch's operators."""
    is_question = False
    frame: Any = sys._getframe(1)
    while frame is not None:
        name = frame.f_code.co_filename.replace("\\", "/")
        if name != __file__.replace("\\", "/") and not name.endswith(_BETWEEN):
            by_dynamo = frame.f_code.co_name in _OF_DYNAMO or name.endswith(_JUMPS_OF_DYNAMO)
            traced = _traced_code() if by_dynamo else None
            name, is_question = (name, is_question) if traced is None else (traced[0].replace("\\", "/"), True)
            return is_question and (is_written_by_user(name) or any(part in name for part in _OF_MODULES))
        is_question = is_question or frame.f_code.co_name in _QUESTIONS
        frame = frame.f_back
    return False


def _is_called_by(names: frozenset[str]) -> bool:
    """Whether one of the functions asks, or what it calls near by."""
    frame: Any = sys._getframe(2)
    while frame is not None and frame.f_code.co_filename.replace("\\", "/").endswith(_BETWEEN):
        frame = frame.f_back
    for _ in range(_NEAR):
        if frame is None:
            return False
        if frame.f_code.co_name in names:
            return True
        frame = frame.f_back
    return False


def _is_of_equal_names() -> bool:
    """Whether PyTorch asks, after the module's code, that dimensions of one name are equal in the example."""
    frame: Any = sys._getframe(3)
    while frame is not None and frame.f_code.co_filename.replace("\\", "/").endswith(_BETWEEN):
        if frame.f_code.co_name == _OF_GUARDS:
            return True
        frame = frame.f_back
    return False


def _traced_code() -> tuple[str, int] | None:
    """The file and line that Dynamo is at, where it runs the code in Python's place."""
    stack = TracingContext.extract_stack() if TracingContext.try_get() is not None else []
    return (stack[-1].filename, stack[-1].lineno or 0) if stack else None


def _bounds(env: ShapeEnv, symbol: Any) -> tuple[int, int]:
    """The range of a size; 1 belongs to a range that PyTorch has begin at 2."""
    bounds = env.var_to_range[symbol]
    low = int(bounds.lower) if bounds.lower.is_Integer else 1
    high = int(bounds.upper) if bounds.upper.is_Integer else sys.maxsize
    return 1 if low == 2 else low, high


@functools.lru_cache(maxsize=64)
def _sizes(low: int, high: int, most: int) -> tuple[np.ndarray, bool]:
    """Sizes from `low` to `high`, and whether they are all of them."""
    if high - low < most:
        return np.arange(low, high + 1), True
    spread = np.geomspace(max(low, 1), min(high, max(low, 1) + _LARGEST_TRIED), most // 2).astype(np.int64)
    return np.unique([*range(low, low + most // 2), *spread, min(high, low + _LARGEST_TRIED)]), False


def allowed(condition: Any, symbol: Any, low: int, high: int) -> np.ndarray | None:
    """The sizes of a range for which a condition on one symbol holds; None for one too wide, or of other operations."""
    if high - low >= _MOST_PROVED_SIZES:
        return None
    sizes = np.arange(low, high + 1)
    try:
        return sizes[np.broadcast_to(evaluated(condition, {symbol: sizes}), sizes.shape)]
    except (TypeError, ValueError, OverflowError):
        return None


def _regular(expression: Any, grid: Mapping[Any, np.ndarray]) -> np.ndarray:
    """Where no size in an expression is 0 or 1: neither a term nor a factor of its sides, nor a quotient."""
    first = next(iter(grid.values()))
    found = np.ones(first.shape, bool)
    pending = [expression]
    while pending:
        item = pending.pop()
        if not item.free_symbols or type(item).__name__ in ("Mod", "PythonMod"):
            continue
        if not item.is_Boolean and not item.is_Relational:
            value = evaluated(item, grid)
            found = found & (value != 0) & (value != 1)
        pending.extend(item.args)
    return found


def evaluated(expression: Any, values: Mapping[Any, np.ndarray]) -> np.ndarray:
    """What a sympy expression of sizes is for each of many sizes. Raises `TypeError` for operations that are not known.

    Quotients by 0 are 0: no code that the example takes computes them.
    """
    return _computed(expression, dict(values))


def _computed(expression: Any, known: dict[Any, np.ndarray]) -> np.ndarray:
    """`known` takes up what parts of expressions are: those of sizes that follow from each other repeat them."""
    if expression in known:
        return known[expression]
    if expression in (sympy.true, sympy.false):
        return np.array(expression is sympy.true)
    if expression.is_Integer:
        return np.array(int(expression))
    if expression.is_Rational or expression.is_Float:
        return np.array(float(expression))
    operation = _OPERATIONS.get(type(expression).__name__)
    if operation is None:
        raise TypeError(f"{type(expression).__name__} of sizes")
    known[expression] = operation([_computed(part, known) for part in expression.args])
    return known[expression]


def _fold(function: Callable[..., Any]) -> Callable[[Sequence[np.ndarray]], np.ndarray]:
    def folded(parts: Sequence[np.ndarray]) -> np.ndarray:
        total = parts[0]
        for part in parts[1:]:
            total = function(total, part)
        return total

    return folded


def _divided(function: Callable[..., Any]) -> Callable[[Sequence[np.ndarray]], np.ndarray]:
    return lambda parts: np.where(parts[1] == 0, 0, function(parts[0], np.where(parts[1] == 0, 1, parts[1])))


def _whole(function: Callable[..., Any]) -> Callable[[Sequence[np.ndarray]], np.ndarray]:
    return lambda parts: function(parts[0]).astype(np.int64)


def _power(parts: Sequence[np.ndarray]) -> np.ndarray:
    if (parts[1] < 0).any():
        return parts[0].astype(float) ** parts[1]
    return parts[0] ** parts[1]


_OPERATIONS: dict[str, Callable[[Sequence[np.ndarray]], np.ndarray]] = {
    "Add": _fold(np.add), "Mul": _fold(np.multiply), "Pow": _power, "PowByNatural": _power,
    "FloorDiv": _divided(np.floor_divide), "CleanDiv": _divided(np.floor_divide), "Mod": _divided(np.mod),
    "PythonMod": _divided(np.mod), "IntTrueDiv": _divided(np.true_divide), "FloatTrueDiv": _divided(np.true_divide),
    "ModularIndexing": lambda parts: np.mod(np.floor_divide(parts[0], parts[1]), parts[2]),
    "Max": _fold(np.maximum), "Min": _fold(np.minimum), "Abs": lambda parts: np.abs(parts[0]),
    "ToFloat": lambda parts: parts[0].astype(float), "Identity": lambda parts: parts[0],
    "TruncToInt": _whole(np.trunc), "FloorToInt": _whole(np.floor), "CeilToInt": _whole(np.ceil),
    "OpaqueUnaryFn_sqrt": lambda parts: np.sqrt(parts[0]), "FloatPow": _power,
    "RoundToInt": _whole(np.rint), "TruncToFloat": lambda parts: np.trunc(parts[0]),
    "Equality": _fold(np.equal), "Unequality": _fold(np.not_equal), "LessThan": _fold(np.less_equal),
    "StrictLessThan": _fold(np.less), "GreaterThan": _fold(np.greater_equal), "StrictGreaterThan": _fold(np.greater),
    "And": _fold(np.logical_and), "Or": _fold(np.logical_or), "Not": lambda parts: np.logical_not(parts[0]),
}  # fmt: skip
