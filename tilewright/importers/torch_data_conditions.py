"""Code that depends on numbers in tensors: exported for the example's path, and checked at every call.

    if mask.all():          # taken as for the example; the engine raises InputError where the numbers say otherwise
        ...

Export stops at such code.  With the example's own numbers beside the fake tensors PyTorch goes on, and leaves an
assertion for every question that it asked of them; these get the line that asked, and become conditions of the graph.
Where that does not suffice, every whole number and size that follows from numbers in tensors is the example's.
"""

from __future__ import annotations

import linecache
import os
import re
import sys
import traceback
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from typing import Any
from unittest import mock

import torch
from torch import fx
from torch._functorch import config
from torch._prims_common import compare_tensor_meta
from torch._subclasses import fake_utils, meta_utils
from torch.export import ExportedProgram
from torch.fx.experimental.symbolic_shapes import ShapeEnv, free_unbacked_symbols
from torch.overrides import TorchFunctionMode
from torch.utils import _pytree as pytree

from tilewright.errors import ImportModelError
from tilewright.importers.torch_source_lines import is_written_by_user, written_lines

_MARK = "assumed "  # begins the messages of assertions that stand for an assumption: the condition,
_THEN = " | "  # and then the line that it comes from
_NOTED = "propagate_real_tensors"  # begins what PyTorch says of a question that the example answers
_ENTRY = "importers/torch_export.py"
NO_LINE = "the model"  # where PyTorch has no line for an operation
_INTERPRETER = "torch/fx/interpreter.py"
_SYMBOL = re.compile(r"\bz?uf?\d+\b")  # a number read from a tensor, in PyTorch's words


@dataclass(frozen=True)
class Assumption:
    """What holds for the example (a sympy relation of sizes and numbers read), and the line that asked."""

    condition: Any
    place: str  # modeling_led.py:1175: is_global = mask.any().item()
    only_one: bool = False  # sizes of 1 alone take another path, of which torch.export says nothing

    @property
    def numbers(self) -> set[str]:
        """The symbols of numbers that were read."""
        return set(_SYMBOL.findall(str(self.condition)))


class _Fixed(TorchFunctionMode):
    """Whole numbers and sizes that follow from the numbers in tensors are those of the example."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        for leaf in pytree.tree_leaves(result):
            for size in leaf.shape if isinstance(leaf, torch.Tensor) else [leaf]:
                if isinstance(size, torch.SymInt):
                    _fix(size)
        return result


def _fix(size: torch.SymInt) -> None:
    """Assume that the numbers in a size are the example's, where PyTorch has them."""
    env = size.node.shape_env
    names = ("real_tensor_prop_unbacked_vals", "unbacked_var_to_val")  # of versions from 2.12 on, and before
    known: Mapping[Any, Any] = next((getattr(env, name) for name in names if hasattr(env, name)), {})
    for symbol in sorted(free_unbacked_symbols(size) & known.keys(), key=str):
        env.evaluate_expr(symbol)


def depends_on_data(error: BaseException) -> bool:
    """Whether PyTorch does not export a module because of numbers in tensors."""
    return re.search(r"data-dependent|ropagate_real_tensors|eal tensor propagation|unbacked", str(error)) is not None


@contextmanager
def assuming(fixed: bool = False) -> Iterator[list[Assumption]]:
    """For the time of an export: questions about the numbers in tensors get the example's answers.

    `fixed`: all whole numbers that are read, and all sizes that follow from numbers, are the example's.
    Yields a list that takes up what is assumed.
    """
    found: list[Assumption] = []
    defer = ShapeEnv.guard_or_defer_runtime_assert

    def noting(self: ShapeEnv, condition: Any, message: str, *rest: Any, **named: Any) -> Any:
        if message.startswith(_NOTED) and condition not in [known.condition for known in found]:
            found.append(Assumption(condition, asking_line()))
        return defer(self, condition, message, *rest, **named)

    with (
        mock.patch.object(ShapeEnv, "guard_or_defer_runtime_assert", noting),
        without_places(),
        mock.patch.object(torch.Tensor, "__format__", _written),
        _copied_parameters(),
    ):
        # Where PyTorch's own rules for the sizes of results are wrong, sizes are left open: the import asks for them.
        with config.patch(fake_tensor_propagate_real_tensors=True, generate_fake_kernels_from_real_mismatches=True):
            with _Fixed() if fixed else nullcontext():
                yield found


