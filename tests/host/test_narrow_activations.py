"""Activations of 16-bit floats are rounded once: their own numbers, such as 1/6, are not rounded to 16 bits."""

import pytest
import torch
from torch.nn import functional as F

import tilewright

ACTIVATIONS = {
    "hardsigmoid": F.hardsigmoid,
    "hardswish": F.hardswish,
    "leaky_relu": F.leaky_relu,
    "elu": lambda x: F.elu(x, 0.3),
    "selu": F.selu,
    "celu": lambda x: F.celu(x, 0.7),
    "log2": lambda x: torch.log2(x.abs()),
    "log10": lambda x: torch.log10(x.abs()),
}


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=["float16", "bfloat16"])
def test_one_rounding(rng, dtype):
    x = torch.from_numpy(3 * rng.standard_normal(4096)).to(dtype)

    class Activations(torch.nn.Module):
        def forward(self, x):
            return tuple(function(x) for function in ACTIVATIONS.values())

    results = tilewright.compile(Activations().eval(), (x,))(x)
    half = torch.finfo(dtype).eps / 2
    for name, function, result in zip(ACTIVATIONS, ACTIVATIONS.values(), results, strict=True):
        expected = function(x.double())
        # Half a unit in the last place, and some roundings of float32 on the way (sums near -1 and 1 cancel).
        allowed = half * expected.abs().clamp(min=float(torch.finfo(dtype).tiny)) * 1.001 + 8 * 2.0**-24
        wrong = (torch.as_tensor(result).double() - expected).abs() > allowed
        assert not wrong.any(), (name, x[wrong][:5], expected[wrong][:5])


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=["float16", "bfloat16"])
def test_hard_sigmoid_reaches_one(dtype):
    x = torch.arange(-5, 6).to(dtype)
    engine = tilewright.compile(torch.nn.Hardsigmoid().eval(), (x,))
    assert torch.equal(torch.as_tensor(engine(x)), F.hardsigmoid(x))
