"""Launchers and tuners that programs derive from Triton's classes."""

# mypy: ignore-errors

from __future__ import annotations

import numpy as np

import tilewright
import tilewright.language as tl
from tilewright.launch.autotune import Autotuner, Config
from tilewright.launch.wrappers import MockTensor
from tilewright.shim.interface import KernelInterface


@tilewright.jit
def scale(x, out, n, FACTOR: tl.constexpr, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(out + i, tl.load(x + i, mask=i < n) * FACTOR, mask=i < n)


class Counting(KernelInterface[int]):
    """A launcher around a kernel that notes what it is called with."""

    def __init__(self, fn):
        self.fn = fn
        self.calls = []

    def run(self, *arguments, grid, warmup, **keywords):
        self.calls.append((grid, warmup))
        return self.fn.run(*arguments, grid=grid, warmup=warmup, **keywords)


def test_a_launcher_of_ones_own(rng: np.random.Generator) -> None:
    counting = Counting(scale)
    x = rng.normal(size=10).astype(np.float32)
    out = np.zeros_like(x)
    counting[(1,)](x, out, 10, FACTOR=3, BLOCK=16)
    np.testing.assert_array_equal(out, 3 * x)
    counting.warmup(np.dtype("float32"), x, 10, FACTOR=3, BLOCK=16, grid=(2,))
    assert counting.calls == [((1,), False), ((2,), True)]
    assert isinstance(counting, KernelInterface) and isinstance(scale, KernelInterface)
    assert isinstance(tilewright.autotune([Config({})], key=[])(scale), KernelInterface)
    assert isinstance(MockTensor.wrap_dtype(np.dtype("int8")), MockTensor)


class Remembering(Autotuner):
    """A tuner that puts a choice of its own into the cache, and hooks of its own in the place of the default ones."""

    def __init__(self, fn, arg_names, configs, key, reset_to_zero, restore_value, **keywords):
        super().__init__(fn, arg_names, configs, key, reset_to_zero, restore_value, **keywords)
        self.seen = []
        if not self.user_defined_pre_hook and (self.reset_to_zero or self.restore_value):
            self.pre_hook = lambda named, reset_only=False: self.seen.append(sorted(self.reset_to_zero))

    def run(self, *arguments, **keywords):
        self.cache[tuple([arguments[2], "float32", "float32"])] = self.configs[1]
        return super().run(*arguments, **keywords)


def test_a_tuner_of_ones_own(rng: np.random.Generator) -> None:
    configs = [Config({"BLOCK": 16}), Config({"BLOCK": 32})]
    tuner = Remembering(scale, scale.arg_names, configs, ["n"], ["out"], None, cache_results=False)
    assert not tuner.user_defined_post_hook and tuner.restore_value == [] and tuner.configs_top_k == 1.0
    x = rng.normal(size=40).astype(np.float32)
    out = np.zeros_like(x)
    tuner[lambda meta: (tilewright.cdiv(40, meta["BLOCK"]),)](x, out, 40, FACTOR=2)
    np.testing.assert_array_equal(out, 2 * x)
    assert tuner.best_config is configs[1] and tuner.seen == []


class Choosing(Autotuner):
    """A tuner with a loop of its own around Triton's steps: `nargs`, `prune_configs`, `_bench`."""

    def run(self, *arguments, **keywords):
        self.nargs = dict(zip(self.arg_names, arguments, strict=False))
        self.times = {
            config: self._bench(*arguments, config=config, **keywords) for config in self.prune_configs(keywords)
        }
        self.best_config = min(self.times, key=lambda config: self.times[config][0])
        return self.fn.run(*arguments, **keywords, **self.best_config.all_kwargs())


def test_a_tuner_with_a_loop_of_its_own(rng: np.random.Generator) -> None:
    configs = [Config({"BLOCK": size}) for size in (1 << 21, 64, 128)]  # the first is larger than a block may be

    def large(configs, named, **rest):
        return [entry for entry in configs if entry.kwargs["BLOCK"] >= named["n"]]

    prune = {"early_config_prune": large}
    tuner = Choosing(scale, scale.arg_names, configs, ["n"], prune_configs_by=prune, warmup=1, rep=1)
    x = rng.normal(size=100).astype(np.float32)
    out = np.zeros_like(x)
    tuner[(1,)](x, out, 100, FACTOR=2)
    np.testing.assert_array_equal(out, 2 * x)
    assert list(tuner.times) == [configs[0], configs[2]] and tuner.times[configs[0]][0] == float("inf")
    assert tuner.best_config is configs[2]
