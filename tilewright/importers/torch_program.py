"""A module as a program of `torch.export`: plainly, or as its code goes for the example, which is then checked."""

from __future__ import annotations

import traceback
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext, suppress
from dataclasses import dataclass, replace
from functools import partial
from typing import Any
from unittest import mock

import sympy
import torch
from torch.export import ExportedProgram
from torch.utils import _pytree as pytree
from torch.utils._sympy.value_ranges import ValueRanges

from tilewright.errors import ImportModelError
from tilewright.importers.torch_arguments import named_leaves
from tilewright.importers.torch_casts import sizes_in_numbers
from tilewright.importers.torch_constants import export
from tilewright.importers.torch_data_conditions import (
    Assumption,
    assuming,
    depends_on_data,
    line_of_error,
    mark_assumptions,
)
from tilewright.importers.torch_gradients import OF_TRANSFORMS, check_no_transforms, takes_transforms
from tilewright.importers.torch_log_messages import without_failed_attempts
from tilewright.importers.torch_size_conditions import (
    RangeBroken,
    allowed,
    deciding,
    of_floats,
    questions,
    stopping,
    watching,
)
from tilewright.importers.torch_symbols import assertions_hold


@dataclass(frozen=True)
class ExportedModel:
    """What is exported: a module with an example of its arguments, and the ranges of sizes in PyTorch's form.

    `whole`: no argument is an object that is given as its tensors.
    """

    module: torch.nn.Module
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    dynamic_shapes: Any
    whole: bool

    def export(self, **options: Any) -> ExportedProgram:
        """The program of `torch.export`."""
        return export(self.module, self.args, self.kwargs, dynamic_shapes=self.dynamic_shapes, **options)

    def named_leaves(self) -> tuple[dict[str, Any], list[tuple[str, Any]]]:
        """The arguments by name, and the tensors in them by theirs (`torch_arguments.named_leaves`)."""
        return named_leaves(self.module, self.args, self.kwargs)

    def with_leaves(self, others: Mapping[int, Any], dynamic_shapes: Any) -> ExportedModel:
        """The same for an example with other tensors, by the identities of those in whose places they are."""
        args, kwargs = pytree.tree_map(lambda leaf: others.get(id(leaf), leaf), (self.args, self.kwargs))
        return replace(self, args=args, kwargs=kwargs, dynamic_shapes=dynamic_shapes)


def export_program(model: ExportedModel, assumed: list[Assumption]) -> ExportedProgram:
    """The exported module; what depends on numbers in tensors as it goes for the example (`torch_data_conditions`).

    `assumed` takes up conditions on sizes that do not hold for all of a range.
    Raises `ImportModelError`.
    """
    plain = partial(_plain_export, model)
    try:
        with without_failed_attempts():
            program = _with_symbols(model.module, plain, assumed)
            check_no_transforms(program)
            if model.whole and _holds_buffers_twice(model.module, program):
                with suppress(Exception):
                    return _noting_ones(assumed, _traced, model)
            return program
    except Exception as error:
        for way in (*(_traced,) * model.whole, _assumed, export_fixed) if depends_on_data(error) else ():
            try:
                with without_failed_attempts():
                    return _noting_ones(assumed, way, model)
            except Exception as other:  # the first error says more
                if not _is_of_ranges(other):
                    continue
                error = other
                with suppress(Exception), without_failed_attempts():
                    with deciding() as conditions:
                        program = way(model)
                    assumed[:] = conditions
                    return program
        raise _refused(model.module, error) from error


_OF_A_GRAPH = "\n\nWhile executing"  # what PyTorch adds to errors of the nodes of a graph


