"""`autotune`, `Config` and `heuristics`: what is measured, chosen, kept and reported."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import tilewright
import tilewright.language as tl
from tilewright import Config
from tilewright.errors import AutotunerError
from tilewright.launch.autotune import Autotuner
from tilewright.measure.record import FILE_NAME, TimingCache
from tilewright.runtime import safe_files
from tilewright.settings import settings
from tilewright.targets.registry import get_target

BLOCKS = [Config({"BLOCK": 64}), Config({"BLOCK": 128}), Config({"BLOCK": 256})]


@pytest.fixture(autouse=True)
def fresh_cache(tmp_path: Path) -> Iterator[None]:
    with settings.scope(cache_directory=tmp_path):
        yield


@tilewright.jit
def increment(x, n, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(x + i, tl.load(x + i, mask=i < n) + 1, mask=i < n)


@tilewright.jit
def picky(x, n, BLOCK: tl.constexpr):
    tl.static_assert(BLOCK != 128, "128 is not for us")
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(x + i, 7.0, mask=i < n)


@tilewright.jit
def flagged(x, n, BLOCK: tl.constexpr, EVEN: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(x + i, 2.0 if EVEN else 3.0, mask=i < n)


def grid(meta: dict[str, Any]) -> tuple[int]:
    return (tilewright.cdiv(meta["n"], meta["BLOCK"]),)


class Recorder:
    """A `do_bench` that runs each configuration once and says that the order in `times` holds."""

    def __init__(self, times: list[float]) -> None:
        self.times = iter(times)
        self.calls = 0

    def __call__(self, call: Callable[[], None], quantiles: tuple[float, ...]) -> list[float]:
        self.calls += 1
        call()
        return [next(self.times)] * len(quantiles)


def tuned(kernel: Any = increment, **options: Any) -> Autotuner:
    given: dict[str, Any] = {"configs": BLOCKS, "key": ["n"], "warmup": 0.1, "rep": 0.1, **options}
    return tilewright.autotune(**given)(kernel)


def test_chooses_the_fastest_once_for_each_key() -> None:
    bench = Recorder([3, 1, 2, 1, 2, 3, 5, 5, 4])
    kernel = tuned(do_bench=bench, restore_value=["x"])
    x = np.zeros(300, np.float32)
    for expected in (1, 2):
        kernel[grid](x, 300)
        assert np.all(x == expected)
        assert kernel.best_config is BLOCKS[1]
    assert bench.calls == 3 and list(kernel.configs_timings) == BLOCKS
    kernel[grid](x, n=200)
    assert kernel.best_config is BLOCKS[0] and bench.calls == 6
    kernel[grid](np.zeros(300, np.float64), 300)  # another dtype is another key
    assert kernel.best_config is BLOCKS[2] and bench.calls == 9
    assert set(kernel.cache) == {(300, "float32"), (200, "float32"), (300, "float64")}


def test_one_configuration_is_not_measured() -> None:
    kernel = tuned(configs=BLOCKS[:1], do_bench=Recorder([]))
    x = np.zeros(10, np.float32)
    kernel[grid](x, 10)
    assert np.all(x == 1) and kernel.best_config is BLOCKS[0]


def test_times_are_kept_for_each_configuration() -> None:
    x = np.zeros(300, np.float32)
    first = tuned(configs=BLOCKS[:2])
    first[grid](x, 300)
    assert not first.failures
    again = tuned(configs=BLOCKS)
    bench_calls: list[Config] = []
    measure = again._time
    again._time = lambda config, *rest: (bench_calls.append(config), measure(config, *rest))[1]  # type: ignore
    again[grid](x, 300)
    assert bench_calls == BLOCKS[2:]
    for config in BLOCKS[:2]:
        assert again.configs_timings[config] == pytest.approx(first.configs_timings[config], rel=1e-12)


@pytest.mark.parametrize("options", [{"cache_results": False}, {"pre_hook": lambda arguments, reset_only=False: None}])
def test_times_that_cannot_be_trusted_are_not_kept(options: dict[str, Any]) -> None:
    tuned(**options)[grid](np.zeros(64, np.float32), 64)
    assert not list(TimingCache.of_settings())


def test_times_are_on_record_with_those_of_engines(tmp_path: Path) -> None:
    x = np.zeros(64, np.float32)
    kernel = tuned(tilewright.heuristics({"EVEN": lambda args: args["n"] % args["BLOCK"] == 0})(flagged))
    kernel[grid](x, 64)
    (timing,) = TimingCache.read(tmp_path / FILE_NAME)
    labels = [
        f"BLOCK: {block}, num_warps: 4, num_stages: 3, num_ctas: 1, EVEN: {block == 64}" for block in (64, 128, 256)
    ]
    assert timing.microseconds.keys() == set(labels) and not timing.failures
    assert timing.problem == "flagged 64, float32" and timing.device == get_target("cpu").description
    for config, label in zip(BLOCKS, labels, strict=True):
        assert timing.quantiles[label] == pytest.approx([1e3 * each for each in kernel.configs_timings[config]])


@tilewright.jit
def applied(x, n, BLOCK: tl.constexpr, FUNCTION: tl.constexpr, TYPE: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(x + i, FUNCTION(tl.load(x + i, mask=i < n)).to(TYPE), mask=i < n)


@tilewright.jit
def doubled(x):
    return x + x


@tilewright.jit
def halved(x):
    return x * 0.5


def test_times_depend_on_every_value_that_kernels_are_made_of() -> None:
    """Of configurations and of the call."""

    def measured(configs: list[Config], **keywords: Any) -> int:
        kernel = tuned(applied, configs=configs)
        time, calls = kernel._time, []
        kernel._time = lambda config, *rest: (calls.append(config), time(config, *rest))[1]  # type: ignore
        kernel[grid](np.zeros(64, np.float32), 64, **keywords)
        return len(calls)

    def configs(function: Any, kind: Any = tl.float32) -> list[Config]:
        return [Config({"BLOCK": block, "FUNCTION": function, "TYPE": kind}) for block in (64, 128)]

    assert [measured(configs(each)) for each in (doubled, doubled, halved, halved)] == [2, 0, 2, 0]
    assert [measured(configs(doubled, kind)) for kind in (tl.float16, tl.float32)] == [2, 0]
    blocks = [Config({"BLOCK": block}) for block in (64, 128)]
    assert [measured(blocks, FUNCTION=each, TYPE=tl.float32) for each in (doubled, halved, doubled)] == [2, 2, 0]


def test_a_damaged_line_is_measured_again(tmp_path: Path) -> None:
    x = np.zeros(64, np.float32)
    tuned()[grid](x, 64)
    path = tmp_path / FILE_NAME
    lines = path.read_bytes().splitlines(keepends=True)
    assert len(lines) == 3
    path.write_bytes(lines[0] + lines[1][:-9] + b"\n" + lines[2])
    tuned()[grid](x, 64)
    assert len(path.read_bytes().splitlines()) == 4


def test_nothing_else_is_timed_on_the_device_meanwhile(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each configuration is measured with the lock that engines and operations time with; what it times itself does not
    wait for it."""
    held, seen = list[Path](), list[int]()

    @contextmanager
    def exclusive(path: Path) -> Iterator[None]:
        assert path not in held, "it would wait for itself"
        held.append(path)
        yield
        held.remove(path)

    monkeypatch.setattr(safe_files, "exclusive", exclusive)
    inner = tuned(flagged, configs=[Config({"BLOCK": block, "EVEN": True}) for block in (64, 128)])

    def bench(call: Callable[[], None], quantiles: tuple[float, ...]) -> list[float]:
        seen.append(len(held))
        inner[grid](np.zeros(64, np.float32), 64)
        return [1.0] * len(quantiles)

    tuned(do_bench=bench)[grid](np.zeros(64, np.float32), 64)
    assert seen == [1, 1, 1] and not held and len(inner.configs_timings) == 2


