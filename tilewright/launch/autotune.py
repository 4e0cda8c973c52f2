"""`@autotune`: chooses the fastest of several configs of a kernel, timed once for each key.

@tilewright.autotune([Config({"BLOCK": 256}), Config({"BLOCK": 1024})], key=["n"])
@tilewright.jit
def kernel(x, n, BLOCK: tl.constexpr): ...

kernel[grid](x, n)                   # measures, then launches the best; the next launch with this n just launches
kernel.best_config, kernel.configs_timings, kernel.failures

Times are kept on disk for each configuration alone: adding one measures one.
"""

from __future__ import annotations

import hashlib
import logging
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np

from tilewright.errors import AutotunerError, CompilationError, OutOfResources, user_errors
from tilewright.language.function import describe
from tilewright.language.types import unwrap
from tilewright.launch import hooks
from tilewright.launch.arguments import place_of
from tilewright.launch.heuristics import Heuristics, KernelWrapper
from tilewright.launch.jit import JITFunction
from tilewright.launch.launchers import device_launching
from tilewright.measure.choosing import Measured, Records, TuningProblem, ranked
from tilewright.measure.keys import device_name, problem_key
from tilewright.measure.record import is_time
from tilewright.measure.timers import call_times, graph_call_times, quantiles_of
from tilewright.runtime.cuda import device as devices
from tilewright.settings import settings
from tilewright.targets.base import Target
from tilewright.targets.registry import get_target

logger = logging.getLogger("tilewright.autotune")

QUANTILES = (0.5, 0.2, 0.8)  # of the times of one configuration; the first decides
_PLAIN = frozenset((int, float, bool, str, type(None)))
_FAILED = [float("inf")] * len(QUANTILES)
Hook = Callable[..., Any]


class Config:
    """One config: values of compile-time parameters, and launch options.

    `pre_hook` is called with the dict of all arguments before each launch with this config.  `ir_override` names a file
    with Tile IR to compile instead of the kernel's source.  Two configs with the same values and hook are equal.
    """

    def __init__(
        self,
        kwargs: Mapping[str, Any],
        num_warps: int = 4,
        num_stages: int = 3,
        num_ctas: int = 1,
        maxnreg: int | None = None,
        pre_hook: Hook | None = None,
        ir_override: str | None = None,
    ) -> None:
        self.kwargs = dict(kwargs)
        self.num_warps = num_warps
        self.num_stages = num_stages
        self.num_ctas = num_ctas
        self.maxnreg = maxnreg
        self.pre_hook = pre_hook
        self.ir_override = ir_override

    def all_kwargs(self) -> dict[str, Any]:
        """Parameters and launch options together; options that are None are left out."""
        names = ("num_warps", "num_stages", "num_ctas", "maxnreg", "ir_override")
        options = {name: getattr(self, name) for name in names if getattr(self, name) is not None}
        return {**self.kwargs, **options}

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Config) and self._identity() == other._identity()

    def __hash__(self) -> int:
        return hash(self._identity())

    def _identity(self) -> tuple[Any, ...]:
        return (*sorted(self.all_kwargs().items(), key=lambda item: item[0]), self.pre_hook)

    def __setstate__(self, state: Mapping[str, Any]) -> None:
        self.__init__(**{"kwargs": {}, **state})  # type: ignore[misc]

    def __str__(self) -> str:
        return ", ".join(f"{name}: {value}" for name, value in self.all_kwargs().items())

    def __repr__(self) -> str:
        return f"Config({', '.join(f'{name}: {value}' for name, value in self.all_kwargs().items())})"


