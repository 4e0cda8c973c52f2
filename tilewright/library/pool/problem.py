"""Pools of a group: windows of a channels-last image, and what follows them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from tilewright.errors import UnsupportedOperationError
from tilewright.graph.core import Graph, Value
from tilewright.graph.fusion import Group
from tilewright.library.generated.expressions import language_type
from tilewright.library.slots import Slots, epilogue_slots
from tilewright.library.windows import window_constants, window_sizes
from tilewright.symbolic import Size, lift, product, simplify


@dataclass(frozen=True)
class PoolProblem:
    """The largest element or the mean of each window of `image`."""

    group: Group
    image: Value
    result: Value  # of the pool itself; the epilogue's is `slots.stored`
    kernel: tuple[int, ...]
    is_max: bool
    constants: dict[str, Any]  # windows, and what stands outside the image or is counted there
    slots: Slots

    @property
    def channels(self) -> Size:
        return self.image.shape[-1]

    @property
    def tensors(self) -> dict[str, Value]:
        """The tensors of its kernels."""
        return {"x": self.image, "out": self.slots.stored}

    @property
    def sizes(self) -> dict[str, Size]:
        """The parameters of its kernels that say how much there is."""
        return {**window_sizes(self.image, self.result), "channels": self.channels}

    @property
    def flops(self) -> Size:
        return simplify(lift(product(self.result.shape)) * product(self.kernel))


def pool_problem(group: Group, graph: Graph) -> PoolProblem:
    """The pool of a group. Raises `NotImplementedError` for channels-first images."""
    anchor = group.anchor
    assert anchor is not None
    x, attributes = anchor.inputs[0], anchor.attributes
    assert x is not None
    if x.rank not in (3, 4) and (x.rank != 5 or x.shape[-1] != 1):
        raise UnsupportedOperationError(
            f"{anchor.op} (from {anchor.source or 'the graph'}) of {x!r}: there are kernels for one and two spatial "
            "dimensions, and for three of images with one channel"
        )
    if attributes["layout"] != "NHWC" or any(x in node.outputs for node in group.prologue):
        raise NotImplementedError("channels-first pooling")
    axes = "ZYX" if x.rank == 5 else "YX"
    constants = {**window_constants(attributes["kernel"], attributes, axes), "TYPE": language_type(x.dtype)}
    is_max = anchor.op == "max_pool"
    if is_max:
        constants["LOWEST"] = float("-inf") if x.dtype.is_float else int(np.iinfo(x.dtype.numpy).min)
    else:
        counted = attributes["padding"] if attributes["count_include_pad"] else ()
        for letter, (low, high) in zip(axes, (((0, 0),) * 3 + tuple(counted))[-len(axes) :], strict=True):
            constants[f"COUNT_{letter}"], constants[f"COUNT_END_{letter}"] = low, high
    slots = epilogue_slots(group, graph)
    return PoolProblem(group, x, anchor.output, attributes["kernel"], is_max, constants, slots)