def _refused(module: torch.nn.Module, error: Exception) -> ImportModelError:
    """The error for a module that cannot be exported; one of the importer's own, with the line."""
    place = line_of_error(error)
    if isinstance(error, ImportModelError):
        said = str(error).partition(_OF_A_GRAPH)[0]
        return ImportModelError(f"{place}: {said}" if place else said)
    subject = f"PyTorch cannot export {type(module).__name__}{f', at {place}' if place else ''}"
    if takes_transforms(error):
        return ImportModelError(f"{subject}: {OF_TRANSFORMS}")
    older = torch.__version__.startswith("2.11.") and depends_on_data(error)
    return ImportModelError(
        f"{subject}: {error}\n"
        f"{'PyTorch 2.11 cannot take the path of the example here, newer versions do. ' if older else ''}"
        "Make the module exportable (see the PyTorch guide on torch.export), or use "
        "torch.compile(module, backend='tilewright'), which leaves such parts to PyTorch."
    )


def export_other_path(model: ExportedModel, assumed: list[Assumption]) -> ExportedProgram:
    """The module as its code goes for an example of other sizes; `assumed` takes up conditions on them."""
    ways: tuple[Callable[..., ExportedProgram], ...] = (ExportedModel.export, *(_traced,) * model.whole, _assumed)
    for way in ways:
        try:
            with without_failed_attempts(), deciding() as conditions:
                program = way(model)
        except Exception as error:
            if way is ExportedModel.export and not depends_on_data(error):
                raise
            continue
        assumed[:] = conditions
        return program
    raise ImportModelError("its code depends on numbers in tensors")


def _noting_ones(
    assumed: list[Assumption], way: Callable[..., ExportedProgram], *args: Any, **options: Any
) -> ExportedProgram:
    """The program of an export; what code asks of sizes whether they are 1 takes the place of earlier such questions,
    whose symbols may be others."""
    with questions() as conditions:
        program = way(*args, **options)
    others = [each for each in assumed if not each.only_one]
    assumed[:] = [*others, *(each for each in conditions if each.only_one)]
    return program


def _holds_buffers_twice(module: torch.nn.Module, program: ExportedProgram) -> bool:
    """Whether the module also has buffers in an object that is no module (a cache), where they are other tensors to the
    export: what the model writes there would not reach the buffers. Dynamo sees that they are the same."""
    lifted = program.graph_signature.inputs_to_lifted_tensor_constants.values()
    constants = [program.constants[name] for name in lifted]
    known = {buffer.data_ptr() for buffer in module.buffers() if buffer.numel()}
    return any(type(item) is torch.Tensor and item.numel() and item.data_ptr() in known for item in constants)


def _traced(model: ExportedModel) -> ExportedProgram:
    """The module exported from its bytecode, in which ``int(x.max())`` is a number that the run reads.

    Where Python runs the code, `int` gives the example's number.
    """
    forward = vars(model.module.forward)["__wrapped__"]  # what `plain_calls` took the place of, for Dynamo
    with mock.patch.object(model.module, "forward", forward):
        return model.export(strict=True)


def export_fixed(model: ExportedModel) -> ExportedProgram:
    """As `_assumed`, all numbers that are read and all sizes that follow from them those of the example."""
    return _assumed(model, fixed=True)


def _assumed(model: ExportedModel, fixed: bool = False) -> ExportedProgram:
    """The module exported for what the example says of the numbers in tensors, with assertions that say so."""
    with assuming(fixed) as assumptions:
        program = model.export()
    mark_assumptions(program, assumptions)
    return program


_WORDING = ("DimConstraints.prettify_results", "DimConstraints.solve")
_BROKEN_RANGES = ("Constraints violated", "Cannot create Dim with inconsistent")


def _is_of_ranges(error: BaseException) -> bool:
    """Whether PyTorch cannot prove that a range is free of conditions; it fails itself to word some of them."""
    frames = traceback.walk_tb(error.__traceback__)
    unworded = any(frame.f_code.co_qualname in _WORDING for frame, _ in frames)
    return unworded or any(text in str(error) for text in _BROKEN_RANGES)


def _with_symbols(
    module: torch.nn.Module, exporting: Callable[[list[Assumption]], ExportedProgram], assumed: list[Assumption]
) -> ExportedProgram:
    """What `exporting` gives; where code makes numbers of sizes that are then the example's, with symbols for them."""
    program = exporting(assumed)
    if not any(_fixes_a_size(each.condition) for each in assumed):
        return program
    conditions: list[Assumption] = []
    with suppress(Exception, RangeBroken), sizes_in_numbers(module):
        other = exporting(conditions)
        if not any(_fixes_a_size(each.condition) for each in conditions):
            assumed[:] = conditions
            return other
    return program


