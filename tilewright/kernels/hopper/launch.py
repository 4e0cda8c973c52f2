"""Launch the Hopper kernels on tensors: the tensor maps, sizes, schedule and grid that go with a form.

run = prepare_matmul(MatmulForm(BN=224), a, b, c, processors=132)  # a [M, K], b [N, K], c [M, N]: on a GPU, or arrays
run()                                                # as often as wanted, on the same tensors
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from tilewright.errors import LaunchError
from tilewright.kernels.hopper.attention import attention
from tilewright.kernels.hopper.convolution import convolution
from tilewright.kernels.hopper.convolution_forms import ConvolutionForm
from tilewright.kernels.hopper.forms import AttentionForm, MatmulForm, attention_schedule
from tilewright.kernels.hopper.matmul import matmul
from tilewright.launch.descriptor import TensorDescriptor

Run = Callable[[], Any]


def prepare_matmul(form: MatmulForm, a: Any, b: Any, c: Any, extra: Sequence[Any] = (), *, processors: int) -> Run:
    """A call of the matrix product on these tensors.

    `a` is [M, K] (or [K, M], as the form says), `b` [N, K] (or [K, N]), `c` [M, N]; all with a leading axis when the
    form is batched.  Last strides are 1, the others multiples of 16 bytes.  `extra` goes to the epilogue; `processors`
    are the SMs to be kept busy.
    Raises `LaunchError` for shapes that do not fit the form.
    """
    form.check()
    lead = 1 if form.BATCHED else 0
    depth, rows = (a.shape[lead], a.shape[lead + 1]) if form.A_TRANSPOSED else (a.shape[lead + 1], a.shape[lead])
    columns = b.shape[lead + 1] if form.B_TRANSPOSED else b.shape[lead]
    batches = a.shape[0] if form.BATCHED else 1
    expected = (batches, rows, columns // (form.BN // form.out_columns))[1 - lead :]
    if tuple(c.shape) != expected or b.shape[lead + (0 if form.B_TRANSPOSED else 1)] != depth:
        shapes = f"{tuple(a.shape)}, {tuple(b.shape)}, {tuple(c.shape)}"
        raise LaunchError(f"operands and result of shapes {shapes} do not fit; the result should be {expected}")
    if form.A_ROWS and rows > form.A_ROWS:
        raise LaunchError(f"the form loads {form.A_ROWS} rows, A has {rows}")
    if depth < form.BK * (form.SPLIT - 1) + 1:
        raise LaunchError(f"a depth of {depth} has fewer stages of {form.BK} than the {form.SPLIT} CTAs that share it")
    blocks = (a, form.left_block), (b, form.right_block), (c, form.out_block), (c, form.tail_block)
    maps = [TensorDescriptor.from_tensor(tensor, block) for tensor, block in blocks]
    arguments = (*maps, rows, columns, depth, batches, *extra)
    grid = form.grid(rows, columns, batches, processors)
    return lambda: matmul[grid](*arguments, FORM=form)


def prepare_convolution(
    form: ConvolutionForm, x: Any, w: Any, out: Any, beside: Any = None, extra: Sequence[Any] = (), *,
    processors: int,
) -> Run:  # fmt: skip
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


def prepare_attention(
    form: AttentionForm,
    q: Any,
    k: Any,
    v: Any,
    out: Any,
    lse: Any = None,
    lengths: Any = None,
    window: int = 0,
    scale: float | None = None,
    place: Callable[[np.ndarray], Any] = np.asarray,
    *,
    processors: int,
) -> Run:
    """A call of attention on these tensors: q and out [batch, heads, queries, D], k and v [batch, key heads, keys, D].

    Strides may be any but the last, which is 1; the others are multiples of 16 bytes.  `scale` (default 1 / sqrt(D))
    multiplies the scores.  `lse` [batch, heads, queries] f32 and `lengths` [batch, 2] i32 go with a form that has them.
    `place` puts the schedule, an array, where the tensors are (for PyTorch: ``lambda x: torch.from_numpy(x).cuda()``).
    Raises `LaunchError` for shapes that do not fit the form.
    """
    form.check()
    batches, heads, queries, _ = q.shape
    key_heads, keys = k.shape[1], k.shape[2]
    fits = tuple(out.shape) == tuple(q.shape) and tuple(v.shape) == tuple(k.shape) and heads % key_heads == 0
    if not fits or q.shape[3] != form.D or k.shape[3] != form.D or k.shape[0] != batches:
        shapes = ", ".join(str(tuple(tensor.shape)) for tensor in (q, k, v, out))
        raise LaunchError(f"q, k, v and out of shapes {shapes} do not fit each other and D = {form.D}")
    for name, given, wanted in (("lse", lse, form.LSE), ("lengths", lengths, form.LENGTHS)):
        if (given is not None) != wanted:
            raise LaunchError(f"{name} is {'missing' if wanted else 'given, but the form has none'}")
    if form.WINDOW != (window > 0):
        raise LaunchError(f"a window of {window} does not go with WINDOW={form.WINDOW}")
    table = attention_schedule(form, batches, heads, queries, keys, heads // key_heads, processors)
    schedule = place(table)
    maps = [TensorDescriptor.from_tensor(tensor, form.query_block) for tensor in (q, out)]
    maps[1:1] = [TensorDescriptor.from_tensor(tensor, form.key_block) for tensor in (k, v)]
    factor = (1 / math.sqrt(form.D) if scale is None else scale) * math.log2(math.e)
    # What the form has not is not read; any array of the type stands for it.
    statistics = lse if form.LSE else place(np.zeros(1, np.float32))
    ends = lengths if form.LENGTHS else schedule
    numbers = (table.shape[1], queries, keys, heads, heads // key_heads, window, factor)
    arguments = (*maps, statistics, ends, schedule, *numbers)
    return lambda: attention[(len(table),)](*arguments, FORM=form)