class Autotuner(KernelWrapper):
    """A kernel that chooses among configurations; see `autotune`.

    `cache` maps tuning keys to configurations; `best_config` is the last one launched, `configs_timings` the
    last measurement ([median, 20%, 80%] milliseconds, infinite for what failed), `failures` what each failed
    configuration raised, `bench_time` the seconds that measuring took.
    """

    def __init__(
        self,
        fn: JITFunction | KernelWrapper,
        arg_names: Sequence[str] | None,  # Triton's place for them; the kernel's own count
        configs: Sequence[Config],
        key: Sequence[str],
        reset_to_zero: Sequence[str] | None = None,
        restore_value: Sequence[str] | None = None,
        pre_hook: Hook | None = None,
        post_hook: Hook | None = None,
        prune_configs_by: Mapping[str, Any] | None = None,
        warmup: float | None = None,
        rep: float | None = None,
        use_cuda_graph: bool = False,
        do_bench: Callable[..., Any] | None = None,
        cache_results: bool | None = None,
    ) -> None:
        super().__init__(fn)
        self.configs = list(configs) or [Config({})]
        self._chosen = {name for config in self.configs for name in config.all_kwargs()}
        self.keys = list(key)
        self._known: dict[tuple[Any, ...], tuple[Any, ...]] = {}  # quick keys -> keys
        self.reset_to_zero, self.restore_value = list(reset_to_zero or ()), list(restore_value or ())
        self._check_names()
        known = [name for name in self.keys if name in self.argument_names]
        self._places = [(name, self.argument_names.index(name)) for name in known]
        self.pre_hook = pre_hook or self._prepare_arguments
        self.post_hook = post_hook or self._restore_arguments
        self.user_defined_pre_hook, self.user_defined_post_hook = pre_hook is not None, post_hook is not None
        prune = dict(prune_configs_by or {})
        self.early_config_prune: Hook | None = prune.pop("early_config_prune", None)
        self.perf_model: Hook | None = prune.pop("perf_model", None)
        self.configs_top_k: int | float = prune.pop("top_k", 1.0)
        if prune:
            raise ValueError(f"prune_configs_by does not know {', '.join(prune)}")
        self.num_warmups, self.num_reps = 25 if warmup is None else warmup, 100 if rep is None else rep
        self.use_cuda_graph = use_cuda_graph
        self._measure = do_bench
        self.cache_results = cache_results
        self.cache: dict[tuple[Any, ...], Config] = {}
        self.best_config: Config | None = None
        self.configs_timings: dict[Config, Any] = {}
        self.failures: dict[Config, Exception] = {}
        self.bench_time = 0.0
        self.restore_copies: dict[str, Any] = {}
        self.nargs: dict[str, Any] | None = None  # classes derived from this one name positional arguments here

    def _check_names(self) -> None:
        given = {"key": self.keys, "reset_to_zero": self.reset_to_zero, "restore_value": self.restore_value}
        for option, names in given.items():
            unknown = [name for name in names if name not in self.argument_names]
            if not unknown:
                continue
            message = (
                f"autotune({option}=…) names {', '.join(map(repr, unknown))}: kernel '{self.name}' has only the "
                f"parameters {', '.join(self.argument_names)}"
            )
            if option != "key":
                raise ValueError(message)
            logger.warning("%s; the other names make the key", message)  # as in Triton, where published kernels do it

    # Launching

    def run(self, *arguments: Any, grid: Any, warmup: bool = False, **keywords: Any) -> Any:
        """Launch with the best configuration, which is measured when the key is new."""
        if warmup:
            return self.warmup(*arguments, grid=grid, **keywords)
        with user_errors:
            config = self.best_config = self._choose(grid, arguments, keywords)
            options = config.all_kwargs()
            if config.pre_hook is not None:
                config.pre_hook({**self.named(arguments, keywords), **options})
            return self.fn[grid](*arguments, **keywords, **options)

    def _choose(self, grid: Any, arguments: tuple[Any, ...], keywords: dict[str, Any]) -> Config:
        """The configuration for these arguments, measured when their key is new."""
        if len(self.configs) > 1:
            quick = self._quick_key(arguments, keywords)
            if quick is not None and quick in self._known:
                key = self._known[quick]
                if key in self.cache:
                    return self.cache[key]
        named = self.named(arguments, keywords)
        self._check_conflicts(named)
        if len(self.configs) == 1:
            return self.configs[0]
        key = self._key(named)
        if key not in self.cache:
            self.cache[key] = self._tune(key, grid, arguments, keywords)
        if quick is not None:
            self._known[quick] = key
        return self.cache[key]

    def _quick_key(self, arguments: tuple[Any, ...], keywords: dict[str, Any]) -> tuple[Any, ...] | None:
        """What `_key` depends on, found sooner; None where an argument of the key is no plain value."""
        count = len(arguments)
        values = [arguments[index] if index < count else keywords.get(name) for name, index in self._places]
        kinds = [type(value) for value in values]
        if not _PLAIN.issuperset(kinds):
            return None
        dtypes = [getattr(value, "dtype", None) for value in (*arguments, *keywords.values())]
        return (*values, *kinds, *keywords, *dtypes)

    def warmup(self, *arguments: Any, grid: Any = None, **keywords: Any) -> list[Any]:
        """Compile every configuration that pruning leaves, without running; returns the compiled kernels."""
        configs = self._pruned(self._positional(arguments), keywords)
        return [self.fn.warmup(*arguments, grid=grid, **keywords, **config.all_kwargs()) for config in configs]

    def _check_conflicts(self, named: Mapping[str, Any]) -> None:
        conflicting = sorted(self._chosen & named.keys())
        if conflicting:
            raise ValueError(
                f"kernel '{self.name}' was given {', '.join(conflicting)}, which its configurations set; leave it out"
            )

    def _key(self, named: Mapping[str, Any]) -> tuple[Any, ...]:
        """Values of the key arguments, then the dtype of every array, and the GPU that they are on, if any."""
        values = [named[name] for name, _ in self._places if name in named]
        present = [named[name] for name in self.argument_names if name in named]
        dtypes = [str(value.dtype) for value in present if hasattr(value, "dtype")]
        gpus = [str(value.device) for value in present if getattr(value, "is_cuda", False)]
        return (*values, *dtypes, *gpus[:1])

    def _positional(self, arguments: tuple[Any, ...]) -> dict[str, Any]:
        return dict(zip(self.argument_names, arguments, strict=False))

    def prune_configs(self, kwargs: Mapping[str, Any]) -> list[Config]:
        """What is left to measure for the positional arguments in `nargs` and for keywords."""
        return self._pruned(self.nargs or {}, kwargs)

    def _pruned(self, positional: dict[str, Any], keywords: Mapping[str, Any]) -> list[Config]:
        """What is left to measure after `early_config_prune`, then the `top_k` best of `perf_model`."""
        configs = list(self.configs)
        if self.early_config_prune is not None:
            configs = list(self.early_config_prune(configs, positional, **keywords))
            if not configs:
                raise AutotunerError(f"kernel '{self.name}': early_config_prune left no configuration")
        if self.perf_model is not None:
            count = self.configs_top_k
            if isinstance(count, float):
                if count > 1:
                    raise ValueError(f"top_k is a whole number, or a part of at most 1.0, got {count}")
                count = max(1, int(len(configs) * count))
            if len(configs) > count:
                named = {**positional, **keywords}
                expected = [self.perf_model(**{**named, **config.all_kwargs()}) for config in configs]
                configs = [configs[index] for index in ranked(expected, most=count)]
        return configs

    # Measuring

    def _tune(self, key: tuple[Any, ...], grid: Any, arguments: tuple[Any, ...], keywords: dict[str, Any]) -> Config:
        """The fastest configuration; raises `AutotunerError` with a table of why when all of them fail."""
        configs = self._pruned(self._positional(arguments), keywords)
        if len(configs) == 1:
            return configs[0]
        labels = self._labels(configs, arguments, keywords)
        records, problem = self._problem(key, labels, arguments, keywords)
        timings: dict[Config, Any] = {}
        self.failures = {}
        measured = False
        start = time.perf_counter()

        def measure(number: int, _key: str) -> Measured:
            """The times of a configuration that are not on record."""
            nonlocal measured
            config, nothing = configs[number], Measured({}, {}, "")
            if _recorded(problem, labels[number]) is not None:
                return nothing
            measured = True
            try:
                timings[config] = self._time(config, grid, arguments, keywords)
            except Exception as error:  # whatever one configuration does wrong, the others are still candidates
                timings[config], self.failures[config] = _FAILED, error
                return nothing
            values = [float(value) * 1e3 for value in np.atleast_1d(timings[config])]
            recordable = labels[number] is not None and all(map(is_time, values))
            return Measured({number: values[0]}, {}, "", {number: values}) if recordable else nothing

        records.look_up(problem)
        for number, config in enumerate(configs):
            if _recorded(problem, labels[number]) is None:
                records.time(problem, partial(measure, number))
            if config not in timings:
                timings[config] = _recorded(problem, labels[number])
        self.bench_time = time.perf_counter() - start
        self.configs_timings = timings
        if len(self.failures) == len(configs):
            first = next(iter(self.failures.values()))
            raise AutotunerError(
                f"kernel '{self.name}': no configuration runs\n{self._table()}"
            ) from first.with_traceback(None)
        if self.failures:
            logger.warning("kernel '%s': %d configurations failed\n%s", self.name, len(self.failures), self._table())
        best = configs[ranked([_median(timings[config]) for config in configs], most=1)[0]]
        if measured:
            self.pre_hook({**self.named(arguments, keywords), **best.all_kwargs()}, reset_only=True)
        self._report(key, best, measured)
        return best

    def _report(self, key: tuple[Any, ...], best: Config, measured: bool) -> None:
        """Say what was chosen: to the log, to whoever asked for prints, and to the listener."""
        found = f"{best} in {_median(self.configs_timings[best]):.4g} ms"
        logger.info("kernel '%s', key %s: %s", self.name, key, found)
        if settings.print_autotuning:
            how = f"measured {len(self.configs_timings)} configurations in {self.bench_time:.2f} s"
            how = how if measured else "on record"
            print(f"autotuned {self.name} for the key {key}: {found} ({how})")
        if hooks.tuning.listener is not None:
            hooks.tuning.listener(
                fn=self.kernel,
                key=key,
                best_config=best,
                configs_timings=self.configs_timings,
                duration=self.bench_time if measured else None,
                cache_hit=not measured,
            )

    def _bench(self, *arguments: Any, config: Config, grid: Any, warmup: bool = False, **keywords: Any) -> Any:
        """What classes derived from this one measure by; a configuration that the machine cannot run takes forever."""
        try:
            return self._time(config, grid, arguments, keywords)
        except (OutOfResources, CompilationError):
            return _FAILED

    def _time(self, config: Config, grid: Any, arguments: tuple[Any, ...], keywords: dict[str, Any]) -> Any:
        """Milliseconds of one configuration: its quantiles, or what the user's do_bench returns."""
        options = config.all_kwargs()
        named = {**self.named(arguments, keywords), **options}

        def call() -> None:
            if config.pre_hook is not None:
                config.pre_hook(named)
            self.pre_hook(named)
            try:
                self.fn[grid](*arguments, **keywords, **options)
            except Exception as error:
                self.post_hook(named, exception=error)
                raise
            self.post_hook(named, exception=None)

        if self._measure is not None:
            return self._measure(call, quantiles=QUANTILES)
        if self.use_cuda_graph:
            return quantiles_of(graph_call_times(call, self.num_reps), QUANTILES)
        return quantiles_of(call_times(call, self.num_warmups, self.num_reps), QUANTILES)

    def _table(self) -> str:
        """One line for each failed configuration: what it is and why."""
        rows = [(repr(config), f"{type(error).__name__}: {error}") for config, error in self.failures.items()]
        width = max(len(name) for name, _ in rows)
        return "\n".join(f"  {name:<{width}}  {next(iter(why.splitlines()), '')}" for name, why in rows)

    # On record

    def _problem(
        self,
        key: tuple[Any, ...],
        labels: Sequence[str | None],
        arguments: tuple[Any, ...],
        keywords: Mapping[str, Any],
    ) -> tuple[Records, TuningProblem]:
        """The times on record of the device, and the problem of a tuning key.

        `labels` tell configurations apart; those without one have times that are not put on record.
        """
        named = self.named(arguments, keywords)
        constants = {parameter.name for parameter in self.kernel.parameters if parameter.constexpr}
        target, device, address = _machine(value for name, value in named.items() if name not in constants)
        parts = (
            self.kernel.fingerprint(),
            describe(key, set()),
            sorted((name, describe(unwrap(named[name]), set())) for name in constants & named.keys()),
            (settings.threads, settings.interpret, self.reset_to_zero, self.restore_value, self.use_cuda_graph),
        )
        name, numbers = f"{self.name} {', '.join(map(str, key))}", range(len(labels))
        known = [f"configuration {number}" if label is None else label for number, label in enumerate(labels)]
        problem = TuningProblem({problem_key("autotune", target, (), *parts): name}, known, numbers, numbers)
        return Records(device, address=address), problem

    def _labels(
        self, configs: Sequence[Config], arguments: tuple[Any, ...], keywords: Mapping[str, Any]
    ) -> list[str | None]:
        """What tells configurations apart on record; None where nothing is to be reused, or where code that cannot be
        hashed takes part."""
        hooked = self.pre_hook != self._prepare_arguments or self.post_hook != self._restore_arguments
        trusted = not hooked and self._measure is None
        if settings.always_compile or not (trusted if self.cache_results is None else self.cache_results):
            return [None] * len(configs)
        return [self._label(config, arguments, keywords) for config in configs]

    def _label(self, config: Config, arguments: tuple[Any, ...], keywords: Mapping[str, Any]) -> str | None:
        """What tells a configuration from others on record; None where code that cannot be hashed takes part."""
        wrapped, filled = self.fn, {**keywords, **config.all_kwargs()}
        while isinstance(wrapped, Heuristics):
            filled, wrapped = wrapped.fill(arguments, filled), wrapped.fn
        if isinstance(wrapped, KernelWrapper) or config.pre_hook is not None or config.ir_override is not None:
            return None
        given = object()
        own = {name: value for name, value in filled.items() if value is not keywords.get(name, given)}
        return ", ".join(f"{name}: {_text(value)}" for name, value in own.items())

    # The default hooks

    def _prepare_arguments(self, named: Mapping[str, Any], reset_only: bool = False) -> None:
        for name in self.reset_to_zero:
            if named[name] is not None:
                _fill_zero(named[name])
        if not reset_only:
            self.restore_copies = {name: _copy(named[name]) for name in self.restore_value if named[name] is not None}

    def _restore_arguments(self, named: Mapping[str, Any], exception: Exception | None = None) -> None:
        for name, value in self.restore_copies.items():
            _assign(named[name], value)
        self.restore_copies = {}


