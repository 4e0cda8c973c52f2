"""Special functions of PyTorch, computed in float64."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from tilewright.dtypes import float64
from tilewright.graph.core import Value
from tilewright.importers import airy, bessel, formulas, special
from tilewright.importers.emitter import Emitter, Scalar
from tilewright.importers.incomplete_gamma import incomplete_gamma
from tilewright.importers.polynomials import POLYNOMIALS, orthogonal_polynomial, polynomials_of_orders
from tilewright.importers.rules import RuleTable
from tilewright.importers.torch_fx import TorchCall

TABLE = RuleTable("Special functions", "aten.")


def _in_float64(formula: Callable[[Emitter, Value], Value]) -> Callable[[TorchCall, Value], Value]:
    def rule(call: TorchCall, x: Value) -> Value:
        return call.cast(formula(call, call.cast(x, float64)), call.dtype)

    return rule


_FUNCTIONS: dict[str, Callable[[Emitter, Value], Value]] = {
    "i0": partial(special.bessel_i, order=0, scaled=False),
    "special_i0e": partial(special.bessel_i, order=0, scaled=True),
    "special_i1": partial(special.bessel_i, order=1, scaled=False),
    "special_i1e": partial(special.bessel_i, order=1, scaled=True),
    "special_modified_bessel_i0": partial(special.bessel_i, order=0, scaled=False),
    "special_modified_bessel_i1": partial(special.bessel_i, order=1, scaled=False),
    "special_modified_bessel_k0": partial(special.bessel_k, order=0, scaled=False),
    "special_modified_bessel_k1": partial(special.bessel_k, order=1, scaled=False),
    "special_scaled_modified_bessel_k0": partial(special.bessel_k, order=0, scaled=True),
    "special_scaled_modified_bessel_k1": partial(special.bessel_k, order=1, scaled=True),
    "special_bessel_j0": partial(bessel.bessel_j, order=0),
    "special_bessel_j1": partial(bessel.bessel_j, order=1),
    "special_bessel_y0": partial(bessel.bessel_y, order=0),
    "special_bessel_y1": partial(bessel.bessel_y, order=1),
    "special_spherical_bessel_j0": bessel.spherical_bessel_j0,
    "special_airy_ai": airy.airy_ai,
    "special_erfcx": special.scaled_erfc,
    "special_log_ndtr": special.log_ndtr,
    "special_ndtri": special.ndtri,
}
for _name, _formula in _FUNCTIONS.items():
    TABLE.add(f"{_name}.default", _in_float64(_formula))


def _of_order(family: str) -> Callable[[TorchCall, Value, float], Value]:
    def rule(call: TorchCall, x: Value, n: float) -> Value:
        return call.cast(orthogonal_polynomial(call, call.cast(x, float64), family, int(n)), call.dtype)

    return rule


def _of_orders(family: str) -> Callable[[TorchCall, Scalar, Value], Value]:
    def rule(call: TorchCall, x: Scalar, n: Value) -> Value:
        points, orders = (call.broadcast(each, call.shape) for each in call.pair(x, n, float64))
        return call.cast(polynomials_of_orders(call, points, family, orders), call.dtype)

    return rule


for _name in POLYNOMIALS:
    TABLE.add(f"special_{_name}.n_scalar", _of_order(_name))
    TABLE.add(f"special_{_name}.default", _of_orders(_name))
    TABLE.add(f"special_{_name}.x_scalar", _of_orders(_name))


@TABLE.rule("polygamma.default")
def polygamma(call: TorchCall, n: int, x: Value) -> Value:
    wide = call.cast(x, float64)
    return call.cast(special.polygamma(call, n, wide) if n else formulas.digamma(call, wide), call.dtype)


@TABLE.rule("special_zeta.default", "special_zeta.other_scalar", "special_zeta.self_scalar")
def zeta(call: TorchCall, x: Scalar, q: Scalar) -> Value:
    return call.cast(special.zeta(call, *call.pair(x, q, float64)), call.dtype)


@TABLE.rule("igamma.default")
def lower_incomplete_gamma(call: TorchCall, a: Value, x: Value) -> Value:
    return call.cast(incomplete_gamma(call, *call.pair(a, x, float64), upper=False), call.dtype)


@TABLE.rule("igammac.default")
def upper_incomplete_gamma(call: TorchCall, a: Value, x: Value) -> Value:
    return call.cast(incomplete_gamma(call, *call.pair(a, x, float64), upper=True), call.dtype)