@contextmanager
def without_places() -> Iterator[None]:
    """PyTorch's comparisons of results with the example's leave out the places of views in their memory.

    Those of rows that a number chooses, and of the columns of `nonzero`, are numbers that only the run knows: asked
    for, they would be assumed, or stop PyTorch where it has no number for them yet.
    """
    with mock.patch.object(fake_utils, "_check_fake_real_tensors", _compare):
        yield


def _compare(real: torch.Tensor, fake: torch.Tensor, context: str = "", **parts: Any) -> None:
    sizes, strides = parts.get("sizes", True), parts.get("strides", False)
    compare_tensor_meta(real, fake, check_sizes=sizes, check_strides=strides, allow_rhs_unbacked=True)


def _written(number: torch.Tensor, form: str) -> str:
    """A number as text, ``f"expert_{index}"``: the example's, where it is read from a tensor."""
    if number.dim():
        return object.__format__(number, form)
    kind = float if number.is_floating_point() else bool if number.dtype == torch.bool else int
    return format(kind(number.item()), form)


@contextmanager
def _copied_parameters() -> Iterator[None]:
    """The example's numbers of parameters: PyTorch copies those of plain tensors only, and leaves memory as it was."""
    copy, clone = meta_utils._safe_copy, meta_utils._safe_clone

    def plain(source: Any) -> Any:
        return source.data if type(source) is torch.nn.Parameter else source

    with (
        mock.patch.object(meta_utils, "_safe_copy", lambda target, source: copy(target, plain(source))),
        mock.patch.object(meta_utils, "_safe_clone", lambda source: clone(plain(source))),
    ):
        yield


def asking_line() -> str:
    """The innermost line of the user's, or of a library's, that is neither PyTorch's nor ours; of an exported program,
    that of the operation at hand."""
    frame = sys._getframe(2)
    while frame is not None:
        name = frame.f_code.co_filename.replace(os.sep, "/")
        if is_written_by_user(name) and not name.startswith("<"):
            return line_of(name, frame.f_lineno)
        if name.endswith(_ENTRY):  # what follows is the call of the compiler
            break
        if name.endswith(_INTERPRETER) and isinstance(frame.f_locals.get("n"), fx.Node):
            line = line_of_node(frame.f_locals["n"])
            if line != NO_LINE:
                return line
        frame = frame.f_back  # type: ignore[assignment]
    return NO_LINE


def line_of_node(node: fx.Node) -> str:
    """The user's line that an operation of a program comes from."""
    written = written_lines(str(node.meta.get("stack_trace")))
    return line_of(*written[-1]) if written else NO_LINE


def line_of_error(error: BaseException) -> str | None:
    """The innermost line of the user's, or of a library's, that an error comes from; None where there is none."""
    frames = [(frame.filename, frame.lineno or 0) for frame in traceback.extract_tb(error.__traceback__)]
    written = [place for place in frames if is_written_by_user(place[0]) and not place[0].startswith("<")]
    return line_of(*written[-1]) if written else None


def line_of(file: str, number: int) -> str:
    """A line of code, with where it stands: ``model.py:7: if x.shape[0] == 1:``."""
    return f"{file.replace(os.sep, '/').rsplit('/', 1)[-1]}:{number}: {linecache.getline(file, number).strip()}"


def mark_assumptions(program: ExportedProgram, assumptions: Sequence[Assumption]) -> None:
    """Give the assertions of a program that stand for assumptions messages that say so, and where they were made.

    Raises `ImportModelError` for an assumption without an assertion, which no call could check.
    """
    stated = {node: _stated(node) for node in assertions(program.graph)}
    for assumption in assumptions:
        about = [node for node, text in stated.items() if set(_SYMBOL.findall(text)) == assumption.numbers]
        if not about:
            raise _unchecked(f"{assumption.place} (it is that {assumption.condition})")
        for node in about:
            if text_of(node) is None or stated[node] == str(assumption.condition):
                path = f"{assumption.place} (the example's path, taken while {assumption.condition})"
                node.update_arg(1, f"{_MARK}{stated[node]}{_THEN}{path}")