@pytest.mark.parametrize("times", [0.25, [0.25], [0.25, 0.1, 0.5]])
def test_times_of_a_users_own_are_on_record_on_request(times: Any) -> None:
    for _ in range(2):
        kernel = tuned(do_bench=lambda call, quantiles: times, cache_results=True)
        kernel[grid](np.zeros(64, np.float32), 64)
        assert kernel.best_config is BLOCKS[0]
    assert list(kernel.configs_timings.values()) == [[times] if isinstance(times, float) else times] * 3
    assert len(list(TimingCache.of_settings())) == 1
    endless = tuned(do_bench=lambda call, quantiles: float("inf"), cache_results=True, key=[])
    endless[grid](np.zeros(64, np.float32), 64)
    assert len(list(TimingCache.of_settings())) == 1


def test_a_failing_configuration_is_left_out(caplog: pytest.LogCaptureFixture) -> None:
    kernel = tuned(picky)
    x = np.zeros(100, np.float32)
    with caplog.at_level(logging.WARNING, "tilewright.autotune"):
        kernel[grid](x, 100)
    assert np.all(x == 7) and list(kernel.failures) == [BLOCKS[1]]
    assert kernel.configs_timings[BLOCKS[1]][0] == float("inf")
    assert "BLOCK: 128" in caplog.text and "128 is not for us" in caplog.text


def test_all_failing_is_an_error_with_a_table() -> None:
    kernel = tuned(picky, configs=[Config({"BLOCK": 128}), Config({"BLOCK": 128, "WIDTH": 3})])
    with pytest.raises(AutotunerError, match="(?s)BLOCK: 128.*128 is not for us.*WIDTH: 3.*WIDTH"):
        kernel[grid](np.zeros(4, np.float32), 4)


