"""Launch Hopper attention on tensors: the tensor maps, sizes, schedule and grid that go with a config."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from tilewright.errors import LaunchError
from tilewright.launch.descriptor import TensorDescriptor
from tilewright.library.attention.hopper.config import AttentionConfig, attention_schedule
from tilewright.library.attention.hopper.kernel import attention


def prepare_attention(
    config: AttentionConfig,
    q: Any,
    k: Any,
    v: Any,
    out: Any,
    lse: Any = None,
    lengths: Any = None,
    window: int = 0,
    scale: float | None = None,
    place: Callable[[np.ndarray], Any] = np.asarray,
    *,
    processors: int,
    extra: Sequence[Any] = (),
) -> Callable[[], Any]:
    """A call of attention on these tensors: q and out [batch, heads, queries, D], k and v [batch, key heads, keys, D].

    Strides may be any but the last, which is 1; the others are multiples of 16 bytes.  `scale` (default 1 / sqrt(D))
    multiplies the scores.  `lse` [batch, heads, queries] f32 and `lengths` [batch, 2] i32 go with a config that has
    them, `extra` with its epilogue.  `place` puts the schedule, an array, where the tensors are (for PyTorch:
    ``lambda x: torch.from_numpy(x).cuda()``).
    Raises `LaunchError` for shapes that do not fit the config.
    """
    config.check()
    batches, heads, queries, _ = q.shape
    key_heads, keys = k.shape[1], k.shape[2]
    fits = tuple(out.shape) == tuple(q.shape) and tuple(v.shape) == tuple(k.shape) and heads % key_heads == 0
    if not fits or q.shape[3] != config.D or k.shape[3] != config.D or k.shape[0] != batches:
        shapes = ", ".join(str(tuple(tensor.shape)) for tensor in (q, k, v, out))
        raise LaunchError(f"q, k, v and out of shapes {shapes} do not fit each other and D = {config.D}")
    for name, given, wanted in (("lse", lse, config.LSE), ("lengths", lengths, config.LENGTHS)):
        if (given is not None) != wanted:
            raise LaunchError(f"{name} is {'missing' if wanted else 'given, but the config has none'}")
    if config.WINDOW != (window > 0):
        raise LaunchError(f"a window of {window} conflicts with WINDOW={config.WINDOW}")
    table = attention_schedule(config, batches, heads, queries, keys, heads // key_heads, processors)
    schedule = place(table)
    maps = [TensorDescriptor.from_tensor(tensor, config.query_block) for tensor in (q, out)]
    maps[1:1] = [TensorDescriptor.from_tensor(tensor, config.key_block) for tensor in (k, v)]
    factor = (1 / math.sqrt(config.D) if scale is None else scale) * math.log2(math.e)
    # What the config has not is not read; any array of the type stands for it.
    statistics = lse if config.LSE else place(np.zeros(1, np.float32))
    ends = lengths if config.LENGTHS else schedule
    numbers = (table.shape[1], queries, keys, heads, heads // key_heads, window, factor)
    arguments = (*maps, statistics, ends, schedule, *numbers, *extra)
    return lambda: attention[(len(table),)](*arguments, CONFIG=config)
