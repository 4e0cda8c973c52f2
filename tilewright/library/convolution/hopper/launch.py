"""Launch the Hopper convolution on tensors: the tensor maps, sizes and grid that go with a form."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from tilewright.errors import LaunchError
from tilewright.launch.descriptor import TensorDescriptor
from tilewright.library.convolution.hopper.config import ConvolutionForm
from tilewright.library.convolution.hopper.kernel import convolution


def prepare_convolution(
    form: ConvolutionForm, x: Any, w: Any, out: Any, beside: Any = None, extra: Sequence[Any] = (), *,
    processors: int,
) -> Callable[[], Any]:  # fmt: skip
    """A call of the convolution on these dense tensors.

    `x` is [images, rows, columns, groups * channels], `w` [outputs, taps, channels], `out` [images, height, width,
    outputs], and `beside` like it, if the form has it.  `extra` goes to the epilogue.
    Raises `LaunchError` for shapes that do not fit the form.
    """
    form.check()
    images, height, width, outputs = out.shape
    fits = x.shape[3] == form.GROUPS * form.CHANNELS and tuple(w.shape) == (outputs, form.taps, form.CHANNELS)
    if not fits or outputs % form.GROUPS or x.shape[0] != images or (beside is not None) != (form.BESIDE > 0):
        raise LaunchError(f"{tuple(x.shape)}, {tuple(w.shape)} and {tuple(out.shape)} do not fit {form}")
    columns = outputs // form.GROUPS
    results = [out if beside is None else beside, out]
    if form.GROUPS > 1:
        results = [tensor.reshape(images, height, width, form.GROUPS, columns) for tensor in results]
    maps = [TensorDescriptor.from_tensor(x, form.image_block), TensorDescriptor.from_tensor(w, form.weight_block)]
    maps[0].steps = form.steps
    maps += [TensorDescriptor.from_tensor(tensor, form.out_block) for tensor in results]
    arguments = (*maps, images, height, width, columns, *extra)
    grid = form.grid(form.tiles(images, height, width, outputs), processors)
    return lambda: convolution[grid](*arguments, FORM=form)