def test_hooks_and_arguments_that_are_reset() -> None:
    x = np.full(100, 5, np.float32)
    tuned(reset_to_zero=["x"], cache_results=False)[grid](x, 100)
    assert np.all(x == 1)
    events: list[Any] = []
    configs = [Config({"BLOCK": 64}, pre_hook=lambda arguments: events.append(arguments["BLOCK"])), BLOCKS[1]]
    kernel = tuned(
        configs=configs,
        pre_hook=lambda arguments, reset_only=False: events.append(("pre", reset_only)),
        post_hook=lambda arguments, exception: events.append(("post", exception)),
        do_bench=Recorder([1, 2]),
    )
    kernel[grid](x, 100)
    once = [("pre", False), ("post", None)]
    assert events == [64, *once, *once, ("pre", True), 64]


def test_restores_torch_tensors() -> None:
    torch = pytest.importorskip("torch")
    x = torch.full((100,), 5.0)
    tuned(restore_value=["x"])[grid](x, 100)
    assert bool((x == 6).all())


def test_pruning() -> None:
    seen: list[Any] = []

    def early(configs: list[Config], named: dict[str, Any], **keywords: Any) -> list[Config]:
        seen.append((named["n"], keywords))
        return configs[1:]

    prune = {"early_config_prune": early, "perf_model": lambda n, BLOCK, **rest: -BLOCK * n, "top_k": 1}
    kernel = tuned(prune_configs_by=prune, do_bench=Recorder([]))  # one is left: nothing is measured
    kernel[grid](np.zeros(9, np.float32), 9, debug=False)
    assert seen == [(9, {"debug": False})] and kernel.best_config is BLOCKS[2]
    part = tuned(prune_configs_by={"perf_model": lambda BLOCK, **rest: BLOCK, "top_k": 0.7})
    part.nargs = {"n": 9}
    assert part.prune_configs({}) == BLOCKS[:2]
    nothing = tuned(prune_configs_by={"early_config_prune": lambda configs, named: []})
    with pytest.raises(AutotunerError, match="left no configuration"):
        nothing[grid](np.zeros(9, np.float32), 9)


def test_keys_that_are_no_parameters_are_left_out(caplog: pytest.LogCaptureFixture) -> None:
    """Published kernels name what they no longer have."""
    kernel = tuned(key=["n", "wrong"], do_bench=Recorder([3.0, 2.0, 1.0] * 2))
    assert "'wrong'" in caplog.text and kernel.keys == ["n", "wrong"]
    x = np.zeros(300, np.float32)
    for n in (300, 300, 200):
        kernel[grid](x, n)
    assert [key[0] for key in kernel.cache] == [300, 200]


@pytest.mark.parametrize("option", ["reset_to_zero", "restore_value"])
def test_unknown_names(option: str) -> None:
    with pytest.raises(ValueError, match=rf"{option}=.*'wrong'.*x, n, BLOCK"):
        tuned(**{option: ["wrong"]})


def test_other_mistakes() -> None:
    with pytest.raises(ValueError, match="BLOCK, which its configurations set"):
        tuned()[grid](np.zeros(4, np.float32), 4, BLOCK=64)
    with pytest.raises(ValueError, match="does not know speed"):
        tuned(prune_configs_by={"speed": 1})
    with pytest.raises(ValueError, match="at most 1.0"):
        tuned(prune_configs_by={"perf_model": len, "top_k": 1.5}).prune_configs({})
    with pytest.raises(TypeError, match="a kernel is needed"):
        tuned(len)
    with pytest.raises(TypeError, match="needs a grid"):
        tuned()(1)


def test_heuristics_alone_and_below_autotune() -> None:
    values = {"EVEN": lambda arguments: arguments["n"] % arguments["BLOCK"] == 0}
    plain = tilewright.heuristics(values)(flagged)
    x = np.zeros(128, np.float32)
    plain[grid](x, 128, BLOCK=64)
    assert np.all(x == 2)
    plain[grid](x, 127, BLOCK=64)
    assert np.all(x[:127] == 3)
    kernel = tuned(plain)
    kernel[grid](x, 128)
    assert np.all(x == (2 if kernel.best_config.kwargs["BLOCK"] != 256 else 3))
    assert kernel.base_fn is flagged.function and kernel.kernel is flagged
    assert kernel.fn is plain and kernel.arg_names[0] == "x"
    with pytest.raises(ValueError, match="'wrong'.*x, n, BLOCK, EVEN"):
        tilewright.heuristics({"wrong": len})(flagged)
    x[:] = 0
    warps = {**values, "num_warps": lambda arguments: arguments["BLOCK"] // 32}
    tilewright.heuristics(warps)(flagged)[grid](x, 128, BLOCK=64)
    assert np.all(x == 2)


def test_warmup_compiles_every_configuration() -> None:
    x = np.zeros(128, np.float32)
    compiled = tuned().warmup(x, 128, grid=(1,))
    assert len(compiled) == 3 and np.all(x == 0)
    assert tilewright.heuristics({"EVEN": lambda _: True})(flagged).warmup(x, 128, BLOCK=64) is not None
