"""One architecture in one way: built, run at several sizes, and compared with PyTorch.

The bound of each result follows from runs of PyTorch itself: in float64, and with every result of every operation
changed by its rounding error.  A tensor may differ from PyTorch's by some times what these runs differ by.
"""

from __future__ import annotations

import copy
import io
import logging
import re
import traceback
import warnings
from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from typing import Any

import torch
from torch.utils import _pytree as pytree

from tools.architectures.entry import LENGTHS, SIZES, Entry, dynamic_lengths, dynamic_shapes, of_length
from tools.architectures.noise import Noise
from tools.fuzz.programs.compare import Perturbed

WAYS = ("static", "dynamic", "sequence", "compile")
RUNS = 2  # with perturbed results
SEED = 7  # of engines that draw random numbers
FACTOR = 16.0  # times the largest difference of so few runs
ROUNDINGS = 32.0  # of a tensor's largest element

Outcome = dict[str, Any]


def attempt(entry: Entry, way: str) -> Outcome:
    """``{"outcome": right | wrong | refused | traceback | setup, "reason": …}``, with what stays with PyTorch.

    The outcome is "none" for a dynamic sequence where there is no sequence.
    """
    import tilewright
    from tilewright.errors import TilewrightError

    outcome: Outcome
    warnings.simplefilter("ignore")
    logging.disable(logging.NOTSET)
    text = io.StringIO()
    handler = logging.StreamHandler(text)
    logging.getLogger("tilewright").addHandler(handler)
    logging.getLogger("tilewright").propagate = False
    torch.set_num_threads(1)
    torch.manual_seed(0)
    try:
        module, inputs = entry.make()
        module = module.eval().requires_grad_(False)
        with torch.no_grad():
            module(**inputs(2))
    except Exception as error:
        return {"outcome": "setup", "reason": _last(error), "trace": traceback.format_exc(limit=-4)}
    try:
        with torch.no_grad():
            noise, reason = _WAYS[way](tilewright, entry, module, inputs)
    except _Without:
        return {"outcome": "none"}
    except Exception as error:
        cause: BaseException | None = error
        while cause is not None and not isinstance(cause, TilewrightError):
            cause = cause.__cause__ or cause.__context__
        kind = "refused" if isinstance(error, TilewrightError) else "traceback"
        outcome = {"outcome": kind, "reason": _last(error), "trace": traceback.format_exc(limit=-6)}
        if way == "compile" and kind == "traceback" and _fails_alone(module, inputs(2)):
            outcome |= {"outcome": "refused", "reason": f"PyTorch's own torch.compile fails as well: {_last(error)}"}
        return outcome
    outcome = {"outcome": "wrong", "reason": reason} if reason else {"outcome": "right"}
    if noise:
        outcome["noise"] = "given"
    if way == "compile":
        said = text.getvalue()
        left_to_torch = re.findall(r"what stays with PyTorch: (\d+) operation", said)
        outcome["kept"] = sum(map(int, left_to_torch))
        if left_to_torch or "stays with PyTorch" in said or "did not run" in said:
            outcome["stays"] = said[:3000]
    return outcome


def _fails_alone(module: torch.nn.Module, given: Mapping[str, Any]) -> bool:
    """Whether torch.compile fails with a backend that runs everything as it is."""
    torch._dynamo.reset()
    try:
        with torch.no_grad():
            torch.compile(module, backend="eager")(**given)
    except Exception:
        return True
    return False


def _static(tilewright: Any, entry: Entry, module: torch.nn.Module, inputs: Any) -> tuple[bool, str]:
    """Whether noise is given to PyTorch, and what is wrong."""
    given = inputs(3)
    engine = tilewright.compile(module, given, target="cpu")
    return engine.seed is not None, compare(module, given, _run(engine, given), engine.seed is not None)


def _dynamic(tilewright: Any, entry: Entry, module: torch.nn.Module, inputs: Any) -> tuple[bool, str]:
    given = inputs(3)
    shapes = dynamic_shapes(entry, given)
    engine = tilewright.compile(module, given, target="cpu", dynamic_shapes=shapes)
    noise = engine.seed is not None
    return noise, _each(lambda given: _run(engine, given), module, inputs, SIZES, noise)


class _Without(Exception):
    """There is no sequence, or none of which PyTorch runs several lengths."""


def _sequence(tilewright: Any, entry: Entry, module: torch.nn.Module, inputs: Any) -> tuple[bool, str]:
    """Batches of 2 of several lengths."""

    def at(length: int) -> Any:
        with of_length(length):
            return inputs(2)

    if not dynamic_lengths(lambda: inputs(2), LENGTHS):
        raise _Without
    lengths = [length for length in (*range(1, LENGTHS[2]), *LENGTHS[2:]) if _runs(module, at, length)]
    if len(lengths) < 2:
        raise _Without
    given = inputs(2)
    engine = tilewright.compile(module, given, target="cpu", dynamic_shapes=dynamic_lengths(lambda: inputs(2), lengths))
    noise = engine.seed is not None
    chosen = [length for length in lengths if length == lengths[0] or length in LENGTHS]
    return noise, _each(lambda given: _run(engine, given), module, at, chosen, noise)


def _runs(module: torch.nn.Module, at: Any, length: int) -> bool:
    try:
        module(**at(length))
    except Exception:
        return False
    return True