def required(condition: torch.Tensor, requirement: str) -> None:
    """Make a condition on numbers in tensors, a boolean without dimensions, one of every call; for the time of an
    export. `requirement` it says goes into the error with the line that asks for it."""
    text = f"{requirement} at {asking_line()}"
    torch.ops.aten._assert_scalar.default(condition.item(), f"{_MARK}{text}{_THEN}{text}")


def text_of(assertion: fx.Node) -> str | None:
    """What an assertion assumes; None for others."""
    message = str(assertion.args[-1])
    return message.partition(_THEN)[2] if message.startswith(_MARK) else None


def is_assumed_too(assertion: fx.Node) -> bool:
    """Whether another assertion of the graph assumes something of the same numbers, and names the line that asks."""
    numbers = _numbers(assertion)
    return any(text_of(other) is not None and _numbers(other) == numbers for other in assertions(assertion.graph))


def _numbers(assertion: fx.Node) -> frozenset[Any]:
    """The numbers read from tensors in an assertion's condition."""
    condition = assertion.args[0]
    known = condition.meta.get("val") if isinstance(condition, fx.Node) else None
    return frozenset(known.node.expr.free_symbols) if isinstance(known, torch.SymBool) else frozenset()


def assumed_of(program: ExportedProgram) -> dict[str, None]:
    """What a program assumes, each once."""
    return dict.fromkeys(text for text in map(text_of, assertions(program.graph)) if text is not None)


def check_none_lost(before: ExportedProgram, after: ExportedProgram) -> None:
    """Mark anew the assertions for assumptions that PyTorch has written with messages of its own.

    Raises `ImportModelError` where it has dropped one that no other implies.
    """
    remaining = {_marked(node) for node in assertions(after.graph)}
    written = {_stated(node): node for node in assertions(after.graph) if text_of(node) is None}
    for node in assertions(before.graph):
        lost = _marked(node)
        if lost is None or lost in remaining:
            continue
        if lost in written:
            written[lost].update_arg(1, node.args[1])
            remaining.add(lost)
            continue
        if not _is_implied(lost, remaining):
            raise _unchecked(f"{text_of(node)}")


def _is_implied(lost: str, remaining: set[str | None]) -> bool:
    """Whether an assertion follows from others: a size that is equal from both bounds, and each of these from it."""
    equal = re.fullmatch(r"Eq\((.*), (-?\d+)\)", lost)
    bound = re.fullmatch(r"(.*) [<>]= (-?\d+)", lost)
    by_both_bounds = equal is not None and {f"{equal[1]} >= {equal[2]}", f"{equal[1]} <= {equal[2]}"} <= remaining
    return by_both_bounds or (bound is not None and f"Eq({bound[1]}, {bound[2]})" in remaining)


def _marked(assertion: fx.Node) -> str | None:
    """The condition of an assertion for an assumption."""
    message = str(assertion.args[-1])
    return message.removeprefix(_MARK).partition(_THEN)[0] if message.startswith(_MARK) else None


def _unchecked(assumption: str) -> ImportModelError:
    return ImportModelError(
        f"the code depends on the numbers in tensors, and no call can check that they are as for the example: "
        f"{assumption}\n"
        "Use torch.where or torch.cond in its place."
    )


def _stated(assertion: fx.Node) -> str:
    """The condition in an assertion's message: ``Eq(u0, 1)``."""
    found = re.search(r"expression (.*) on node", str(assertion.args[1]))
    return found[1] if found else ""


def assertions(graph: fx.Graph) -> Iterator[fx.Node]:
    """The assertions on numbers of a graph."""
    for node in graph.nodes:
        if node.op == "call_function" and str(node.target).startswith("aten._assert_scalar"):
            yield node
