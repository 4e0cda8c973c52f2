"""What the library's kernels for GPUs take: the record that graph passes and these kernels go by."""

from __future__ import annotations

from tilewright.graph.kernel_facts import KernelFacts

GPU_KERNELS = KernelFacts(
    row_programs=True,
    attention_quantizes=True,
    generates_running=True,
    generates_scatters=True,
    row_elements=16384,
    channels=16,
    block_queries=64,
    block_keys=128,
    widest_head=4096,
    register_head=128,
    row_bytes=16,
    tile_columns=128,
    plane_columns=8,
    plane_taps=128,
    shared_taps=64,
)
