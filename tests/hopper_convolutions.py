"""Launch the Hopper convolution on tensors: the tensor maps, sizes and grid that go with a config."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from tilewright.errors import LaunchError
from tilewright.launch.descriptor import TensorDescriptor
from tilewright.library.convolution.hopper.config import ConvolutionConfig
from tilewright.library.convolution.hopper.kernel import convolution


def prepare_convolution(
    config: ConvolutionConfig, x: Any, w: Any, out: Any, residual: Any = None, extra: Sequence[Any] = (), *,
    processors: int,
) -> Callable[[], Any]:  # fmt: skip
    """A call of the convolution on these dense tensors.

    `x` is [images, rows, columns, groups * channels], `w` [outputs, taps, channels], `out` [images, height, width,
    outputs], and `residual` like it, if the config has it.  `extra` goes to the epilogue.
    Raises `LaunchError` for shapes that do not fit the config.
    """
    config.check()
    images, height, width, outputs = out.shape
    fits = x.shape[3] == config.GROUPS * config.CHANNELS and tuple(w.shape) == (outputs, config.taps, config.CHANNELS)
    if (
        not fits
        or outputs % config.GROUPS
        or x.shape[0] != images
        or (residual is not None) != (config.RESIDUAL_TILES > 0)
    ):
        raise LaunchError(f"{tuple(x.shape)}, {tuple(w.shape)} and {tuple(out.shape)} do not fit {config}")
    columns = outputs // config.GROUPS
    results = [out if residual is None else residual, out]
    if config.GROUPS > 1:
        results = [tensor.reshape(images, height, width, config.GROUPS, columns) for tensor in results]
    maps = [TensorDescriptor.from_tensor(x, config.image_block), TensorDescriptor.from_tensor(w, config.weight_block)]
    maps[0].steps = config.steps
    maps += [TensorDescriptor.from_tensor(tensor, config.out_block) for tensor in results]
    arguments = (*maps, images, height, width, columns, *extra)
    grid = config.grid(config.tiles(images, height, width, outputs), processors)
    return lambda: convolution[grid](*arguments, CONFIG=config)
