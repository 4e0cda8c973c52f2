"""Chooses the candidate of each fused group: ranks by estimate, and times the close ones on the GPU once.

Equal groups (the same operations, shapes, layouts and kernels) share one problem of `measure.choosing`.  Times go to
the cache directory's timing cache and into the engine.
"""

from __future__ import annotations

import itertools
import logging
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

from tilewright.build.kernels import KernelSet
from tilewright.build.ranges import combined, representatives
from tilewright.build.trials import Trials
from tilewright.errors import DeviceError, MissingDependencyError, MissingTimingError, SettingsError, brief
from tilewright.graph.core import Graph, Value
from tilewright.graph.fusion import Group
from tilewright.library.candidate import Candidate, ExternKernel, Operand, PackedConstant, labels
from tilewright.measure.choosing import CLOSE, Choice, Measured, Records, TuningProblem, closest, ranked
from tilewright.measure.keys import device_name, problem_key
from tilewright.measure.record import Timing
from tilewright.runtime.cuda import device as devices
from tilewright.runtime.gpu_program import runs_on
from tilewright.runtime.plan import BufferReference
from tilewright.settings import settings
from tilewright.symbolic import Size, free_symbols
from tilewright.targets.base import Target

if TYPE_CHECKING:
    from tilewright.runtime.cuda.device import Device

Progress = Callable[[str, str, float], None]
logger = logging.getLogger("tilewright.measure")

_LARGE_SIZE = 512  # of a symbol without a smaller limit, among the examples that are timed


@dataclass(frozen=True)
class Tuning:
    """How candidates are chosen.

    `effort`: 0 by estimate alone, 1 the close ones are timed, 2 more of them, 3 all. `recorded` are times that are
    looked up besides those of the cache directory, and before them. `reproducible`: times on record alone decide.
    `libraries`: products and convolutions of other libraries are candidates, for engines that run where these are.
    `quick`: machine code for CPUs is made in less time and is slower; by default at effort 0.
    Raises `SettingsError` for another effort.
    """

    effort: int | None = None
    recorded: tuple[Timing, ...] = ()
    reproducible: bool = False
    libraries: bool = False
    quick: bool | None = None

    def __post_init__(self) -> None:
        if self.effort is not None and self.effort not in CLOSE:
            raise SettingsError(
                f"effort {brief(self.effort)}: expected 0 (nothing is timed) to {max(CLOSE)} (all kernels are)"
            )

    @property
    def level(self) -> int:
        """The effort; by default 1, and 0 where ``TILEWRIGHT_TUNE=0``."""
        return int(settings.tune) if self.effort is None else self.effort

    @property
    def is_quick(self) -> bool:
        """Whether machine code for CPUs is made in less time and is slower."""
        return self.effort == 0 if self.quick is None else self.quick


@dataclass(kw_only=True)
class _GroupProblem(TuningProblem):
    """The problem of equal groups: the first of them, its candidates, the sizes that each key stands for, and why they
    were not timed."""

    group: Group
    found: Sequence[Candidate]
    sizes: Mapping[str, Mapping[str, int]]
    untimed: str


