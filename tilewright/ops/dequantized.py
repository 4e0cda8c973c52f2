"""Products by weights of 4 and 8 bits on arrays of a GPU: the weights are packed once, and read as they are stored.

weights = ops.pack_weights(codes, scales, bits=4)         # [columns, depth], [columns, depth / 128]
y = ops.dequantized_matmul(x, weights, bias=bias, activation="silu")
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np

from tilewright import dtypes
from tilewright.dtypes import DType, from_numpy
from tilewright.errors import LaunchError
from tilewright.graph.passes.weight_products import canonical
from tilewright.graph.quantization import SCALE_BLOCK
from tilewright.ir.core import Parameter
from tilewright.launch.descriptor import DESCRIPTOR_ALIGNMENT
from tilewright.library import packing
from tilewright.library.matmul.hopper.dequantized import close_configs
from tilewright.library.matmul.hopper.dequantized_config import COLUMNS, DEQUANTIZED_PARAMETERS, DequantizedConfig
from tilewright.library.matmul.hopper.dequantized_kernel import dequantized_matmul as kernel
from tilewright.library.matmul.problem import DequantizedProblem
from tilewright.measure import timers
from tilewright.ops import arrays
from tilewright.ops.arrays import ArrayView
from tilewright.ops.calls import result_like
from tilewright.ops.choosing import Alternatives, TrialCalls
from tilewright.ops.launches import bound_launch, launch_on_any_stream, pointer_types, tiled_views
from tilewright.ops.products import epilogue_of
from tilewright.runtime.cuda.memory import DeviceArray
from tilewright.settings import settings
from tilewright.targets.library_facts import unsupported_weights

_INPUTS = (dtypes.bfloat16, dtypes.float16)
_MOST_DEQUANTIZED = 4096  # prepared launches
_PREPARED: dict[tuple[Any, ...], Callable[..., Any]] = {}
# By problem, GPU and whether it is timed.
_PLANS: dict[
    tuple[DequantizedProblem, int | None, bool], tuple[Sequence[tuple[DequantizedConfig, float]], Alternatives]
] = {}


@dataclass(frozen=True)
class PackedWeights:
    """Weights [columns, depth] in the order in which kernels read them, made by `pack_weights`.

    `group` steps of the depth share a scale of a column, and its zero point where there are `zeros`; `dtype` is the
    type of the numbers: int4, uint4, int8, uint8, or a float of 8 bits.
    """

    columns: int
    depth: int
    group: int
    dtype: DType
    codes: Any
    scales: Any
    zeros: Any

    @property
    def nbytes(self) -> int:
        """Bytes on the GPU."""
        return sum(int(each.nbytes) for each in (self.codes, self.scales, self.zeros) if each is not None)

    def __repr__(self) -> str:
        points = " and a zero point" if self.zeros is not None else ""
        shape = f"[{self.columns}, {self.depth}]"
        return f"PackedWeights({shape} {self.dtype.name}, a scale{points} for {self.group} of the depth)"


def pack_weights(weights: Any, scales: Any, zeros: Any = None, *, bits: int = 8) -> PackedWeights:
    """Pack quantized weights for `dequantized_matmul`, on the host; the result is on the GPU of `weights`.

    `weights` [columns, depth]: int8 or uint8 (with ``bits=4`` numbers from -8 to 7, or 0 to 15, one per byte), or
    float8 (e4m3fn, e5m2).  Their value is (number - zero point) * scale.  `scales`, floats, have one of these forms:
    one number (of Python, or an array of one), [columns], [columns, groups] of equal groups of the depth (8, 16, 32, 64
    or a multiple of 128 steps), or [columns / 128, depth / 128] of blocks.  `zeros`, integers, have one of these forms
    too; the number of groups of one divides that of the other.

    Raises `LaunchError` for weights that the kernels do not support.
    """
    found = arrays.view(weights, "weights")
    if len(found.shape) != 2 or 0 in found.shape or found.element not in arrays.NARROW_TYPES:
        raise LaunchError(
            f"weights must be [columns, depth] of int8, uint8 or float8, got {found.element.name} {found.described}"
        )
    if bits not in (4, 8) or (bits == 4 and not found.element.is_integer):
        raise LaunchError(f"bits={bits!r} of {found.element.name}: integers have 8 bits or 4, floats 8")
    codes = _narrow(_on_host(weights, found), bits)
    columns, depth = codes.shape
    scale = _by_columns(_numbers(scales, "scales", np.float32), codes.shape, "scales")
    if from_numpy(scale.dtype) not in arrays.FLOATS:
        raise LaunchError(f"scales must be float32, float16 or bfloat16, got {from_numpy(scale.dtype).name}")
    zero = None
    if zeros is not None:
        points = np.asarray(zeros) if isinstance(zeros, np.ndarray) else _numbers(zeros, "zeros")
        if points.dtype.kind not in "iu":
            raise LaunchError(f"zeros must be integers, got {points.dtype}")
        if found.element.is_float and points.any():
            raise LaunchError(f"weights of {found.element.name} have no zero points: leave zeros out")
        scale, zero = _same_groups(scale, _by_columns(points, codes.shape, "zeros"), depth)
    canon = canonical(codes, scale, zero)
    if isinstance(canon, str):
        raise LaunchError(f"weights cannot be packed: {canon}")
    codes, scale, zero = canon
    dtype, group = from_numpy(codes.dtype), depth // scale.shape[1]
    reason = unsupported_weights(dtypes.bfloat16, dtype, from_numpy(scale.dtype), group, depth)
    if reason:
        raise LaunchError(f"weights cannot be packed: {reason}")
    panels = packing.panels_recipe(COLUMNS, True)
    ordinal = found.place.ordinal if found.place is not None else None

    def placed(array: np.ndarray) -> Any:
        return array if ordinal is None else DeviceArray.from_numpy(array, ordinal)

    return PackedWeights(
        columns, depth, group, dtype, placed(packing.apply(packing.fragments_recipe(dtype), codes)),
        placed(packing.apply(panels, scale)), None if zero is None else placed(packing.apply(panels, zero)),
    )  # fmt: skip


def dequantized_matmul(
    x: Any,
    weights: PackedWeights,
    *,
    out: Any = None,
    out_dtype: Any = None,
    bias: Any = None,
    activation: str | None = None,
    residual: Any = None,
    weights_ready: bool = False,
) -> Any:
    """activation(x @ values.T + bias) + residual, with the values of packed weights.

    `x` is [..., depth], contiguous, bfloat16 or float16.  The weights are widened to its type and multiplied on the
    tensor cores; sums are float32 and scaled in float32. In groups of less than 64, or many rows, weights may be scaled
    and rounded instead.
    `out` [..., columns] is contiguous, of `out_dtype`: float32, float16 or bfloat16, by default the type of `x`.
    `bias` is [columns], `residual` like out, `activation` as in `matmul`.  Intended for up to about 256 rows, which
    take the time of reading the weights.  `weights_ready` promises that no running kernel writes the weights.

    The config is chosen as that of `matmul` is.  Raises `LaunchError`, also on GPUs other than compute capability 9.0.
    """
    first = arrays.view(x, "x")
    _check(first, weights)
    depth, columns = weights.depth, weights.columns
    rows = 1
    for extent in first.shape[:-1]:
        rows *= extent
    shape = (*first.shape[:-1], columns)
    given = None if out is None else arrays.view(out, "out")
    output = arrays.result_type(first.element, given, out_dtype)
    if output not in arrays.FLOATS:
        raise LaunchError(f"results are float32, float16 or bfloat16, not {output.name}")
    target = result_like(first, shape, output, given)
    arguments = {"bias": bias, "activation": activation, "residual": residual, "shape": shape}
    parts, extra = epilogue_of(arguments, rows, columns, depth, output)
    views = [first, target, *(entry for entry in extra if isinstance(entry, ArrayView))]
    place = arrays.common_place(views, "dequantized_matmul")
    ordinal = place.ordinal if place is not None else None
    if ordinal != (weights.codes.ordinal if isinstance(weights.codes, DeviceArray) else None):
        raise LaunchError("dequantized_matmul got x and weights on several devices: pack them on the GPU of x")
    if 0 in shape:
        return target.base
    problem = DequantizedProblem(
        rows, columns, depth, input=first.element, output=output, group=weights.group, weights=weights.dtype,
        aligned=target.address % DESCRIPTOR_ALIGNMENT == 0, scale=from_numpy(weights.scales.dtype),
        zeros=weights.zeros is not None, epilogue=parts.epilogue, weights_ready=weights_ready,
    )  # fmt: skip
    call = _DequantizedCall(problem, weights, first, target, tuple(extra), tuple(views), ordinal)
    call.bound(_config(call))()
    return target.base


@dataclass(frozen=True)
class _DequantizedCall:
    """The arrays of a call."""

    problem: DequantizedProblem
    weights: PackedWeights
    x: ArrayView
    out: ArrayView
    extra: tuple[Any, ...]
    views: tuple[ArrayView, ...]
    ordinal: int | None

    def arguments(self) -> list[Any]:
        """What the kernel is given."""
        problem, weights = self.problem, self.weights
        rows = self.x.changed((problem.rows, problem.depth), (problem.depth, 1))
        codes, scales = _packed(weights.codes), _packed(weights.scales)
        zeros = scales if weights.zeros is None else _packed(weights.zeros)
        tiled = tiled_views(DEQUANTIZED_PARAMETERS, rows, codes, scales, zeros)
        return [*tiled, self.out, problem.rows, problem.columns, problem.depth, *self.extra]

    def grid(self, config: DequantizedConfig) -> tuple[int, int, int]:
        """CTAs of a config."""
        return config.grid(self.problem.rows, self.problem.columns)

    def start(self, config: DequantizedConfig) -> Callable[..., Any]:
        """The launcher of a config."""
        return _start(config, pointer_types(self.extra), self.ordinal, self.problem.aligned)

    def bound(self, config: DequantizedConfig) -> Callable[[], Any]:
        """A launch on the stream of these arrays."""
        start = partial(self.start, config)
        return bound_launch(kernel, config, start, self.grid(config), self.arguments(), self.views, [self.out])

    def launch(self, config: DequantizedConfig) -> timers.Launch:
        """A launch on any stream."""
        return launch_on_any_stream(self.start(config), self.grid(config), self.arguments(), self)

    def cold(self) -> list[_DequantizedCall]:
        """The call with as many copies of the codes as do not fit the L2 cache."""
        assert self.ordinal is not None
        codes = arrays.cold(_packed(self.weights.codes), self.ordinal, arrays.target_at(self.ordinal).l2_bytes)
        return [replace(self, weights=replace(self.weights, codes=each.base)) for each in codes]


def _check(x: ArrayView, weights: PackedWeights) -> None:
    if not isinstance(weights, PackedWeights):
        raise LaunchError(f"weights must be made by pack_weights, got {type(weights).__name__}")
    if not x.shape or x.shape[-1] != weights.depth or not x.contiguous:
        raise LaunchError(f"x must be contiguous [..., {weights.depth}] for {weights}, got {x.described}")
    if x.element not in _INPUTS:
        raise LaunchError(f"x must be bfloat16 or float16, got {x.element.name}")
    if x.address % DESCRIPTOR_ALIGNMENT:
        raise LaunchError(f"x must begin at a multiple of {DESCRIPTOR_ALIGNMENT} bytes: copy it")


def _plan(
    problem: DequantizedProblem, ordinal: int | None
) -> tuple[Sequence[tuple[DequantizedConfig, float]], Alternatives]:
    """The configs worth timing for a problem with an epilogue, with estimated seconds, and which of them is taken."""
    key = (problem, ordinal, settings.tune)
    if key not in _PLANS:
        target, shape = arrays.target_at(ordinal), problem.shape_class
        if target.without_wgmma:
            raise LaunchError(f"{target.without_wgmma}: widen the weights, and use matmul")
        ranked = [
            (config._replace(DEPENDENT=problem.weights_ready), seconds)
            for config, seconds in close_configs(shape, target.machine())
        ]
        weights = f"{shape.weights.name} {shape.scale.name} by {shape.group}{' zeros' if shape.zeros else ''}"
        labels, numbers = [config.described for config, _ in ranked], range(len(ranked))
        if len(_PLANS) >= _MOST_DEQUANTIZED:
            _PLANS.clear()
        text = f"{shape.key} {weights}"
        _PLANS[key] = ranked, Alternatives("dequantized", text, ordinal, labels, numbers, numbers)
    return _PLANS[key]


def _config(call: _DequantizedCall) -> DequantizedConfig:
    """The config that a problem takes: by times on record, or by timing the close ones once, as they run in a model:
    one launch after the other, each with weights that come from memory."""
    ranked, alternatives = _plan(call.problem, call.ordinal)

    def trials() -> TrialCalls:
        own = replace(call, out=arrays.empty_like(call.out))
        cold = own.cold()
        return TrialCalls(
            lambda number: own.bound(ranked[number][0]),
            lambda number: [each.launch(ranked[number][0]) for each in cold],
            ranked[0][1],
        )

    return ranked[alternatives.choose(call.views, trials if settings.tune else None)][0]


def _packed(array: Any) -> ArrayView:
    """A contiguous array of packed weights, which are on the GPU of the call."""
    shape, address = tuple(array.shape), array.address if isinstance(array, DeviceArray) else 0
    return ArrayView(array, address, from_numpy(array.dtype), shape, arrays.packed_strides(shape), None)


def _start(config: DequantizedConfig, types: tuple[str, ...], ordinal: int | None, aligned: bool) -> Callable[..., Any]:
    """The launcher of a config, made once."""
    key = (config, types, ordinal, aligned)
    if key not in _PREPARED:
        if len(_PREPARED) >= _MOST_DEQUANTIZED:
            _PREPARED.clear()
        facts = {"out": Parameter("out", DESCRIPTOR_ALIGNMENT)} if aligned else {}
        target = arrays.target_at(ordinal)
        every = DEQUANTIZED_PARAMETERS.types(config, types)
        compiled: Any = kernel.compile(every, {"CONFIG": config}, facts, target=target)
        _PREPARED[key] = compiled.start(ordinal)
    return _PREPARED[key]


# Packing -------------------------------------------------------------------------------------------------------------


def _numbers(value: Any, name: str, of_python: Any = None) -> np.ndarray:
    """An array in the CPU's memory; a number of Python, as of the type `of_python`, becomes one without dimensions."""
    if isinstance(value, (int, float)):
        return np.asarray(value, of_python)
    return np.asarray(value) if isinstance(value, np.generic) else _on_host(value, arrays.view(value, name))