def _recorded(problem: TuningProblem, label: str | None) -> list[float] | None:
    """Milliseconds of a configuration, the quantiles that were measured; None where none are on record."""
    found = (timing.quantiles.get(label) for timing in problem.times) if label is not None else ()
    return next(([value / 1e3 for value in values] for values in found if values), None)


def _machine(values: Iterable[Any]) -> tuple[Target, str, str]:
    """The target that a kernel called with these arguments is compiled for, the name of the device, and its address."""
    place = place_of(values)
    if place is None:
        target = get_target("cpu")
        return target, target.description, ""
    gpu = devices.device(place.ordinal)
    return device_launching(place.family).target_of(place.ordinal), device_name(gpu), gpu.address


def _text(value: Any) -> str:
    """A value of a configuration, or a digest where it is long: functions by their source."""
    text = repr(value) if type(value) in _PLAIN else describe(unwrap(value), set())
    return text if len(text) <= 60 else hashlib.sha256(text.encode()).hexdigest()[:16]


def _median(timing: Any) -> float:
    return float(timing[0] if isinstance(timing, (list, tuple)) else timing)


def _fill_zero(array: Any) -> None:
    if hasattr(array, "zero_"):
        array.zero_()
    else:
        np.asarray(array)[...] = 0


def _copy(array: Any) -> Any:
    return array.clone() if hasattr(array, "clone") else np.array(array)


