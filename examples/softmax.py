"""Row-wise softmax in one pass over memory.

NumPy reads and writes the matrix for the maximum, the exponentials, their sum and the division. Here an
instance loads a row once, keeps it in registers or cache, and stores the result once. Rows are shared out
over a fixed number of instances, so that a launch does not depend on how many rows there are.
"""

import numpy as np

import tilewright
import tilewright.language as tl


@tilewright.jit
def softmax(x, out, rows, columns, row_stride, BLOCK: tl.constexpr):
    column = tl.arange(0, BLOCK)
    inside = column < columns
    for row in tl.range(tl.program_id(0), rows, tl.num_programs(0)):
        start = row.to(tl.int64) * row_stride
        # Lanes behind the row's end hold -inf: they never are the maximum, and exp makes them 0.
        values = tl.load(x + start + column, mask=inside, other=-float("inf"))
        numerator = tl.exp(values - tl.max(values, axis=0))
        tl.store(out + start + column, numerator / tl.sum(numerator, axis=0), mask=inside)


def main() -> None:
    rows, columns = 300, 781
    x = np.random.default_rng().normal(size=(rows, columns)).astype(np.float32)
    out = np.empty_like(x)

    softmax[(16,)](x, out, rows, columns, columns, BLOCK=tilewright.next_power_of_2(columns))

    wide = np.exp(x.astype(np.float64) - x.max(axis=1, keepdims=True))
    error = np.abs(out - wide / wide.sum(axis=1, keepdims=True)).max()
    assert error < 1e-6
    print(f"softmax of {rows} x {columns}: largest error {error:.1e}")


if __name__ == "__main__":
    main()
