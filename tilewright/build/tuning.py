"""Which candidate computes each fused group: ranked by estimate, and the close ones timed on the GPU, once.

    groups and candidates -> close ones (`CLOSE`, by effort) -> times on record, or timed now -> selections

Equal groups (the same operations, shapes, layouts and kernels) share one problem, which is timed once.  Times go to
the cache directory's timing cache and into the engine.
"""

from __future__ import annotations

import hashlib
import itertools
import logging
import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any

from tilewright.build.kernels import KernelSet
from tilewright.build.precompile import compile_ahead
from tilewright.errors import DeviceError, MissingDependencyError, MissingTimingError, SettingsError, brief
from tilewright.graph.core import Graph, Value
from tilewright.graph.fusion import Group
from tilewright.language.function import SourceFunction
from tilewright.library.candidate import Candidate, ExternKernel, KernelCall, Operand, PackedConstant
from tilewright.runtime.plan import BufferReference
from tilewright.settings import settings
from tilewright.symbolic import Size, free_symbols
from tilewright.targets.base import Target
from tilewright.targets.cpu.target import CPUTarget
from tilewright.targets.llvm.cache import kernel_digest, source_digest
from tilewright.tune.cache import Timing, TimingCache

if TYPE_CHECKING:
    from tilewright.build.trials import Trials
    from tilewright.runtime.cuda.device import Device

Progress = Callable[[str, str, float], None]
logger = logging.getLogger("tilewright.tune")

# By effort: candidates up to so many times the least estimate are timed, and at most so many.
CLOSE: dict[int, tuple[float, int]] = {0: (1.0, 1), 1: (1.5, 8), 2: (2.5, 16), 3: (math.inf, 1000)}
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


@dataclass(frozen=True)
class Selection:
    """The candidate of a group, and why: `source` is ``only``, ``estimate``, ``timed`` or ``recorded``.

    `microseconds` and `failures` are by the candidates' numbers; `reason` is for people.
    """

    index: int
    source: str
    reason: str
    microseconds: Mapping[int, float] = field(default_factory=dict)
    failures: Mapping[int, str] = field(default_factory=dict)


@dataclass
class _Problem:
    """Equal groups: the candidates of the first, their texts, and what is known of their times for example sizes."""

    group: Group
    found: Sequence[Candidate]
    labels: list[str]
    keys: dict[str, Mapping[str, int]]  # key in the timing cache -> sizes
    close: list[int]
    times: list[Timing] = field(default_factory=list)
    source: str = "recorded"


