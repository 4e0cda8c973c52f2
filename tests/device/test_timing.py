"""Calls are timed by the GPU's clock; configurations are chosen by it."""

from __future__ import annotations

import time
from typing import Any

import pytest

import tilewright
import tilewright.language as tl
from tilewright.testing import do_bench, do_bench_cudagraph


def test_the_time_is_the_gpus(torch: Any) -> None:
    x = torch.empty(64 << 20, dtype=torch.int8, device="cuda")
    cycles = 4_000_000  # some 2 to 4 ms
    torch.cuda.synchronize()
    median = do_bench(lambda: torch.cuda._sleep(cycles), return_mode="median")
    assert 1 < median < 20
    fill = do_bench(lambda: x.zero_(), return_mode="median")
    assert 0.01 < fill < median
    replayed = do_bench_cudagraph(lambda: x.zero_(), return_mode="median")
    assert 0.005 < replayed < 2 * fill


def test_work_of_the_host_is_timed_by_the_host(torch: Any) -> None:
    torch.zeros(1, device="cuda")
    # Events are stamped by the GPU's clock, which a busy GPU does up to a millisecond after the sleep has begun.
    assert do_bench(lambda: time.sleep(0.01), rep=40, return_mode="median") >= 8
    values = list(range(1000))
    assert 0.001 < do_bench(lambda: sum(values), rep=5, return_mode="median") < 0.5


@pytest.mark.parametrize("graphs", [False, True])
def test_configurations_are_chosen_on_the_gpu(torch: Any, graphs: bool) -> None:
    @tilewright.autotune(
        [tilewright.Config({"BLOCK": block}, num_warps=warps) for block, warps in ((64, 1), (4096, 8))],
        key=["count"],
        use_cuda_graph=graphs,
    )
    @tilewright.jit
    def copy(x, result, count, BLOCK: tl.constexpr):
        index = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
        tl.store(result + index, tl.load(x + index, mask=index < count), mask=index < count)

    x = torch.randn(32 << 20, device="cuda")
    result = torch.empty_like(x)
    copy[lambda meta: (tilewright.cdiv(x.numel(), meta["BLOCK"]),)](x, result, x.numel())
    assert torch.equal(x, result)
    assert copy.best_config.kwargs["BLOCK"] == 4096
