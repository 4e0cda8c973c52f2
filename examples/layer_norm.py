"""Layer normalisation, forward and backward.

Forward: a row is longer than a block, so three loops go over it: mean, variance, result.
Backward: every row gives a gradient of its input at once, and adds to the gradients of weight and bias.
Rows of one group add into one partial sum; a lock, taken with an atomic compare-and-swap and given back
with an atomic exchange, lets one row in at a time. A second kernel adds up the groups.
"""

import numpy as np

import tilewright
import tilewright.language as tl


@tilewright.jit
def forward(x, weight, bias, out, means, scales, columns, epsilon, BLOCK: tl.constexpr):
    row = tl.program_id(0)
    x += row * columns
    out += row * columns
    total = tl.zeros((BLOCK,), tl.float32)
    for start in range(0, columns, BLOCK):
        column = start + tl.arange(0, BLOCK)
        total += tl.load(x + column, mask=column < columns, other=0.0)
    mean = tl.sum(total, axis=0) / columns
    squares = tl.zeros((BLOCK,), tl.float32)
    for start in range(0, columns, BLOCK):
        column = start + tl.arange(0, BLOCK)
        value = tl.load(x + column, mask=column < columns, other=0.0)
        centred = tl.where(column < columns, value - mean, 0.0)
        squares += centred * centred
    scale = 1 / tl.sqrt(tl.sum(squares, axis=0) / columns + epsilon)
    tl.store(means + row, mean)
    tl.store(scales + row, scale)
    for start in range(0, columns, BLOCK):
        column = start + tl.arange(0, BLOCK)
        mask = column < columns
        normal = (tl.load(x + column, mask=mask) - mean) * scale
        result = normal * tl.load(weight + column, mask=mask) + tl.load(bias + column, mask=mask)
        tl.store(out + column, result, mask=mask)


@tilewright.jit
def backward(x, weight, grad_out, means, scales, grad_x, grad_weight, grad_bias, locks, columns, groups,
             BLOCK: tl.constexpr):  # fmt: skip
    row = tl.program_id(0)
    column = tl.arange(0, BLOCK)
    mask = column < columns
    grad = tl.load(grad_out + row * columns + column, mask=mask, other=0.0)
    value = tl.load(x + row * columns + column, mask=mask, other=0.0)
    scale = tl.load(scales + row)
    normal = tl.where(mask, (value - tl.load(means + row)) * scale, 0.0)
    weighted = grad * tl.load(weight + column, mask=mask, other=0.0)
    along = tl.sum(normal * weighted, axis=0) / columns
    average = tl.sum(weighted, axis=0) / columns
    tl.store(grad_x + row * columns + column, (weighted - normal * along - average) * scale, mask=mask)

    group = row % groups
    while tl.atomic_cas(locks + group, 0, 1) == 1:
        pass
    place = group * columns + column
    tl.store(grad_weight + place, tl.load(grad_weight + place, mask=mask) + grad * normal, mask=mask)
    tl.store(grad_bias + place, tl.load(grad_bias + place, mask=mask) + grad, mask=mask)
    tl.debug_barrier()
    tl.atomic_xchg(locks + group, 0)


@tilewright.jit
def add_groups(partial, out, columns, groups, BLOCK: tl.constexpr):
    column = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    total = tl.zeros((BLOCK,), tl.float32)
    for group in range(groups):
        total += tl.load(partial + group * columns + column, mask=column < columns, other=0.0)
    tl.store(out + column, total, mask=column < columns)


def main() -> None:
    rows, columns, groups, epsilon = 96, 300, 8, 1e-5
    rng = np.random.default_rng()
    x, grad_out = rng.normal(size=(2, rows, columns)).astype(np.float32)
    weight, bias = rng.normal(size=(2, columns)).astype(np.float32)
    out, grad_x = np.empty_like(x), np.empty_like(x)
    means, scales = np.empty((2, rows), np.float32)
    partial_weight, partial_bias = np.zeros((2, groups, columns), np.float32)
    grad_weight, grad_bias = np.empty((2, columns), np.float32)
    locks = np.zeros(groups, np.int32)

    forward[(rows,)](x, weight, bias, out, means, scales, columns, epsilon, BLOCK=128)
    block = tilewright.next_power_of_2(columns)
    backward[(rows,)](x, weight, grad_out, means, scales, grad_x, partial_weight, partial_bias, locks, columns, groups,
                      BLOCK=block)  # fmt: skip
    for partial, total in ((partial_weight, grad_weight), (partial_bias, grad_bias)):
        add_groups[(tilewright.cdiv(columns, 128),)](partial, total, columns, groups, BLOCK=128)

    wide = x.astype(np.float64)
    scale = 1 / np.sqrt(wide.var(axis=1, keepdims=True) + epsilon)
    normal = (wide - wide.mean(axis=1, keepdims=True)) * scale
    weighted = grad_out * weight.astype(np.float64)
    along = (normal * weighted).mean(1, keepdims=True)
    expected = (weighted - normal * along - weighted.mean(1, keepdims=True)) * scale
    errors = [
        np.abs(out - (normal * weight + bias)).max(),
        np.abs(grad_x - expected).max(),
        np.abs(grad_weight - (grad_out * normal).sum(0)).max(),
        np.abs(grad_bias - grad_out.sum(0, dtype=np.float64)).max(),
    ]
    assert max(errors) < 1e-4
    print(f"layer norm of {rows} x {columns}: largest errors {', '.join(f'{error:.1e}' for error in errors)}")


if __name__ == "__main__":
    main()
