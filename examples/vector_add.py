"""Vector addition: the smallest kernel.

A launch runs many program instances. Each one works on a block of consecutive elements: it asks which
instance it is, computes the positions of its block, and masks off positions behind the end of the data.
"""

import numpy as np

import tilewright
import tilewright.language as tl


@tilewright.jit
def add(x, y, out, n, BLOCK: tl.constexpr):
    offsets = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)  # this instance's positions
    mask = offsets < n  # the last block may be longer than what is left
    total = tl.load(x + offsets, mask=mask) + tl.load(y + offsets, mask=mask)
    tl.store(out + offsets, total, mask=mask)


def main() -> None:
    n = 98_765
    rng = np.random.default_rng()
    x, y = rng.normal(size=(2, n)).astype(np.float32)
    out = np.empty_like(x)

    # The grid is the number of instances. It may be a function of the kernel's arguments.
    add[lambda args: (tilewright.cdiv(args["n"], args["BLOCK"]),)](x, y, out, n, BLOCK=1024)

    assert np.array_equal(out, x + y)
    print(f"added {n} elements; the sums equal NumPy's")


if __name__ == "__main__":
    main()
