"""What the library's kernels for CPUs and GPUs take: the records that graph passes and these kernels go by."""

from __future__ import annotations

from tilewright.graph.kernel_facts import KernelFacts

CPU_KERNELS = KernelFacts(
    row_programs=True,
    row_elements=16384,
    exact=True,
    narrow_depth=4,
    weight_elements=1 << 14,
    weight_group=8,
    channels=16,
    narrow_channels=16,
    copied_channels=8,
    copied_pixel=32,
    pooled_taps=64,
    pooled_windows=1 << 17,
    block_queries=64,
    block_keys=128,
    sorted_bits=64,
    selected=8,
    compared_row=48,
)

GPU_KERNELS = KernelFacts(
    row_programs=True,
    attention_quantizes=True,
    generates_running=True,
    generates_scatters=True,
    row_elements=16384,
    exact=True,
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
    plane_columns=8,
    plane_taps=128,
    shared_taps=64,
    block_queries=64,
    block_keys=128,
    widest_head=4096,
    register_head=128,
    sorted_bits=32,
    selected=1,
    compared_pairs=1 << 24,
    network_row=512,
)
