"""Softmax and normalisation over the last axis, on arrays of a GPU."""

from __future__ import annotations

from typing import Any

from tilewright.errors import LaunchError
from tilewright.library.rows.simt_arrays import norm_launch, softmax_launch
from tilewright.ops import arrays
from tilewright.ops.arrays import ArrayView


def _row_stride(found: ArrayView) -> int | None:
    """The distance of an array's rows, whose leading axes are counted as one; None where it is not one number."""
    distance, passed = None, 1
    for extent, stride in zip(reversed(found.shape[:-1]), reversed(found.strides[:-1]), strict=True):
        if extent == 1:
            continue
        if distance is None:
            distance = stride
        elif stride != distance * passed:
            return None
        passed *= extent
    return found.shape[-1] if distance is None else distance


def _rows_of(found: ArrayView, name: str) -> tuple[int, int, int]:
    """Rows, columns and the distance of rows of an array, whose leading axes are counted as one."""
    if not found.shape:
        raise LaunchError(f"{name} must have an axis")
    columns, rows, stride = found.shape[-1], 1, _row_stride(found)
    if stride is None:
        raise LaunchError(f"the rows of {name} must be evenly apart: pass {name}.contiguous()")
    for extent in found.shape[:-1]:
        rows *= extent
    if columns > 1 and found.strides[-1] != 1:
        raise LaunchError(f"the last axis of {name} must be contiguous: pass {name}.contiguous()")
    return rows, columns, stride


def softmax(x: Any, *, log: bool = False, out: Any = None) -> Any:
    """softmax over the last axis of `x` [..., columns] (float32, float16, bfloat16), its logarithm with `log`.

    Computed in float32; `out` has the shape of `x` and any of the three types.  Raises `LaunchError`.
    """
    source = arrays.float_view(x, "x")
    target = arrays.float_view(arrays.empty(source, source.shape, source.element) if out is None else out, "out")
    if target.shape != source.shape:
        raise LaunchError(f"out must have the shape {list(source.shape)}")
    place = arrays.common_place([source, target], "softmax")
    rows, columns, stride = _rows_of(source, "x")
    out_stride = _rows_of(target, "out")[2]
    if rows * columns:
        launch = softmax_launch(rows, columns, arrays.machine_at(place))
        launch.kernel[launch.grid](
            source.base, target.base, rows, columns, stride, out_stride, LOG=bool(log), **launch.options
        )
    return target.base


def layer_norm(
    x: Any, weight: Any = None, bias: Any = None, *, epsilon: float = 1e-5, residual: Any = None,
    return_sum: bool = False, out: Any = None,
) -> Any:  # fmt: skip
    """(y - mean) / sqrt(variance + epsilon) * weight + bias over the last axis of y = x + residual.

    `weight` and `bias` [columns], `residual` like `x`; `return_sum` also gives y, of the type of `x`.  Computed in
    float32.  Raises `LaunchError`.
    """
    return _normalize(x, weight, bias, epsilon, residual, return_sum, out, center=True)


def rms_norm(
    x: Any, weight: Any = None, *, epsilon: float = 1e-6, residual: Any = None, return_sum: bool = False,
    out: Any = None,
) -> Any:  # fmt: skip
    """y / sqrt(mean of y^2 + epsilon) * weight over the last axis of y = x + residual; see `layer_norm`."""
    return _normalize(x, weight, None, epsilon, residual, return_sum, out, center=False)


def _normalize(
    x: Any, weight: Any, bias: Any, epsilon: float, residual: Any, return_sum: bool, out: Any, center: bool
) -> Any:
    source = arrays.float_view(x, "x")
    target = arrays.float_view(arrays.empty(source, source.shape, source.element) if out is None else out, "out")
    rows, columns, stride = _rows_of(source, "x")
    out_stride = _rows_of(target, "out")[2]
    present = [source, target]
    for name, value in (("weight", weight), ("bias", bias)):
        if value is not None:
            found = arrays.float_view(value, name)
            if found.shape != (columns,) or not found.contiguous:
                raise LaunchError(f"{name} must be contiguous of shape [{columns}], got {found.described}")
            present.append(found)
    residual_stride = 0
    if residual is not None:
        found = arrays.float_view(residual, "residual")
        if found.shape != source.shape:
            raise LaunchError(f"residual must have the shape {list(source.shape)}, got {list(found.shape)}")
        residual_stride = _rows_of(found, "residual")[2]
        present.append(found)
    if target.shape != source.shape:
        raise LaunchError(f"out must have the shape {list(source.shape)}")
    total = None
    if return_sum:
        total = arrays.empty(source, source.shape, source.element)
        if out_stride != columns:
            raise LaunchError("return_sum needs a contiguous out")
    place = arrays.common_place(present, "layer_norm" if center else "rms_norm")
    if rows * columns:
        inputs, weighted = 1 if residual is None else 2, weight is not None or bias is not None
        launch = norm_launch(rows, columns, inputs, weighted, arrays.machine_at(place))
        launch.kernel[launch.grid](
            source.base, weight, bias, residual, total, target.base, rows, columns, stride, residual_stride,
            out_stride, 1.0 / columns, float(epsilon), CENTER=center, **launch.options,
        )  # fmt: skip
    return (target.base, total) if return_sum else target.base
