"""What graph passes know of the kernels of a target: a record that every target gives (`Target.kernels`).

Passes have no sizes of kernels of their own.  Those of one target get numbers of its record as options
(`targets/*/graph_passes.py`), those of all graphs and `fuse` the record; kernels check the same numbers.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields


@dataclass(frozen=True)
class KernelFacts:
    """What kernels there are, and how much they take; without one of a kind its numbers are 0."""

    row_programs: bool = False  # of several reductions over the same rows
    attention_quantizes: bool = False  # those of attention quantize their results
    generates_running: bool = False  # those of running sums read through movement
    generates_scatters: bool = False  # those of updates that are made at once compute what they read
    normed_rows: int = 0  # rows of activations up to which a product computes their norm
    row_elements: int = 0  # of a row that a kernel has in registers as a whole
    channels: int = 0  # of an image that a convolution computes together
    block_queries: int = 0  # of a head, all of which a kernel of attention has in one block,
    block_keys: int = 0  # with so many keys: windows of images
    widest_head: int = 0  # bytes of a head of which 16 rows of keys and values have room in shared memory
    register_head: int = 0  # numbers of a head of which attention keeps all in registers
    row_bytes: int = 0  # rows of matrices that begin at multiples of so many bytes are copied as tiles
    tile_columns: int = 0  # of a product, which one tile has
    plane_columns: int = 0  # output channels of a group that one program of channels-first images has all of
    plane_taps: int = 0  # of a line of windows that such a program writes out one after the other
    shared_taps: int = 0  # of channels-last windows that a thread has parts of in registers


NO_KERNELS = KernelFacts()


def common_facts(records: Sequence[KernelFacts]) -> KernelFacts:
    """What holds of the kernels of all of several targets."""
    if not records:
        return NO_KERNELS
    return KernelFacts(**{each.name: min(getattr(one, each.name) for one in records) for each in fields(KernelFacts)})