class Tuner:
    """Chooses candidates for the groups of one graph and target."""

    def __init__(self, graph: Graph, target: Target, tuning: Tuning, progress: Progress) -> None:
        self.graph, self.target, self.tuning, self.progress = graph, target, tuning, progress
        self.used: dict[str, Timing] = {}  # by key: what goes into the engine
        self._on_gpu = not isinstance(target, CPUTarget)
        self._cache = TimingCache.of_settings() if self._on_gpu else TimingCache()
        self._given = TimingCache(tuning.recorded)
        self._device, self._without = _gpu_for(target) if self._on_gpu else (None, "CPU kernels are not timed")
        self._name = None if self._device is None else device_name(self._device)
        self._problems: dict[str, _Problem] = {}  # by their texts
        weights = sum(array.nbytes for array in graph.constants.values())
        self._cold = weights > getattr(target, "l2_bytes", 0)
        sources = (kernel_digest(target.name), source_digest("library", "tune")) if self._on_gpu else ()
        self._context = repr((target.key, *sources, self._cold))  # what times depend on, besides GPU and problem

    def choose(self, groups: Sequence[tuple[Group, Sequence[Candidate]]]) -> list[Selection]:
        """A selection for each group with its candidates; raises `MissingTimingError` in a reproducible build."""
        problems = [self._problem(group, found) for group, found in groups]
        distinct = list({id(problem): problem for problem in problems if problem is not None}.values())
        for problem in distinct:
            problem.times = [time for key in problem.keys if (time := self._recorded(key)) is not None]
        if self.tuning.reproducible:
            self._require(distinct)
        elif self.tuning.level and self._device is not None:
            self._time([problem for problem in distinct if self._is_missing(problem)], self._device)
        selections = [self._select(found, problem) for (_, found), problem in zip(groups, problems, strict=True)]
        if self._on_gpu:
            self._compile([found[s.index] for (_, found), s in zip(groups, selections, strict=True)])
        return selections

    # -- Problems -----------------------------------------------------------------------------------------------------

    def _problem(self, group: Group, found: Sequence[Candidate]) -> _Problem | None:
        """What a group's choice depends on; None where there is none."""
        if len(found) < 2 or not self._on_gpu:
            return None
        key = problem_text(group, self.graph)
        if key not in self._problems:
            digest = hashlib.sha256(f"{self._context} {key}".encode()).hexdigest()
            sizes = examples(self.graph, group)
            keys: dict[str, Mapping[str, int]] = {f"group-{digest[:32]}{_sizes_text(each)}": each for each in sizes}
            self._problems[key] = _Problem(group, found, labels(found), keys, closest(found, self.tuning.level))
        return self._problems[key]

    def _recorded(self, key: str) -> Timing | None:
        return self._given.find(key, self._name) or self._given.find(key, None) or self._cache.find(key, self._name)

    def _is_missing(self, problem: _Problem) -> bool:
        known = [{*timing.microseconds, *timing.failures} for timing in problem.times]
        wanted = {problem.labels[index] for index in problem.close}
        return len(wanted) > 1 and (len(known) < len(problem.keys) or any(wanted - names for names in known))

    def _require(self, problems: Sequence[_Problem]) -> None:
        missing = [p for p in problems if len(p.close) > 1 and len(p.times) < len(p.keys)]
        if missing:
            names = "; ".join(f"{p.group.name} ({what(p.group)})" for p in missing[:5])
            more = f" and {len(missing) - 5} more" if len(missing) > 5 else ""
            gpu = self._name or f"a GPU of {getattr(self.target, 'architecture', self.target.name)}"
            raise MissingTimingError(
                f"no times on record choose the kernels of {names}{more}: a reproducible build times nothing. Build "
                f"the model once without --reproducible on {gpu}, keep its timing cache ({self._cache.path}), and name "
                "it, or the engine, with --timing-cache"
            )

    # -- Timing -------------------------------------------------------------------------------------------------------

    def _time(self, problems: Sequence[_Problem], device: Device) -> None:
        """Time the close candidates of problems, and put the times on record."""
        if not problems:
            return
        from tilewright.build.trials import Trials

        self._compile([problem.found[index] for problem in problems for index in problem.close])
        trials = Trials(self.graph, self.target, device, self._cold)
        for problem in problems:
            self.progress("time kernels", problem.group.name, 0.0)
            started = time.perf_counter()
            try:
                problem.times = [self._timed(problem, trials, key, sizes) for key, sizes in problem.keys.items()]
                problem.source = "timed"
            except DeviceError as error:
                logger.warning("%s was not timed: %s", problem.group.name, error)
            self.progress("time kernels", problem.group.name, time.perf_counter() - started)

    def _timed(self, problem: _Problem, trials: Trials, key: str, sizes: Mapping[str, int]) -> Timing:
        found = [problem.found[index] for index in problem.close]
        times, failures = trials.microseconds(found, sizes)
        names = [problem.labels[index] for index in problem.close]
        for number, text in failures.items():
            logger.warning("%s: %s cannot be used: %s", problem.group.name, names[number], text)
        return self._cache.add(
            Timing(
                str(self._name), key, f"{what(problem.group)}{_sizes_text(sizes)}",
                {names[number]: round(value, 3) for number, value in times.items()},
                {names[number]: text for number, text in failures.items()}, trials.context,
            )
        )  # fmt: skip

    def _compile(self, candidates: Sequence[Candidate]) -> None:
        """Compile the kernels of candidates, several at once, each once."""
        kernels = KernelSet(self.target, lambda stage, item, seconds: None)
        jobs: dict[str, Callable[[], Any]] = {}
        for candidate in candidates:
            for call in (call for stage in candidate.stages for call in stage.calls):
                if isinstance(call.kernel, ExternKernel):
                    continue
                jobs.setdefault(_signature(call), partial(kernels.choice, call, _anywhere))
        self.progress("compile", f"{len(jobs)} kernels", 0.0)
        started = time.perf_counter()
        compile_ahead(list(jobs.values()))
        self.progress("compile", f"{len(jobs)} kernels", time.perf_counter() - started)

    # -- Choosing -----------------------------------------------------------------------------------------------------

    def _select(self, found: Sequence[Candidate], problem: _Problem | None) -> Selection:
        seconds = [candidate.cost.seconds for candidate in found]
        first = seconds.index(min(seconds))
        if problem is None:
            return Selection(first, "only" if len(found) == 1 else "estimate", "" if len(found) == 1 else self._without)
        microseconds, failures = _by_number(problem)
        if len(problem.times) < len(problem.keys) or not microseconds:
            reason = self._without or ("effort 0" if not self.tuning.level else "no other estimate is close")
            usable = [index for index in range(len(found)) if index not in failures] or [first]
            return Selection(min(usable, key=lambda index: seconds[index]), "estimate", reason, {}, failures)
        self.used.update({timing.key: timing for timing in problem.times})
        best = min(microseconds, key=lambda index: microseconds[index])
        reason = f"fastest of {len(microseconds)} timed on {problem.times[0].device}, {problem.times[0].context}"
        return Selection(best, problem.source, reason, microseconds, failures)


