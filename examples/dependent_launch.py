"""Two kernels that overlap: the second starts while the first still runs.

Of a kernel launched with ``launch_pdl=True`` a GPU may start instances before the kernel ahead of it in the stream
has ended. `gdc_launch_dependents` in the first says that there is room for them; what the second does
before `gdc_wait` (here: loading the weights, which nobody writes) happens meanwhile, and what comes after sees
everything that the first has stored.  Elsewhere both do nothing, and the kernels run one after the other.
"""

import numpy as np

import tilewright
import tilewright.language as tl


@tilewright.jit
def add(x, y, out, n, BLOCK: tl.constexpr):
    index = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.extra.cuda.gdc_launch_dependents()
    total = tl.load(x + index, mask=index < n) + tl.load(y + index, mask=index < n)
    tl.store(out + index, total, mask=index < n)


@tilewright.jit
def weigh(x, weights, out, n, BLOCK: tl.constexpr):
    index = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    weight = tl.load(weights + index, mask=index < n)
    tl.extra.cuda.gdc_wait()
    tl.store(out + index, tl.load(x + index, mask=index < n) * weight, mask=index < n)


def main() -> None:
    n = 50_000
    x, y, weights = np.random.default_rng().normal(size=(3, n)).astype(np.float32)
    total, out = np.empty((2, n), np.float32)
    grid = (tilewright.cdiv(n, 1024),)
    add[grid](x, y, total, n, BLOCK=1024)  # it waits for nothing, so it must not start early itself
    weigh[grid](total, weights, out, n, BLOCK=1024, launch_pdl=True)
    assert np.array_equal(out, (x + y) * weights)
    print(f"two kernels in a row over {n} elements; the result equals NumPy's")


if __name__ == "__main__":
    main()