def _assign(array: Any, value: Any) -> None:
    if hasattr(array, "copy_"):
        array.copy_(value)
    else:
        np.asarray(array)[...] = value


def autotune(
    configs: Sequence[Config],
    key: Sequence[str],
    prune_configs_by: Mapping[str, Any] | None = None,
    reset_to_zero: Sequence[str] | None = None,
    restore_value: Sequence[str] | None = None,
    pre_hook: Hook | None = None,
    post_hook: Hook | None = None,
    warmup: float | None = None,
    rep: float | None = None,
    use_cuda_graph: bool = False,
    do_bench: Callable[..., Any] | None = None,
    cache_results: bool | None = None,
) -> Callable[[Any], Autotuner]:
    """Decorator: launch a kernel with the fastest of `configs`, timed once for each tuning key.

    `key`: arguments whose values, with the dtypes of all arrays, make the tuning key.  Names that are no parameters are
    left out, with a warning.
    `prune_configs_by`: dict of ``early_config_prune(configs, named_arguments, **keywords)`` and
    ``perf_model(**all)`` with ``top_k`` (a number, or a part of at most 1.0).
    `reset_to_zero`, `restore_value`: arrays zeroed before, or put back after, each measured run.
    `pre_hook(arguments, reset_only=False)` and `post_hook(arguments, exception)` take the place of these two.
    `warmup`, `rep`: milliseconds (25, 100).  `do_bench(call, quantiles)` measures instead.
    `use_cuda_graph` measures by `testing.do_bench_cudagraph`.  `cache_results=False` keeps no times on disk, True keeps
    also those that depend on the hooks or the `do_bench` given here, which are not kept otherwise.

    Launches raise `AutotunerError` when every configuration fails.  Raises `ValueError` for unknown names of arrays.
    """
    return lambda fn: Autotuner(
        fn, None, configs, key, reset_to_zero, restore_value, pre_hook, post_hook, prune_configs_by, warmup, rep,
        use_cuda_graph, do_bench, cache_results,
    )  # fmt: skip