class Tuner:
    """Chooses candidates for the groups of one graph and target."""

    def __init__(self, graph: Graph, target: Target, tuning: Tuning, progress: Progress) -> None:
        self.graph, self.target, self.tuning, self.progress = graph, target, tuning, progress
        self.used: dict[str, Timing] = {}  # by key: what goes into the engine
        self._device, self._untimed = _gpu_for(target) if target.times_kernels else (None, "CPU kernels are not timed")
        name, address = (device_name(self._device), self._device.address) if self._device else (None, "")
        self._records = Records(name, tuning.recorded, address)
        self._problems: dict[str, _GroupProblem] = {}  # by their texts
        weights = sum(array.nbytes for array in graph.constants.values())
        self._cold = weights > target.l2_bytes

    def choose(self, groups: Sequence[tuple[Group, Sequence[Candidate]]]) -> list[tuple[Choice, Sequence[Candidate]]]:
        """A choice for each group with its candidates, and the candidates: a further one may be made of several.

        Raises `MissingTimingError` in a reproducible build.
        """
        problems = [self._problem(group, found) for group, found in groups]
        distinct = list({id(problem): problem for problem in problems if problem is not None}.values())
        for problem in distinct:
            self._records.look_up(problem)
        if self.tuning.reproducible:
            self._require([problem for problem in distinct if problem.is_open])
        elif self.tuning.level and self._device is not None:
            self._time([problem for problem in distinct if not problem.is_known], self._device)
        return [self._choice(found, problem) for (_, found), problem in zip(groups, problems, strict=True)]

    def _problem(self, group: Group, found: Sequence[Candidate]) -> _GroupProblem | None:
        """What a group's choice depends on; None where there is none."""
        if len(found) < 2 or not self.target.times_kernels:
            return None
        text = problem_text(group, self.graph)
        if text not in self._problems:
            key = problem_key("group", self.target, ("library",), self._cold, text)
            seconds = [candidate.cost.seconds for candidate in found]
            guessed = [index for index, candidate in enumerate(found) if _calls_library(candidate)]
            close = closest(seconds, self.tuning.level, guessed)
            chosen_sizes = examples(self.graph, group, [found[index] for index in close])
            sizes = {key + _sizes_text(each): each for each in chosen_sizes}
            names = {key: f"{summary(group)}{_sizes_text(each)}" for key, each in sizes.items()}
            untimed = self._untimed or ("no other estimate is close" if self.tuning.level else "effort 0")
            self._problems[text] = _GroupProblem(
                names, labels(found), ranked(seconds), close, group=group, found=found, sizes=sizes, untimed=untimed
            )
        return self._problems[text]

    def _require(self, missing: Sequence[_GroupProblem]) -> None:
        """Raise `MissingTimingError` for problems that nothing on record decides, where there are any."""
        if not missing:
            return
        names = "; ".join(f"{problem.group.name} ({summary(problem.group)})" for problem in missing[:5])
        more = f" and {len(missing) - 5} more" if len(missing) > 5 else ""
        gpu = self._records.device or f"a GPU of {self.target.architecture}"
        raise MissingTimingError(
            f"no times on record choose the kernels of {names}{more}: a reproducible build times nothing. Build "
            f"the model once without --reproducible on {gpu}, keep its timing cache ({self._records.cache.path}), "
            "and name it, or the engine, with --timing-cache"
        )

    def _time(self, problems: Sequence[_GroupProblem], device: Device) -> None:
        """Time the close candidates of problems, and put the times on record."""
        if not problems:
            return
        stages = [stage for problem in problems for index in problem.close for stage in problem.found[index].stages]
        calls = [(call, _anywhere) for stage in stages for call in stage.calls]
        KernelSet(self.target, self.progress).compile_ahead(calls)
        trials = Trials(self.graph, self.target, device, self._cold)
        for problem in problems:
            self.progress("time kernels", problem.group.name, 0.0)
            started = time.perf_counter()
            try:
                self._records.time(problem, partial(_measured, trials, problem))
            except DeviceError as error:
                problem.untimed = f"it could not be timed: {error}"
                logger.warning("%s was not timed: %s", problem.group.name, error)
            self.progress("time kernels", problem.group.name, time.perf_counter() - started)

    def _choice(self, found: Sequence[Candidate], problem: _GroupProblem | None) -> tuple[Choice, Sequence[Candidate]]:
        if problem is None:
            first = ranked([candidate.cost.seconds for candidate in found])[0]
            return Choice(first, "only") if len(found) == 1 else Choice(first, "estimate", self._untimed), found
        choice = problem.choice(problem.untimed)
        if not choice.microseconds:
            return choice, found
        self.used.update({timing.key: timing for timing in problem.times})
        times = [(problem.sizes[timing.key], problem.by_number(timing)) for timing in problem.times]
        further = combined(found, choice, times)
        return (choice, found) if further is None else (further[1], [*found, further[0]])


