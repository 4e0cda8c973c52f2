"""Which quantized weights Hopper's product kernels read as they are stored."""

from __future__ import annotations

from tilewright.dtypes import DType, bfloat16, float8e4nv, float8e5, float16, float32, int4, int8, uint4, uint8

STAGE = 128  # steps of the depth that are copied together
_LEAST_GROUP = 8
_WEIGHTS = (int4, uint4, int8, uint8, float8e4nv, float8e5)
_ALIGNED = 8  # elements that rows of x are multiples of, for tensor copies


def unsupported(x: DType, w: DType, scale: DType, group: int, depth: int) -> str:
    """Why the kernel does not read weights [columns, depth] in groups for rows of a type; nothing where it does."""
    if x not in (float16, bfloat16):
        return f"on GPUs they are multiplied by float16 and bfloat16, not by {x.name}"
    if w not in _WEIGHTS or scale not in (float16, bfloat16, float32):
        return f"there is no kernel for {w.name} with scales in {scale.name}"
    if depth % _ALIGNED:
        return f"tensor copies move rows of a multiple of {_ALIGNED} elements, not of {depth}"
    if group != depth and group % STAGE and (group < _LEAST_GROUP or STAGE % group):
        return f"on GPUs groups are {_LEAST_GROUP}, 16, 32, 64 or multiples of {STAGE}, not {group}"
    return ""
