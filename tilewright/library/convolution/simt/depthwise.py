"""Depthwise convolutions on GPUs."""

from __future__ import annotations

from math import gcd
from typing import Any

from tilewright.graph.fusion import Group
from tilewright.library.binding import bind_extra, bind_sizes
from tilewright.library.candidate import Candidate, KernelCall, Operand, Stage
from tilewright.library.convolution.depthwise import depthwise_candidate
from tilewright.library.convolution.problem import convolution_of
from tilewright.library.convolution.simt import depthwise_kernel
from tilewright.library.cost import expected
from tilewright.library.generated.expressions import language_type
from tilewright.library.slots import Slots
from tilewright.library.windows import window_constants, window_cost, window_sizes
from tilewright.symbolic import ceil_divide, lift, product, simplify, upper_bound
from tilewright.targets.base import Target

_DEPTHWISE_RUNS = (4, 7, 8, 5, 3)  # neighbouring pixels of a line that a thread may have
_MOST_SUMS = 64  # of a thread that has two lines
_THREAD_CHANNELS = 8  # channels of a thread, at most
_ITEMS = 128  # threads of a CTA
_WORKING = 1 << 20  # elements of a result from which on threads may have several pixels


def gpu_depthwise(group: Group, slots: Slots, weights: Operand, target: Target) -> list[Candidate]:
    """Each channel by itself: runs of pixels, each by one thread."""
    anchor, x, w = convolution_of(group)
    columns, out = w.shape[0], anchor.output
    assert isinstance(columns, int)
    taps = product(w.shape[2:])
    most = target.kernels.shared_taps
    if x.rank != 4 or not isinstance(taps, int) or taps > most or upper_bound(product(x.shape[1:])) >= 2**31:
        return [depthwise_candidate(group, slots, weights, target)]
    sizes = window_sizes(x, out)
    del sizes["pixels"]
    out_width = sizes["out_width"]
    images, out_height = out.shape[0], out.shape[1]
    constants: dict[str, Any] = {
        **window_constants(w.shape[2:], anchor.attributes), "ITEMS": _ITEMS,
        "TYPE": language_type(out.dtype), "EPILOGUE": slots.rounded().function,
    }  # fmt: skip
    operands: dict[str, Operand] = {"x": x, "w": weights, "out": slots.stored}
    types: dict[str, str] = {}
    bind_sizes({**sizes, "images": images, "columns": columns}, operands, types, constants)
    bind_extra(slots.extra, operands, types)
    flops = simplify(lift(product(out.shape)) * taps * 2)
    cost = window_cost(group, flops, target)
    found = []
    for lines, run, channels in _configs((expected(out_height), expected(out_width)), expected(product(out.shape))):
        vector = gcd(columns, channels)
        blocks = lift(images) * ceil_divide(out_height, lines) * ceil_divide(out_width, run)
        items = simplify(blocks * (columns // vector))
        call = KernelCall(
            depthwise_kernel.depthwise, operands, types, {**constants, "LINES": lines, "RUN": run, "VECTOR": vector},
            (ceil_divide(items, _ITEMS), 1, 1), threads=_ITEMS,
        )  # fmt: skip
        reasons = {"block": f"{vector} channels of {lines} x {run} pixels"}
        found.append(Candidate("depthwise runs", (Stage((call,)),), cost, (), reasons))
    return found


def _configs(size: tuple[int, int], elements: int) -> list[tuple[int, int, int]]:
    """Lines, pixels of a line and channels of a thread worth trying, the likeliest first: few where there is little
    work, none that are wasted."""
    height, width = size
    if elements < _WORKING:
        return [(1, run, _THREAD_CHANNELS) for run in ((1, 2) if width % 2 == 0 else (1,))]
    least = min(-(-width // run) * run for run in _DEPTHWISE_RUNS)
    runs = [run for run in _DEPTHWISE_RUNS if -(-width // run) * run <= 1.1 * least][:3]
    double = [
        (2, run, vector)
        for vector in (_THREAD_CHANNELS // 2, _THREAD_CHANNELS)
        for run in runs
        if 2 * run * vector <= _MOST_SUMS
    ]
    return [*(double if height % 2 == 0 else ()), *((1, run, _THREAD_CHANNELS) for run in runs)]
