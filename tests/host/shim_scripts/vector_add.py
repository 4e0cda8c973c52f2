"""Adds two vectors, as a Triton program would; run by test_shim.py."""

import sys

import torch
import triton
import triton.language as tl

DEVICE = triton.runtime.driver.active.get_active_torch_device()


@triton.jit
def sum_kernel(left, right, result, count, BLOCK: tl.constexpr):
    where = tl.program_id(axis=0) * BLOCK + tl.arange(0, BLOCK)
    inside = where < count
    tl.store(result + where, tl.load(left + where, mask=inside) + tl.load(right + where, mask=inside), mask=inside)


def total(left, right):
    result = torch.empty_like(left)
    sum_kernel[lambda meta: (triton.cdiv(left.numel(), meta["BLOCK"]),)](left, right, result, left.numel(), BLOCK=1024)
    return result


@triton.testing.perf_report(
    triton.testing.Benchmark(["size"], [64], "provider", ["triton"], ["Triton"], "vectors", {}, ylabel="ms")
)
def table(size, provider):
    x = torch.rand(size, device=DEVICE)
    return triton.testing.do_bench(lambda: total(x, x), warmup=1, rep=1, quantiles=[0.5, 0.2, 0.8])


if __name__ == "__main__":
    size = int(sys.argv[1])
    a, b = torch.rand(size, device=DEVICE), torch.rand(size, device=DEVICE)
    triton.testing.assert_close(total(a, b), a + b, atol=0)
    table.run(print_data=True, show_plots=True)
    print("vector add agrees")