def _compiled(tilewright: Any, entry: Entry, module: torch.nn.Module, inputs: Any) -> tuple[bool, str]:
    torch._dynamo.reset()
    compiled = torch.compile(module, backend="tilewright")
    sizes = (2, 3, 5) if entry.batched else (2,)

    def run(given: Mapping[str, Any]) -> Any:
        return compiled(**copy.deepcopy(dict(given)))  # a cache grows in place

    return False, _each(run, module, inputs, sizes)  # PyTorch draws the numbers itself


def _each(run: Any, module: torch.nn.Module, inputs: Any, sizes: Sequence[int], noise: bool = False) -> str:
    for size in sizes:
        given = inputs(size)
        torch.manual_seed(1)  # as where PyTorch runs it
        reason = compare(module, given, run(given), noise)
        if reason:
            return f"size {size}: {reason}"
    return ""


_WAYS = {"static": _static, "dynamic": _dynamic, "sequence": _sequence, "compile": _compiled}


def _run(engine: Any, given: Mapping[str, Any]) -> Any:
    return engine(**given) if engine.seed is None else engine(**given, **{engine.seed: torch.tensor(SEED)})


def tensors(result: Any) -> list[torch.Tensor]:
    """All tensors of a result, by where they stand in it; objects such as caches by their attributes.

    The parts of a result are a dictionary whose order is the order in which a model sets them, and another one in what
    PyTorch makes of an exported program.
    """
    found: list[torch.Tensor] = []
    try:
        leaves, _ = pytree.tree_flatten_with_path(result)
    except ValueError:  # of a type that says nothing of where its parts stand
        leaves = [((), leaf) for leaf in pytree.tree_leaves(result)]
    for _, leaf in sorted(leaves, key=lambda item: pytree.keystr(item[0])):
        if isinstance(leaf, torch.Tensor):
            found.append(leaf)
        elif type(leaf).__module__ == "numpy":
            found.append(torch.as_tensor(leaf))
        elif hasattr(leaf, "__dict__") and not isinstance(leaf, (type, torch.nn.Module)):
            found += tensors(list(vars(leaf).values()))
    return found


def compare(module: torch.nn.Module, given: Mapping[str, Any], result: Any, noise: bool = False) -> str:
    """What is wrong with a result; empty where rounding explains all of it.

    `noise`: PyTorch is given the engine's random numbers, in the place of its own.
    """
    plain = tensors(_call(module, given, noise))
    found = tensors(result)
    if len(found) != len(plain):
        return f"{len(found)} results, not {len(plain)}"
    others = [tensors(other) for other in _others(module, given, noise)]
    for number, (mine, theirs) in enumerate(zip(found, plain, strict=True)):
        if mine.dtype != theirs.dtype or mine.shape != theirs.shape:
            return f"result {number} is {mine.dtype}{list(mine.shape)}, not {theirs.dtype}{list(theirs.shape)}"
        same = [other[number] for other in others if len(other) == len(plain) and other[number].shape == theirs.shape]
        reason = _difference(mine, theirs, same)
        if reason:
            return f"result {number}: {reason}"
    return ""


def _call(module: torch.nn.Module, given: Mapping[str, Any], noise: bool = False) -> Any:
    torch.manual_seed(1)
    given = copy.deepcopy(dict(given))
    try:
        with Noise(SEED) if noise else nullcontext():
            return module(**given)
    except torch._dynamo.exc.Unsupported:  # torch.cond compiles itself, in some versions once only
        torch._dynamo.reset()
        return module(**given)


def _others(module: torch.nn.Module, given: Mapping[str, Any], noise: bool) -> list[Any]:
    results = []
    for seed in range(RUNS):
        try:
            with Perturbed(seed) as mode:
                results.append(_call(module, pytree.tree_map(mode.changed, dict(given)), noise))
        except Exception:  # of modules that a dispatch mode does not reach into
            continue

    def wide(leaf: Any) -> Any:
        return leaf.double() if isinstance(leaf, torch.Tensor) and leaf.is_floating_point() else leaf

    try:
        results.append(_call(copy.deepcopy(module).double(), pytree.tree_map(wide, dict(given)), noise))
    except Exception:  # modules that make float32 tensors of their own
        pass
    return results


def _difference(mine: torch.Tensor, theirs: torch.Tensor, others: Sequence[torch.Tensor]) -> str:
    if not theirs.is_floating_point() and not theirs.is_complex():
        agreed = torch.ones_like(theirs, dtype=torch.bool)
        for other in others:
            agreed &= other == theirs
        wrong = int((agreed & (mine != theirs)).sum())
        return f"{wrong} of {theirs.numel()} whole numbers differ" if wrong else ""
    if theirs.is_complex():
        mine, theirs, others = (
            torch.view_as_real(mine),
            torch.view_as_real(theirs),
            list(map(torch.view_as_real, others)),
        )
    exact = theirs.double()
    finite = exact.isfinite()
    if not bool(((mine == theirs) | (mine.isnan() & theirs.isnan()))[~finite].all()):
        return "infinities or NaN differ"
    scale = float(exact[finite].abs().max()) if bool(finite.any()) else 0.0
    spread = max(
        [float((other.double() - exact)[finite].abs().nan_to_num().max()) for other in others if finite.any()] or [0.0]
    )
    error = float((mine.double() - exact)[finite].abs().max()) if bool(finite.any()) else 0.0
    allowed = FACTOR * spread + ROUNDINGS * torch.finfo(theirs.dtype).eps * scale
    return "" if error <= allowed else f"error {error:.3g}, allowed {allowed:.3g}, largest {scale:.3g}"


def _last(error: BaseException) -> str:
    return f"{type(error).__name__}: {error}"[:2000]
