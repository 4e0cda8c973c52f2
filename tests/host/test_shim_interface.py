"""Launchers and tuners that programs derive from Triton's classes."""

# mypy: ignore-errors

from __future__ import annotations

import numpy as np

import tilewright
import tilewright.language as tl
from tilewright.frontend.autotune import Autotuner, Config
from tilewright.frontend.wrappers import MockTensor
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