def _same_groups(scales: np.ndarray, zeros: np.ndarray, depth: int) -> tuple[np.ndarray, np.ndarray]:
    """Scales and zero points [columns, groups] for the finer groups of the two."""
    groups = max(scales.shape[1], zeros.shape[1])
    if groups % scales.shape[1] or groups % zeros.shape[1]:
        raise LaunchError(
            f"{scales.shape[1]} groups of scales and {zeros.shape[1]} of zeros along the depth {depth}: "
            "the number of one must divide that of the other"
        )
    first, second = (np.repeat(each, groups // each.shape[1], axis=1) for each in (scales, zeros))
    return first, second


def _on_host(value: Any, found: ArrayView) -> np.ndarray:
    """A copy in the CPU's memory, as NumPy's."""
    module = sys.modules[type(value).__module__.partition(".")[0]].__name__
    if module == "torch":
        torch = sys.modules["torch"]
        tensor = value.detach().cpu().contiguous().reshape(-1)  # one number without a dimension has no other view
        return np.asarray(tensor.view(torch.uint8).numpy().view(found.element.numpy).reshape(found.shape))
    if isinstance(value, DeviceArray):
        return value.numpy()
    return np.asarray(value.get() if hasattr(value, "get") else value)


def _narrow(codes: np.ndarray, bits: int) -> np.ndarray:
    """8-bit codes in the type of so many bits."""
    if bits == 8:
        return codes
    low, high = (-8, 7) if codes.dtype == np.int8 else (0, 15)
    if codes.min() < low or codes.max() > high:
        raise LaunchError(f"weights of 4 bits are from {low} to {high}, got {codes.min()} to {codes.max()}")
    return codes.astype((dtypes.int4 if low else dtypes.uint4).numpy)


def _by_columns(values: np.ndarray, shape: tuple[int, int], name: str) -> np.ndarray:
    """Scales or zero points as [columns, groups]."""
    columns, depth = shape
    blocks = (-(-columns // SCALE_BLOCK), -(-depth // SCALE_BLOCK))
    if values.size == 1:
        return np.broadcast_to(values.reshape(1, 1), (columns, 1))
    if values.shape == (columns,):
        return values[:, None]
    if values.ndim == 2 and values.shape[0] == columns and values.shape[1] and depth % values.shape[1] == 0:
        return values
    if values.shape == blocks and depth % SCALE_BLOCK == 0:
        return np.repeat(values, SCALE_BLOCK, axis=0)[:columns]
    raise LaunchError(
        f"{name} of weights {list(shape)} are one number, [{columns}], [{columns}, groups] of equal groups, or blocks "
        f"{list(blocks)}; got {list(values.shape)}"
    )
