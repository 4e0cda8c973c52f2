"""What graph passes know of the kernels of a target: a record that every target gives (`Target.kernels`).

Passes have no sizes of kernels of their own: they get the record, those of one target (`targets/*/graph_passes.py`) and
those of all graphs alike, and so does `fuse`; kernels check the same numbers.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, fields
from typing import Any

from tilewright.dtypes import DType

# Why kernels do not read quantized weights as they are stored, by the types of x, codes and scales, the length of a
# group and the depth; nothing where they do.
Unsupported = Callable[[DType, DType, DType, int, int], str]


def _least(default: int = 0) -> Any:
    """A number from which on something holds: of several targets the largest."""
    return field(default=default, metadata={"common": max})


@dataclass(frozen=True)
class KernelFacts:
    """What kernels there are, and how much they take; without one of a kind its numbers are 0."""

    row_programs: bool = False  # of several reductions over the same rows
    rows_side_by_side: bool = False  # rows whose elements lie apart are reduced together with their neighbours
    attention_quantizes: bool = False  # those of attention quantize their results
    generates_running: bool = False  # those of running sums read through movement
    generates_scatters: bool = False  # those of updates that are made at once compute what they read
    short_loop: int = 0  # elements of loops that gain by a launch with others, whatever they read
    row_elements: int = 0  # of a row that a kernel has in registers as a whole

    # Products
    exact: bool = False  # of float32, not rounded to tf32
    normed_rows: int = 0  # rows of activations up to which a product computes their norm
    projected_rows: int = 0  # rows up to which a product stores heads turned, and keys and values in their pools
    row_bytes: int = _least()  # rows of matrices that begin at multiples of so many bytes are copied as tiles
    tile_columns: int = 0  # which one tile has
    transposed_types: frozenset[DType] = frozenset()  # of left operands that are read transposed, as they lie
    padded_work: int = _least()  # multiply-adds of 16-bit products whose operands are worth copying into whole rows
    padded_use: int = _least()  # multiply-adds with each number that such a copy moves
    padded_work_single: int = _least()  # `padded_work` of float32
    padded_side: int = _least()  # rows and columns of float32 products whose operands are copied
    paired_rows: int = 0  # most rows of products that read rows of a 16-bit right operand by pairs
    pair_bytes: int = _least(1)  # of whose multiples the addresses of such rows are
    narrow_types: frozenset[DType] = frozenset()  # of 8 bits, whose products are faster than those of the same numbers
    # in wider floats: integers by int8 in int32, floats by floats in float32
    narrow_computed: bool = False  # integers on the right need not be constants
    narrow_depth: int = _least(1)  # the depth of integers is a multiple of what instructions add at once
    narrow_filled: int = 0  # other depths from this one on are filled up with zeros (0: none are)
    weight_elements: int = _least()  # fewer quantized weights stay in the caches as floats
    weight_group: int = _least(1)  # the shortest group of the depth with a scale of its own
    weight_limits: tuple[Unsupported, ...] = ()
    gated_weights: bool = False  # products by quantized weights take gates

    # Convolutions and images
    channels: int = 0  # of an image that a convolution computes together
    narrow_channels: int = _least()  # fewer channels of integers are not gathered,
    narrow_window: int = 0  # but for windows of so many numbers, of any number of channels (0: for none)
    grouped_channels: int = 0  # fewest channels of integers in one of several groups (0: there is one group)
    zeros_around: bool = False  # those of integers see zeros beyond an image's edges
    copied_channels: int = 0  # images of fewer are copied, in whatever order they are,
    copied_pixel: int = 0  # or of pixels of so many bytes of 16-bit numbers, for windows of three columns
    plane_types: frozenset[DType] = frozenset()  # of channels-first images that products read as they lie
    plane_columns: int = 0  # output channels of a group that one program of channels-first images has all of
    plane_taps: int = 0  # of a line of windows that such a program writes out one after the other
    pooled_taps: int = 0  # of the largest window of a pool that one thread computes; larger ones are reductions
    pooled_windows: int = 0  # most windows that are reduced along one axis after the other
    shared_taps: int = 0  # of channels-last windows that a thread has parts of in registers,
    least_shared_taps: int = _least()  # which pays for more taps than so many
    channels_last_convolutions: int = _least()  # of images in a graph, from which on they are faster channels-last
    separate_reads: int = _least()  # times the elements of a pool in two steps, above which one step reads too many
    excitation_weights: int = 0  # of both products of a squeeze and excitation that every image reads

    # Attention
    block_queries: int = 0  # most queries of a head that a kernel has in one block (windows of images)
    block_keys: int = 0  # most keys of such a block
    widest_head: int = 0  # bytes of a head of which 16 rows of keys and values have room in shared memory
    register_head: int = 0  # numbers of a head all of which are kept in registers
    narrow_register_head: int = 0  # the same of 16-bit floats, with queries for tensor cores
    score_bytes: int = 0  # of scores that are written down although a kernel has room for the heads,
    scores_for_operand: int = 0  # and so many for each byte of the operands and the result

    # Sorting
    sorted_bits: int = 0  # of a number, by which one kernel sorts rows of any length
    wide_row: int = 0  # elements of rows up to which one kernel sorts wider numbers
    sorts_values: bool = False  # those of sorting store the numbers in order as well, or instead of their positions
    selected: int = 0  # largest elements that are faster found one after the other
    compared_row: int = 0  # elements of rows up to which comparing all pairs is faster,
    compared_pairs: int = 0  # or so many pairs in all,
    network_row: int = _least()  # of rows of so many elements of 32 bits: shorter ones are no time in a kernel

    def takes_depth(self, depth: int) -> bool:
        """Whether products of integers with this depth have kernels."""
        return depth % self.narrow_depth == 0 or 0 < self.narrow_filled <= depth

    def takes_narrow(self, channels: int, taps: int, groups: int = 1) -> bool:
        """Whether convolutions of integers by windows of so many channels of a group and taps have kernels."""
        if groups > 1:
            return 0 < self.grouped_channels <= channels
        if channels % self.narrow_depth == 0 and channels >= self.narrow_channels:
            return True
        return 0 < self.narrow_window <= channels * taps


NO_KERNELS = KernelFacts()


def common_facts(records: Sequence[KernelFacts]) -> KernelFacts:
    """What holds of the kernels of all of several targets."""
    if not records:
        return NO_KERNELS
    return KernelFacts(
        **{
            each.name: _common([getattr(one, each.name) for one in records], each.metadata.get("common", min))
            for each in fields(KernelFacts)
        }
    )


def _common(values: Sequence[Any], of_numbers: Callable[[Sequence[Any]], Any]) -> Any:
    """The types that all take; what any of them cannot; or of numbers and flags the least, if not the largest."""
    first, *others = values
    if isinstance(first, frozenset):
        return first.intersection(*others)
    if isinstance(first, tuple):
        return tuple(dict.fromkeys(limit for limits in values for limit in limits))
    return of_numbers(values)