def labels(found: Sequence[Candidate]) -> list[str]:
    """A text for each candidate that tells it from the others of its group."""
    texts = []
    counts: dict[str, int] = {}
    for candidate in found:
        details = [f"{name} {value}" for name, value in candidate.reasons.items() if name not in ("epilogue", "split")]
        text = ", ".join([candidate.name, *details])
        counts[text] = counts.get(text, 0) + 1
        texts.append(text if counts[text] == 1 else f"{text} ({counts[text]})")
    return texts


def closest(found: Sequence[Candidate], effort: int) -> list[int]:
    """The numbers of the candidates that the estimates cannot tell apart at an effort, the likeliest first.

    Calls of other libraries, whose estimates are guesses, are among them but at effort 0.
    """
    within, most = CLOSE[effort]
    order = sorted(range(len(found)), key=lambda index: found[index].cost.seconds)
    limit = within * found[order[0]].cost.seconds
    close = [index for index in order if found[index].cost.seconds <= limit][:most]
    return close + [index for index in order if effort and index not in close and _calls_library(found[index])]


def _calls_library(candidate: Candidate) -> bool:
    return any(isinstance(call.kernel, ExternKernel) for stage in candidate.stages for call in stage.calls)


def examples(graph: Graph, group: Group) -> list[dict[str, int]]:
    """Sizes that a group is timed for: its symbols small, usual and large; one without any for fixed shapes."""
    shapes = itertools.chain.from_iterable(value.shape for value in (*group.inputs, *group.outputs))
    names = {symbol.name for size in shapes for symbol in free_symbols(size)}
    symbols = [symbol for name, symbol in graph.symbols.items() if name in names]
    found: list[dict[str, int]] = []
    for usual in (1, 64, _LARGE_SIZE):
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


def what(group: Group) -> str:
    """A group in a few words, for people."""
    operations = [node.op for node in group.nodes if node.op not in ("reshape", "permute", "broadcast_to")]
    shapes = [f"{value.dtype}{_shape(value.shape)}" for value in (*group.inputs[:2], *group.outputs[:1])]
    return f"{'+'.join(operations[:6]) or group.kind}{'+…' if len(operations) > 6 else ''} {' '.join(shapes)}"


def device_name(device: Device) -> str:
    """A GPU with its driver, as times are kept under."""
    from tilewright.runtime.cuda.driver import version

    return f"{device.name}, CUDA {version() // 1000}.{version() % 1000 // 10}"


def _gpu_for(target: Target) -> tuple[Device | None, str]:
    """The GPU that runs a target's code, or why there is none."""
    from tilewright.runtime.cuda import device as devices
    from tilewright.runtime.cuda.program import runs_on

    try:
        device = devices.current_device()
    except (DeviceError, MissingDependencyError) as error:
        return None, f"nothing was timed: {error}"
    architecture = str(getattr(target, "architecture", ""))
    if not runs_on(architecture, device.capability):
        return None, f"nothing was timed: {device.name} does not run code for {architecture}"
    return device, ""


def _by_number(problem: _Problem) -> tuple[dict[int, float], dict[int, str]]:
    """Microseconds (the geometric mean over sizes) and failures by the candidates' numbers."""
    numbers = {label: index for index, label in enumerate(problem.labels)}
    failures = {
        numbers[label]: text for timing in problem.times for label, text in timing.failures.items() if label in numbers
    }
    microseconds = {}
    for label, index in numbers.items():
        values = [timing.microseconds[label] for timing in problem.times if label in timing.microseconds]
        if index not in failures and values and len(values) == len(problem.times):
            microseconds[index] = math.exp(sum(math.log(max(value, 1e-3)) for value in values) / len(values))
    return microseconds, failures


def _anywhere(operand: Operand) -> BufferReference:
    """A place for each tensor, apart from the others'."""
    value = operand.value if isinstance(operand, PackedConstant) else operand
    assert isinstance(value, Value)
    return BufferReference("weight" if isinstance(operand, PackedConstant) else "input", value.name)


def _signature(call: KernelCall) -> str:
    """Equal texts compile to the same kernel, as far as can be told without tracing."""
    constants = sorted((name, _constant_text(value)) for name, value in call.constants.items())
    operands = sorted((name, _operand_text(operand)) for name, operand in call.operands.items())
    return repr((id(call.kernel), constants, operands, sorted(call.types.items()), sorted(call.options.items())))


def _constant_text(value: Any) -> str:
    """Functions go by identity: those of equal sources are the same object (`library.generated.generate`)."""
    if isinstance(value, (tuple, list)):
        return f"({', '.join(map(_constant_text, value))})"
    return f"function {id(value)}" if isinstance(value, SourceFunction) else repr(value)


def _operand_text(operand: Operand) -> str:
    value = getattr(operand, "value", operand)
    value = getattr(value, "value", value)
    block = getattr(operand, "block", "")
    return f"{value.dtype} {block}" if isinstance(value, Value) else "size"


def _shape(shape: Sequence[Size]) -> str:
    return f"[{','.join(map(str, shape))}]"


def _sizes_text(sizes: Mapping[str, int]) -> str:
    return "".join(f" {name}={value}" for name, value in sizes.items())