def _plain_export(model: ExportedModel, assumed: list[Assumption]) -> ExportedProgram:
    """The exported module without assumptions on the numbers in tensors.

    Versions of PyTorch differ in what they can prove of sizes, and refuse a range for the rest, such as
    ``min(32*n, 64*n) == 32*n``: then all sizes are tried. For conditions that differ it is asked for assertions
    instead, and they are proved here, if they can be. Conditions on floats have none: then the bytecode is exported, in
    which ``int(n * 0.5)`` is no condition. What is left is as for the example, and checked at every call.
    """
    try:
        with stopping():
            return _plainly(model, assumed)
    except (Exception, RangeBroken) as error:
        if not isinstance(error, RangeBroken) and not _is_of_ranges(error):
            raise
        found = _export_in_ranges(model, assumed)
        if found is not None:
            return found
        if not isinstance(error, RangeBroken):
            raise
    return _plainly(model, assumed)  # PyTorch says what is wrong


def _plainly(model: ExportedModel, assumed: list[Assumption]) -> ExportedProgram:
    with questions() as conditions:
        program = model.export()
    assumed.extend(conditions)
    return program


def _export_in_ranges(model: ExportedModel, assumed: list[Assumption]) -> ExportedProgram | None:
    """As `_plain_export`, of a module for which PyTorch refuses a range; None if nothing exports it."""
    program = None
    try:
        with deciding() as conditions:
            program = model.export()
    except Exception as error:
        if depends_on_data(error):  # of which an export that was stopped knows nothing
            raise
    if program is not None and all(each.only_one for each in conditions):
        assumed.extend(conditions)
        return program
    # What is lost is found by the end only, if there is any.
    may_stop = program is not None and not any(of_floats(each.condition) for each in conditions)
    with suppress(Exception, RangeBroken):
        with watching() as lost, stopping(deferred=True) if may_stop else nullcontext():
            other = _noting_ones(assumed, model.export, prefer_deferred_runtime_asserts_over_guards=True)
        if lost and model.whole:
            with suppress(Exception):
                return _noting_ones(assumed, _traced, model)
        if not lost and assertions_hold(other):
            return other
    if program is None:
        return None
    assumed[:] = conditions
    return program


def _fixes_a_size(condition: Any) -> bool:
    """Whether a condition gives a number of a size: where Python runs the code, `int(n * 0.7)` is the example's.

    Those of several sizes have paths of their own, or are checked at every call.
    """
    if not isinstance(condition, sympy.Eq) or len(condition.free_symbols) != 1:
        return False
    return bool(condition.lhs.is_Integer or condition.rhs.is_Integer)


def narrowed_ranges(
    ranges: Mapping[Any, Any], assumed: Sequence[Assumption]
) -> tuple[dict[Any, Any], list[Assumption]]:
    """Ranges of sizes within which conditions hold, and the conditions that do not come to a range: one from 2 on, in
    PyTorch's words, has 1 too.

    Raises `ImportModelError` where a single size is left.
    """
    narrowed, others = dict(ranges), []
    for assumption in assumed:
        if assumption.only_one:
            others.append(assumption)
            continue
        (symbol, *more) = assumption.condition.free_symbols
        bounds = narrowed.get(symbol)
        sizes = None
        if not more and bounds is not None and bounds.lower.is_Integer and bounds.upper.is_Integer:
            low = int(bounds.lower)
            sizes = allowed(assumption.condition, symbol, 1 if low == 2 else low, int(bounds.upper))
        if sizes is None or not len(sizes) or sizes[-1] - sizes[0] >= len(sizes) or sizes[0] == 2 < sizes[-1]:
            others.append(assumption)
            continue
        narrowed[symbol] = ValueRanges(int(sizes[0]), int(sizes[-1]))
    return narrowed, others
