"""Launch the Hopper product on tensors: the tensor maps, sizes and grid that go with a config.

run = prepare_matmul(MatmulConfig(BN=224), a, b, c, processors=132)  # a [M, K], b [N, K], c [M, N]: on a GPU, or arrays
run()                                                # as often as wanted, on the same tensors
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from tilewright.errors import LaunchError
from tilewright.launch.descriptor import TensorDescriptor
from tilewright.library.matmul.hopper.config import MatmulConfig
from tilewright.library.matmul.hopper.kernel import matmul


def prepare_matmul(
    config: MatmulConfig, a: Any, b: Any, c: Any, extra: Sequence[Any] = (), *, processors: int
) -> Callable[[], Any]:
    """A call of the matrix product on these tensors.

    `a` is [M, K] (or [K, M], as the config says), `b` [N, K] (or [K, N]), `c` [M, N]; all with a leading axis when the
    config is batched.  Last strides are 1, the others multiples of 16 bytes.  `extra` goes to the epilogue;
    `processors` are the SMs to be kept busy.
    Raises `LaunchError` for shapes that do not fit the config.
    """
    config.check()
    lead = 1 if config.BATCHED else 0
    depth, rows = (a.shape[lead], a.shape[lead + 1]) if config.A_TRANSPOSED else (a.shape[lead + 1], a.shape[lead])
    columns = b.shape[lead + 1] if config.B_TRANSPOSED else b.shape[lead]
    batches = a.shape[0] if config.BATCHED else 1
    expected = (batches, rows, columns // (config.BN // config.out_columns))[1 - lead :]
    if tuple(c.shape) != expected or b.shape[lead + (0 if config.B_TRANSPOSED else 1)] != depth:
        shapes = f"{tuple(a.shape)}, {tuple(b.shape)}, {tuple(c.shape)}"
        raise LaunchError(f"operands and result of shapes {shapes} do not fit; the result should be {expected}")
    if config.A_ROWS and rows > config.A_ROWS:
        raise LaunchError(f"the config loads {config.A_ROWS} rows, A has {rows}")
    if depth < config.BK * (config.SPLIT - 1) + 1:
        raise LaunchError(
            f"a depth of {depth} has fewer stages of {config.BK} than the {config.SPLIT} CTAs that share it"
        )
    blocks = (a, config.left_block), (b, config.right_block), (c, config.out_block), (c, config.tail_block)
    maps = [TensorDescriptor.from_tensor(tensor, block) for tensor, block in blocks]
    arguments = (*maps, rows, columns, depth, batches, *extra)
    grid = config.grid(rows, columns, batches, processors)
    return lambda: matmul[grid](*arguments, CONFIG=config)
