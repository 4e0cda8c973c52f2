"""Softmax over persistent programs, an autotuned product and a layer norm with a lock; run by test_shim.py."""

import torch
import triton
import triton.language as tl
from triton.language.extra import libdevice
from triton.runtime import driver

DEVICE = driver.active.get_active_torch_device()
TARGET = driver.active.get_current_target()
PROPERTIES = driver.active.utils.get_device_properties(driver.active.get_current_device())


@triton.jit
def softmax_rows(out, x, x_stride, out_stride, rows, columns, BLOCK: tl.constexpr, num_stages: tl.constexpr):
    for row in tl.range(tl.program_id(0), rows, tl.num_programs(0), num_stages=num_stages):
        lane = tl.arange(0, BLOCK)
        value = tl.load(x + row * x_stride + lane, mask=lane < columns, other=-float("inf"))
        weight = libdevice.exp(value - tl.max(value, axis=0))
        tl.store(out + row * out_stride + lane, weight / tl.sum(weight, axis=0), mask=lane < columns)


def softmax(x):
    rows, columns = x.shape
    out = torch.empty_like(x)
    block = triton.next_power_of_2(columns)
    kernel = softmax_rows.warmup(
        out, x, x.stride(0), out.stride(0), rows, columns, BLOCK=block, num_stages=2, num_warps=8, grid=(1,)
    )
    kernel._init_handles()
    resident = PROPERTIES["max_num_regs"] // kernel.n_regs
    resident = max(1, min(resident, PROPERTIES["max_shared_mem"] // kernel.metadata.shared))
    programs = min(rows, PROPERTIES["multiprocessor_count"] * resident)
    kernel[(programs, 1, 1)](out, x, x.stride(0), out.stride(0), rows, columns, block, 2)
    return out


@triton.autotune(
    configs=[
        triton.Config({"M": 32, "N": 64, "K": 32, "GROUP": 8}, num_stages=3, num_warps=8),
        triton.Config({"M": 64, "N": 32, "K": 32, "GROUP": 8}, num_stages=4, num_warps=4),
    ],
    key=["m", "n", "k"],
    warmup=1,
    rep=1,
)
@triton.jit
def product(
    a, b, c, m, n, k, am, ak, bk, bn, cm, cn,
    M: tl.constexpr, N: tl.constexpr, K: tl.constexpr, GROUP: tl.constexpr, ACTIVATION: tl.constexpr,
):  # fmt: skip
    program = tl.program_id(axis=0)
    tall, wide = tl.cdiv(m, M), tl.cdiv(n, N)
    group = program // (GROUP * wide)
    height = min(tall - group * GROUP, GROUP)
    row = group * GROUP + (program % (GROUP * wide)) % height
    column = (program % (GROUP * wide)) // height
    i, j, d = (row * M + tl.arange(0, M)) % m, (column * N + tl.arange(0, N)) % n, tl.arange(0, K)
    left, right = a + (i[:, None] * am + d[None, :] * ak), b + (d[:, None] * bk + j[None, :] * bn)
    total = tl.zeros((M, N), dtype=tl.float32)
    for step in range(0, tl.cdiv(k, K)):
        part = tl.load(left, mask=d[None, :] < k - step * K, other=0.0)
        total = tl.dot(part, tl.load(right, mask=d[:, None] < k - step * K, other=0.0), total)
        left += K * ak
        right += K * bk
    if ACTIVATION == "leaky":
        total = leaky(total)
    i, j = row * M + tl.arange(0, M), column * N + tl.arange(0, N)
    inside = (i[:, None] < m) & (j[None, :] < n)
    tl.store(c + cm * i[:, None] + cn * j[None, :], total.to(tl.float16), mask=inside)


@triton.jit
def leaky(x):
    return tl.where(x >= 0, x, 0.01 * x)


@triton.jit
def layer_norm_rows(x, out, scale, mean, rstd, stride, columns, epsilon, BLOCK: tl.constexpr):
    row = tl.program_id(0)
    x += row * stride
    out += row * stride
    lane = tl.arange(0, BLOCK)
    value = tl.load(x + lane, mask=lane < columns, other=0.0).to(tl.float32)
    centre = tl.sum(value, axis=0) / columns
    shifted = tl.where(lane < columns, value - centre, 0.0)
    spread = 1 / tl.sqrt(tl.sum(shifted * shifted, axis=0) / columns + epsilon)
    tl.store(mean + row, centre)
    tl.store(rstd + row, spread)
    tl.store(out + lane, shifted * spread * tl.load(scale + lane, mask=lane < columns), mask=lane < columns)


@triton.jit
def column_sums(x, total, lock, stride, columns, BLOCK: tl.constexpr):
    lane = tl.arange(0, BLOCK)
    value = tl.load(x + tl.program_id(0) * stride + lane, mask=lane < columns, other=0.0)
    while tl.atomic_cas(lock, 0, 1) == 1:
        pass
    value += tl.load(total + lane, mask=lane < columns)
    tl.store(total + lane, value, mask=lane < columns)
    tl.debug_barrier()
    tl.atomic_xchg(lock, 0)


def main():
    assert TARGET.backend == "cpu"
    torch.manual_seed(0)
    x = torch.randn(37, 100, device=DEVICE)
    triton.testing.assert_close(softmax(x), torch.softmax(x, axis=1), atol=1e-6)

    a, b = torch.randn(70, 90, dtype=torch.float16), torch.randn(90, 50, dtype=torch.float16)
    c = torch.empty(70, 50, dtype=torch.float16)
    grid = lambda meta: (triton.cdiv(70, meta["M"]) * triton.cdiv(50, meta["N"]),)  # noqa: E731
    product[grid](a, b, c, 70, 50, 90, *a.stride(), *b.stride(), *c.stride(), ACTIVATION="leaky")
    expected = torch.nn.functional.leaky_relu(a.double() @ b.double(), 0.01)
    triton.testing.assert_close(c, expected, atol=2e-2, rtol=2e-3)

    out, scale, mean, rstd = torch.empty_like(x), torch.rand(100), torch.empty(37), torch.empty(37)
    layer_norm_rows[(37,)](x, out, scale, mean, rstd, x.stride(0), 100, 1e-5, BLOCK=128, num_warps=4, num_ctas=1)
    triton.testing.assert_close(out, torch.nn.functional.layer_norm(x, (100,), scale), atol=1e-5)

    total, lock = torch.zeros(100), torch.zeros(1, dtype=torch.int32)
    column_sums[(37,)](x, total, lock, x.stride(0), 100, BLOCK=128)
    triton.testing.assert_close(total, x.sum(0), atol=1e-4)
    print("rows agree")


if __name__ == "__main__":
    main()
