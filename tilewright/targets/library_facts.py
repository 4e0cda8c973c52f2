"""What the library's kernels for CPUs and GPUs take: the records that graph passes and these kernels go by."""

from __future__ import annotations

from dataclasses import replace

from tilewright.dtypes import DType, bfloat16, float8e4nv, float8e5, float16, float32, int4, int8, uint4, uint8
from tilewright.graph.kernel_facts import KernelFacts

_ALL_KERNELS = KernelFacts(
    row_programs=True,
    row_elements=16384,
    exact=True,
    narrow_depth=4,
    weight_elements=1 << 14,
    weight_group=8,
    channels=16,
    narrow_channels=16,
    zeros_around=True,
    copied_channels=8,
    copied_pixel=32,
    pooled_taps=64,
    pooled_windows=1 << 17,
    least_shared_taps=16,
    channels_last_convolutions=8,
    separate_reads=2,
    excitation_weights=1 << 18,
    block_queries=64,
    block_keys=128,
    score_bytes=1 << 30,
    scores_for_operand=8,
)

CPU_KERNELS = replace(
    _ALL_KERNELS,
    narrow_filled=16,
    narrow_window=64,
    grouped_channels=8,
    sorted_bits=64,
    selected=8,
    compared_row=48,
)

SORTED_ROW = 4096  # the longest row that a GPU's CTA sorts in registers

GPU_KERNELS = replace(
    _ALL_KERNELS,
    rows_side_by_side=True,
    attention_quantizes=True,
    generates_running=True,
    generates_scatters=True,
    short_loop=1 << 20,  # which take less time than their launch, or not much more
    row_bytes=16,
    tile_columns=128,
    padded_work=1 << 25,
    # With 21 multiply-adds for each number products are faster without the copies, with 23 a bit slower, with 61 much
    # (H200, 2026-11-29).
    padded_use=22,
    padded_work_single=1 << 30,
    padded_side=256,
    paired_rows=64,  # of one tile
    pair_bytes=4,
    narrow_computed=True,
    gated_weights=True,
    plane_columns=8,
    plane_taps=128,
    shared_taps=64,
    widest_head=4096,
    register_head=128,
    narrow_register_head=512,
    sorted_bits=32,
    wide_row=SORTED_ROW,
    sorts_values=True,
    selected=1,
    compared_pairs=1 << 24,
    network_row=512,
)

WEIGHT_STAGE = 128  # steps of the depth that Hopper's products by quantized weights copy together
_LEAST_GROUP = 8
_WEIGHTS = (int4, uint4, int8, uint8, float8e4nv, float8e5)
_ALIGNED = 8  # elements that rows of x are multiples of, for tensor copies


def unsupported_weights(x: DType, w: DType, scale: DType, group: int, depth: int) -> str:
    """Why GPUs do not read quantized weights [columns, depth] in groups as they are stored, for rows of a type; nothing
    where they do."""
    if x not in (float16, bfloat16):
        return f"on GPUs they are multiplied by float16 and bfloat16, not by {x.name}"
    if w not in _WEIGHTS or scale not in (float16, bfloat16, float32):
        return f"there is no kernel for {w.name} with scales in {scale.name}"
    if depth % _ALIGNED:
        return f"tensor copies move rows of a multiple of {_ALIGNED} elements, not of {depth}"
    if group != depth and group % WEIGHT_STAGE and (group < _LEAST_GROUP or WEIGHT_STAGE % group):
        return f"on GPUs groups are {_LEAST_GROUP}, 16, 32, 64 or multiples of {WEIGHT_STAGE}, not {group}"
    return ""
