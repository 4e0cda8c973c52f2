"""PyTorch's arithmetic with other roundings: what a program's results may differ by shows in such runs.

Every number is changed by the size of its rounding error (after Parker's Monte Carlo arithmetic).  `Formulas` also
adds sums up one term after the other, in the type that kernels sum in, and computes norms, variances, softmax and
attention by their formulas.  PyTorch sums in pairs and sums the squares of a variance in float64, so that its own
results show neither the rounding errors of long sums nor where squares leave the range of float32.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from typing import Any

import torch
from torch.nn import functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_map

EPSILON = {dtype: torch.finfo(dtype).eps for dtype in (torch.float32, torch.float64, torch.float16, torch.bfloat16)}
_EXTREMES = frozenset("clamp clamp_min clamp_max hardtanh relu maximum minimum amax amin max min".split())
_BINARY = frozenset("add sub mul div".split())
_ZEROS = _EXTREMES | frozenset(
    "add sub rsub sum cumsum mean mm bmm addmm baddbmm native_layer_norm convolution".split()
)
# Sums of terms of either sign: where these cancel, the rounding errors of terms and of parts of the sum are left.
_TERMS = frozenset(
    "sum mean cumsum mm bmm mv dot addmm baddbmm convolution avg_pool1d avg_pool2d _adaptive_avg_pool2d".split()
)
_SELECTIONS = _EXTREMES | frozenset(
    "abs neg sign clone where masked_fill cat stack index index_select gather sort".split()
)


class Perturbed(TorchDispatchMode):
    """Every floating-point result, and every term of a sum, is changed by up to its last place, element by element."""

    def __init__(self, seed: int) -> None:
        super().__init__()
        self.generator = torch.Generator().manual_seed(
            random.Random(seed).getrandbits(63)
        )  # those of 0, 1, .. are alike
        self.zero = torch.tensor(-0.0 if seed % 2 else 0.0, dtype=torch.float64)
        self.coarsest = 0.0  # the greatest rounding error of a type that was seen

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if _base(function) in _TERMS:  # each time that it is read: equal terms have different errors
            args, kwargs = tree_map(self.changed, (args, kwargs))
        result = self.compute(function, args, kwargs or {})
        if _base(function) in _ZEROS:
            result = tree_map(self.zeros, result)
        return result if _exact(function, args, result) else tree_map(self.changed, result)

    def compute(self, function: Any, args: Any, kwargs: Any) -> Any:
        """The result before it is changed."""
        return function(*args, **kwargs)

    def attention(self) -> AbstractContextManager[Any]:
        """In which attention is computed as this run does it."""
        return sdpa_kernel(SDPBackend.MATH)  # which differs from PyTorch's kernels where scores are NaN

    def zeros(self, value: Any) -> Any:
        """Zeros with the sign of this run: that of sums and of the larger of two zeros is that of some order."""
        if not isinstance(value, torch.Tensor) or value.dtype not in EPSILON:
            return value
        return torch.where(value == 0, self.zero, value.double()).to(value.dtype)

    def changed(self, value: Any) -> Any:
        """A tensor within one unit in the last place; other things as they are."""
        if not isinstance(value, torch.Tensor) or value.dtype not in EPSILON or value.is_sparse:
            return value
        self.coarsest = max(self.coarsest, EPSILON[value.dtype])
        noise = torch.rand(value.shape, generator=self.generator, dtype=torch.float64) * 2 - 1
        wide = value.double()
        return torch.where(wide.isfinite(), wide * (1 + noise * EPSILON[value.dtype]), wide).to(value.dtype)


class Widened(TorchDispatchMode):
    """Numbers that a program casts to a narrower type are rounded, and computed with in the wide one from there on."""

    def __init__(self, dtype: torch.dtype) -> None:
        super().__init__()
        self.dtype = dtype

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = function(*args, **(kwargs or {}))
        narrow = _base(function) == "_to_copy" and EPSILON.get(result.dtype, 0) > torch.finfo(self.dtype).eps
        return result.to(self.dtype) if narrow else result


class Formulas(Perturbed):
    """`Perturbed`, with sums in sequence, forwards or `backwards`, and composite operations by their formulas."""

    def __init__(self, seed: int, backwards: bool) -> None:
        super().__init__(seed)
        self.backwards = backwards

    def attention(self) -> AbstractContextManager[Any]:
        return _Attention()

    def compute(self, function: Any, args: Any, kwargs: Any) -> Any:
        name = _base(function)
        floats = args and isinstance(args[0], torch.Tensor) and args[0].dtype in EPSILON
        if floats and name in _SUMS:
            return getattr(self, _SUMS[name])(*args, **kwargs)
        if floats and name in _COMPOSITES:
            with self:  # every operation of the formula is perturbed
                return _COMPOSITES[name](*args, **kwargs)
        return super().compute(function, args, kwargs)

    # Sums ---------------------------------------------------------------------------------------------

    def in_sequence(self, terms: torch.Tensor, combine: Callable[..., torch.Tensor] = torch.add) -> torch.Tensor:
        """The terms along the last axis, one after the other."""
        first, *others = terms.unbind(-1)[:: -1 if self.backwards else 1] or [terms.new_zeros(terms.shape[:-1])]
        for term in others:
            first = combine(first, term)
        return first

    def sum(self, x: torch.Tensor, dim: Any = None, keepdim: bool = False, dtype: Any = None) -> torch.Tensor:
        """torch.sum"""
        wide = _wide(x)
        axes = _axes(x, dim)
        other_axes = [axis for axis in range(x.dim()) if axis not in axes]
        total = self.in_sequence(
            wide.permute(*other_axes, *axes).flatten(len(other_axes)) if axes else wide.unsqueeze(-1)
        )
        if keepdim:
            total = total.reshape([1 if axis in axes else extent for axis, extent in enumerate(x.shape)])
        return total.to(dtype or x.dtype)

    def mean(self, x: torch.Tensor, dim: Any = None, keepdim: bool = False, dtype: Any = None) -> torch.Tensor:
        """torch.mean"""
        return (self.sum(_wide(x), dim, keepdim) / _count(x, dim)).to(dtype or x.dtype)

    def prod(self, x: torch.Tensor, dim: Any = None, keepdim: bool = False, dtype: Any = None) -> torch.Tensor:
        """torch.prod along one axis"""
        (axis,) = _axes(x, dim)
        found = self.in_sequence(_wide(x).movedim(axis, -1), torch.mul)
        return (found.unsqueeze(axis) if keepdim else found).to(dtype or x.dtype)

    def cumsum(self, x: torch.Tensor, dim: int, dtype: Any = None) -> torch.Tensor:
        """torch.cumsum, always forwards"""
        if not x.dim():
            return x.clone()
        sums: list[torch.Tensor] = []
        for term in _wide(x).unbind(dim):
            sums.append(sums[-1] + term if sums else term)
        return torch.stack(sums, dim).to(dtype or x.dtype)

    def mm(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        """Products of matrices, batches of them or a vector"""
        if x.dim() == 1 or y.dim() == 1:
            return self.in_sequence(_wide(x) * _wide(y)).to(x.dtype)
        wide, other = _wide(x), _wide(y)
        steps = range(x.shape[-1])[:: -1 if self.backwards else 1]
        total = wide.new_zeros([*x.shape[:-1], y.shape[-1]])
        for step in steps:
            total = total + wide[..., step, None] * other[..., step, None, :]
        return total.to(x.dtype)

    def addmm(
        self, bias: torch.Tensor, x: torch.Tensor, y: torch.Tensor, *, beta: float = 1, alpha: float = 1
    ) -> torch.Tensor:
        """torch.addmm, torch.baddbmm"""
        return (beta * _wide(bias) + alpha * self.mm(_wide(x), _wide(y))).to(x.dtype)


class Fused(Formulas):
    """`Formulas` on the numbers as they are, as fused kernels compute: products are added before they are rounded,
    operands get the type of the result first, and equal numbers have no variance."""

    def changed(self, value: Any) -> Any:
        return value

    def compute(self, function: Any, args: Any, kwargs: Any) -> Any:
        name = _base(function)
        if name in _BINARY and all(isinstance(each, torch.Tensor) and each.dim() for each in args[:2]):
            common = torch.result_type(args[0], args[1])  # PyTorch reads single numbers in a wider type
            args = (args[0].to(common), args[1].to(common), *args[2:])
        result = super().compute(function, args, kwargs)
        if name in ("var", "std") and args[0].numel():
            x, axes = args[0], _axes(args[0], args[1] if len(args) > 1 else None)
            equal = _all_equal(x, axes)
            equal = equal if kwargs.get("keepdim", False) else equal.squeeze(tuple(axes))
            result = torch.where(equal & ~result.isnan(), 0.0, result)
        if name == "convolution" and self.backwards and not args[0].isfinite().all():
            result = _spread(result)
        if name == "native_layer_norm" and args[0].numel():
            x, shape, _, bias, _ = args
            equal = _all_equal(x, range(x.dim() - len(shape), x.dim()))
            result = (torch.where(equal, 0.0 if bias is None else bias, result[0]).to(x.dtype), *result[1:])
        return result

    def prod(self, x: torch.Tensor, dim: Any = None, keepdim: bool = False, dtype: Any = None) -> torch.Tensor:
        """With zeros last, or first when backwards: 0 times what the other factors overflowed to is NaN."""
        (axis,) = _axes(x, dim)
        found = super().prod(x, dim, keepdim, dtype)
        if not x.shape[axis]:
            return found
        others = torch.where(x == 0, 1.0, _wide(x)).prod(axis, keepdim=keepdim)
        overflows = (x == 0).any(axis, keepdim=keepdim) & x.isfinite().all(axis, keepdim=keepdim) & others.isinf()
        return torch.where(overflows, 0.0 if self.backwards else math.nan, found)

    def mm(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        if x.dtype == torch.float64 or x.dim() == 1 or y.dim() == 1:
            return super().mm(x, y)
        wide, other = x.double(), y.double()
        total = torch.zeros([*x.shape[:-1], y.shape[-1]])
        for step in range(x.shape[-1]):
            total = (total.double() + wide[..., step, None] * other[..., step, None, :]).float()
        return total.to(x.dtype)


class _Attention(TorchFunctionMode):
    """Attention by its formula, in which keys that a query does not see add nothing, not 0 times what they are."""

    def __torch_function__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if function is not torch.nn.functional.scaled_dot_product_attention:
            return function(*args, **(kwargs or {}))
        query, key, value = args
        scores = (query / math.sqrt(query.shape[-1])) @ key.transpose(-1, -2)
        seen = torch.ones(scores.shape[-2:], dtype=torch.bool)
        if (kwargs or {}).get("is_causal"):
            seen = seen.tril()
        weights = torch.softmax(scores.masked_fill(~seen, -math.inf), -1)
        terms = torch.where(seen.unsqueeze(-1), weights.unsqueeze(-1) * value.unsqueeze(-3), 0.0)
        return terms.sum(-2)


# Composite operations ------------------------------------------------------------------------------


def _centred(x: torch.Tensor, axes: Sequence[int]) -> torch.Tensor:
    # Kernels may subtract the mean from a product that was not rounded: half a unit of x is left where x is the mean.
    half = torch.rand(x.shape, generator=torch.Generator().manual_seed(x.numel())).round() - 0.5
    return x - x.mean(axes, keepdim=True) + x * (EPSILON[x.dtype] * half)


def _variance(
    x: torch.Tensor, dim: Any = None, *, correction: float | None = None, keepdim: bool = False
) -> torch.Tensor:
    difference = _centred(x, _axes(x, dim))
    count = max(0.0, _count(x, dim) - (1 if correction is None else correction))
    return (difference * difference).sum(_axes(x, dim), keepdim=keepdim) / count


def _deviation(
    x: torch.Tensor, dim: Any = None, *, correction: float | None = None, keepdim: bool = False
) -> torch.Tensor:
    return _variance(x, dim, correction=correction, keepdim=keepdim).sqrt()


def _vector_norm(x: torch.Tensor, ord: float = 2, dim: Any = None, keepdim: bool = False) -> torch.Tensor:
    axes = _axes(x, dim)
    if ord == 2:
        return (x * x).sum(axes, keepdim=keepdim).sqrt()
    return x.abs().sum(axes, keepdim=keepdim) if ord == 1 else x.abs().amax(axes, keepdim=keepdim)


def _normalized(x: torch.Tensor, axes: Sequence[int], epsilon: float) -> torch.Tensor:
    return x / ((x * x).mean(axes, keepdim=True) + epsilon).sqrt()


def _layer_norm(x: torch.Tensor, shape: Any, weight: Any, bias: Any, epsilon: float) -> tuple[torch.Tensor, ...]:
    axes = list(range(x.dim() - len(shape), x.dim()))
    result = _scaled(_normalized(_centred(_wide(x), axes), axes, epsilon), weight, bias).to(x.dtype)
    return result, torch.zeros(()), torch.zeros(())


def _rms_norm(x: torch.Tensor, shape: Any, weight: Any, epsilon: float | None) -> tuple[torch.Tensor, ...]:
    epsilon = EPSILON[x.dtype] if epsilon is None else epsilon
    found = _normalized(_wide(x), list(range(x.dim() - len(shape), x.dim())), epsilon)
    return _scaled(found, weight, None).to(x.dtype), torch.zeros(())


def _group_norm(
    x: torch.Tensor, weight: Any, bias: Any, batch: int, channels: int, size: int, groups: int, epsilon: float
) -> tuple[torch.Tensor, ...]:
    rows = _wide(x).reshape(batch, groups, -1)
    result = _normalized(_centred(rows, [2]), [2], epsilon).reshape(x.shape)
    shape = [1, channels, *[1] * (x.dim() - 2)]
    weight, bias = (None if each is None else each.reshape(shape) for each in (weight, bias))
    return _scaled(result, weight, bias).to(x.dtype), torch.zeros(()), torch.zeros(())


def _scaled(x: torch.Tensor, weight: Any, bias: Any) -> torch.Tensor:
    x = x if weight is None else x * weight
    return x if bias is None else x + bias


def _gelu(x: torch.Tensor, approximate: str = "none") -> torch.Tensor:
    wide = _wide(x)
    return (wide * 0.5 * (1 + torch.erf(wide * 0.5**0.5))).to(x.dtype)


def _softmax(x: torch.Tensor, dim: int, half_to_float: bool = False) -> torch.Tensor:
    weights = (_wide(x) - _wide(x).amax(dim, keepdim=True)).exp()
    return (weights / weights.sum(dim, keepdim=True)).to(x.dtype)


def _log_softmax(x: torch.Tensor, dim: int, half_to_float: bool = False) -> torch.Tensor:
    shifted = _wide(x) - _wide(x).amax(dim, keepdim=True)
    return (shifted - shifted.exp().sum(dim, keepdim=True).log()).to(x.dtype)


def _logsumexp(x: torch.Tensor, dim: Any, keepdim: bool = False) -> torch.Tensor:
    axes = _axes(x, dim)
    largest = x.amax(axes, keepdim=True)
    largest = torch.where(largest.abs() == math.inf, 0.0, largest)
    found = (x - largest).exp().sum(axes, keepdim=True).log() + largest
    return found if keepdim else found.squeeze(list(axes))


_SUMS: dict[str, str] = {
    "sum": "sum",
    "mean": "mean",
    "prod": "prod",
    "cumsum": "cumsum",
    "mm": "mm",
    "bmm": "mm",
    "mv": "mm",
    "dot": "mm",
    "addmm": "addmm",
    "baddbmm": "addmm",
}
_COMPOSITES: dict[str, Callable[..., Any]] = {
    "var": _variance,
    "std": _deviation,
    "linalg_vector_norm": _vector_norm,
    "native_layer_norm": _layer_norm,
    "_fused_rms_norm": _rms_norm,
    "native_group_norm": _group_norm,
    "gelu": _gelu,
    "_softmax": _softmax,
    "_log_softmax": _log_softmax,
    "logsumexp": _logsumexp,
}


def _base(function: Any) -> str:
    name: str = function.name().removeprefix("aten::")
    return name.partition(".")[0]


def _exact(function: Any, args: Any, result: Any) -> bool:
    """Whether no implementation rounds: views, copies, choices, exact casts, products with powers of two."""
    schema = function._schema
    if any(each.alias_info is not None for each in (*schema.arguments, *schema.returns)):
        return True
    name = _base(function)
    if name == "_to_copy":
        return not args[0].is_complex() and torch.equal(result.double(), args[0].double())
    if name == "mul" and isinstance(args[1], torch.Tensor | int | float) and not getattr(args[1], "dim", int)():
        return math.frexp(abs(float(args[1])))[0] == 0.5
    return name in _SELECTIONS or name.startswith(("fill", "copy", "detach"))


def _spread(image: torch.Tensor) -> torch.Tensor:
    """NaN in all channels around numbers that are none, as convolutions by Winograd's algorithm give in a tile."""
    bad = (~image.isfinite()).any(1, keepdim=True).double()
    pool = {3: F.max_pool1d, 4: F.max_pool2d}.get(image.dim())
    return image if pool is None else torch.where(pool(bad, 7, 1, 3) > 0, math.nan, image)


def _all_equal(x: torch.Tensor, axes: Sequence[int]) -> torch.Tensor:
    """Whether all numbers along the axes, which are kept with extent 1, are equal."""
    return x.amax(tuple(axes), keepdim=True) == x.amin(tuple(axes), keepdim=True)


def _wide(x: torch.Tensor) -> torch.Tensor:
    """In the type that kernels sum in."""
    return x if x.dtype == torch.float64 else x.float()


def _axes(x: torch.Tensor, dim: Any) -> list[int]:
    if not x.dim():
        return []
    found = [dim] if isinstance(dim, int) else dim or range(x.dim())
    return sorted({axis % x.dim() for axis in found})


def _count(x: torch.Tensor, dim: Any) -> int:
    return math.prod(x.shape[axis] for axis in _axes(x, dim))