def _measured(trials: Trials, problem: _GroupProblem, key: str) -> Measured:
    """The times of a problem's close candidates for the sizes of a key."""
    return trials.measure({index: problem.found[index] for index in problem.close}, problem.sizes[key])


def _calls_library(candidate: Candidate) -> bool:
    return any(isinstance(call.kernel, ExternKernel) for stage in candidate.stages for call in stage.calls)


def examples(graph: Graph, group: Group, timed: Sequence[Candidate]) -> list[dict[str, int]]:
    """Sizes that a group's candidates are timed for: one of each range that they have launches for, else its symbols
    small, usual and large; one without any for fixed shapes."""
    shapes = itertools.chain.from_iterable(value.shape for value in (*group.inputs, *group.outputs))
    names = {symbol.name for size in shapes for symbol in free_symbols(size)}
    symbols = [symbol for name, symbol in graph.symbols.items() if name in names]
    found: list[dict[str, int]] = []
    for usual in representatives(timed) or (1, 64, _LARGE_SIZE):
        sizes = {symbol.name: min(max(usual, symbol.low), symbol.high) for symbol in symbols}
        if sizes not in found:
            found.append(sizes)
    return found


def problem_text(group: Group, graph: Graph) -> str:
    """A group without its names: equal texts are equal problems."""
    numbers: dict[Value, str] = {}

    def described(value: Value | None) -> str:
        if value is None:
            return "none"
        if value not in numbers:
            kind = "constant" if value in graph.constants else "tensor"
            numbers[value] = f"{len(numbers)}"
            return f"{kind} {numbers[value]} {value.dtype} {_shape(value.shape)}"
        return numbers[value]

    lines = [group.kind]
    for node in group.nodes:
        attributes = sorted((name, repr(value)) for name, value in node.attributes.items())
        operands = ", ".join(map(described, node.inputs))
        lines.append(f"{node.op} {attributes} ({operands}) -> {', '.join(map(described, node.outputs))}")
    lines.append("outputs " + ", ".join(map(described, group.outputs)))
    lines += [f"{s.name} {s.low}..{s.high}" for s in graph.symbols.values() if s.name in "".join(lines)]
    return "\n".join(lines)


def summary(group: Group) -> str:
    """A group in a few words, for people."""
    operations = [node.op for node in group.nodes if node.op not in ("reshape", "permute", "broadcast_to")]
    shapes = [f"{value.dtype}{_shape(value.shape)}" for value in (*group.inputs[:2], *group.outputs[:1])]
    return f"{'+'.join(operations[:6]) or group.kind}{'+…' if len(operations) > 6 else ''} {' '.join(shapes)}"


def _gpu_for(target: Target) -> tuple[Device | None, str]:
    """The GPU that runs a target's code, or why there is none."""
    try:
        device = devices.current_device()
    except (DeviceError, MissingDependencyError) as error:
        return None, f"nothing was timed: {error}"
    architecture = target.architecture
    if not runs_on(architecture, device.capability):
        return None, f"nothing was timed: {device.name} does not run code for {architecture}"
    return device, ""


def _anywhere(operand: Operand) -> BufferReference:
    """A place for each tensor, apart from the others'."""
    value = operand.value if isinstance(operand, PackedConstant) else operand
    assert isinstance(value, Value)
    return BufferReference("weight" if isinstance(operand, PackedConstant) else "input", value.name)


def _shape(shape: Sequence[Size]) -> str:
    return f"[{','.join(map(str, shape))}]"


def _sizes_text(sizes: Mapping[str, int]) -> str:
    return "".join(f" {name}={value}" for name, value in sizes.items())
