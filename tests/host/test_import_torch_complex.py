"""Complex numbers as pairs, Fourier transforms and torchvision's operators, through modules, against PyTorch."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")

import tilewright  # noqa: E402
from tilewright.dtypes import float64  # noqa: E402
from tilewright.errors import InputError  # noqa: E402
from tilewright.graph import reference  # noqa: E402
from tilewright.importers import import_model  # noqa: E402

fft = torch.fft
DOUBLE, PAIRS = torch.float64, torch.complex128


class Function(torch.nn.Module):
    def __init__(self, function: Callable[..., Any]) -> None:
        super().__init__()
        self.function = function

    def forward(self, *arguments: Any) -> Any:
        return self.function(*arguments)


def as_array(tensor: Any) -> np.ndarray:
    """A tensor as an engine gives and takes it."""
    tensor = tensor.detach()
    return (torch.view_as_real(tensor.resolve_conj()) if tensor.is_complex() else tensor).numpy()


def check(module: Any, *inputs: Any, dynamic_shapes: Any = None) -> None:
    """The graph of a module gives what PyTorch gives, in float64 on both sides."""
    module = (module if isinstance(module, torch.nn.Module) else Function(module)).eval()
    graph = import_model(module, inputs, dynamic_shapes)
    found = reference.run(graph, {v.name: as_array(x) for v, x in zip(graph.inputs, inputs, strict=True)})
    wanted = torch.utils._pytree.tree_leaves(module(*inputs))
    assert len(found) == len(wanted)
    for got, want in zip(found.values(), map(as_array, wanted), strict=True):
        assert got.shape == want.shape
        np.testing.assert_allclose(got, want, rtol=1e-6, atol=1e-9)


def real(*shape: int) -> Any:
    return torch.randn(*shape, dtype=DOUBLE)


def pairs(*shape: int) -> Any:
    return torch.randn(*shape, dtype=PAIRS)


@pytest.mark.parametrize(
    "function",
    [
        lambda x: fft.fft(x).abs(),
        lambda x: fft.rfft(x, dim=1).angle(),
        lambda x: fft.rfft(x, n=12),
        lambda x: fft.rfft(x, n=5, norm="forward"),
        lambda x: fft.irfft(fft.rfft(x, dim=1) * 2j, n=x.shape[1], dim=1),
        lambda x: fft.irfft2(fft.rfft2(x, norm="ortho")[:, :3], s=(6, 8), norm="ortho"),
        lambda x: fft.hfft(torch.complex(x, x), norm="backward"),
        lambda x: fft.fftshift(fft.fftn(x)).real,
        lambda x: torch.complex(x, 2 * x).sum(1),
        lambda x: torch.polar(x.abs(), x),
        lambda x: torch.view_as_complex(x.reshape(2, 6, 4, 2)) + 1,
        lambda x: x * (0.5 - 2j),
    ],
)
def test_transforms_of_real_numbers(function: Any) -> None:
    check(function, real(2, 6, 8))


@pytest.mark.parametrize(
    "function",
    [
        fft.fft2,
        lambda x: fft.ifft(x, dim=1),
        lambda x: x.conj() * x,
        lambda x: x / x.flip(0),
        lambda x: 1 / x,
        lambda x: x - x.flip(1).mul(3) + x.real,
        lambda x: x @ x.mT,
        lambda x: torch.einsum("bij,bkj->bik", x, x),
        lambda x: x.abs().square().sum(-1) + x.imag.mean(),
        lambda x: torch.stack([x, -x], 1).reshape(2, -1),
        lambda x: torch.cat([x, x.real.to(PAIRS)]),
        lambda x: x.exp() + x.pow(2),
        lambda x: [
            x.log(),
            x.log10(),
            x.sqrt(),
            (-x).rsqrt(),
            x.sgn(),
            torch.complex(-x.real.abs(), -0.0 * x.real).sqrt(),
        ],
        lambda x: [x.sin(), x.cos(), x.tan(), x.sinh(), x.cosh(), x.tanh(), x.sigmoid(), (x.real * 1e3 + 1j).tanh()],
        lambda x: [x**5, x**-2, x**0.5, x**1.7, (x * 0) ** (1 + 2j), x ** x.conj(), 2.0**x, (x * 0) ** (x * 0), x**0],
        lambda x: [x.asin(), x.acos(), x.atan(), x.asinh(), x.acosh(), x.atanh()],
        lambda x: [x.norm(), torch.linalg.vector_norm(x, 3, 1), x.var(1), x.std((0, 2), correction=0)],
        lambda x: [*torch.var_mean(x, 2), x.cumprod(1), x.cumprod(-1), x.cumsum(2)],
        lambda x: [x.isnan(), (x / 0).isnan(), x != x.conj(), x != 1 + 2j, (x / 0).nan_to_num(1.0, 3.0)],
        lambda x: [
            (x * (x.real > 0)).any(1),
            x.all(),
            x.logical_not(),
            torch.addmm(x[0], x[0], x[0].mT @ x[1], alpha=2),
        ],
        lambda x: torch.linalg.solve(x @ x.mH, x),
        lambda x: [torch.linalg.svdvals(x), torch.linalg.svdvals(x.mT)],
        lambda x: torch.where(x.real > 0, x, 0),
        lambda x: x.roll(1, 1)[:, ::2].permute(2, 0, 1).sum((0, 1)),
        lambda x: (torch.zeros_like(x) + x) == x,
        lambda x: x.to(torch.complex64).to(PAIRS).real.float(),
    ],
)
def test_complex_numbers(function: Any) -> None:
    """Inputs and results that are complex are given as pairs."""
    check(function, pairs(2, 6, 8))


@pytest.mark.parametrize(
    ("function", "numbers"),
    [
        (torch.tan, [1.57, 1.5707963267948966, -4.71238898038469 + 1e-12j, 1e-20 + 400j]),
        (torch.tanh, [1.5707963267948966j, 1e-9 - 1.5707963j, 30 + 1j, -500 + 1e308j, complex(math.inf, 1)]),
        (torch.sigmoid, [-10 + 1j, -30 + 1j, 30 - 2j, -700 + 3j, 800 + 1j, 1e-7 + 3.1415j, complex(math.inf, 1)]),
        (lambda x: [x**-3, x**-2.0], [1e200j, 1e130 + 1e120j, -3 + 4e-3j]),
        (
            lambda x: [x.asin(), x.acos(), x.atan(), x.asinh(), x.acosh(), x.atanh()],
            [
                0.5,
                -0.5,
                2 + 0j,
                complex(2, -0.0),
                -3 + 0j,
                1e-20 + 1e-20j,
                1 + 1e-9j,
                3j,
                -3j,
                1e-9 + 1.0000001j,
                1e100,
            ],
        ),
        (torch.sqrt, [1.7e308, -1.7e308 + 1.7e308j, 1e-320j, complex(3, -math.inf), complex(-math.inf, 2)]),
        (torch.log, [1.7e308 - 1.7e308j, 1 + 1e-9j, 1e-9 - 1j, 1e-320, complex(1, math.inf)]),
        (lambda x: [x.exp(), x.sinh(), x.cosh()], [1e4, -1e4, complex(math.inf, 0)]),
    ],
)
def test_complex_numbers_near_poles_and_out_of_range(function: Any, numbers: list[complex]) -> None:
    """No part is lost by a sum that cancels, a product that overflows, or 0 times infinity."""
    x = torch.tensor(numbers, dtype=PAIRS)
    graph = import_model(Function(function).eval(), (x,), None)
    found = reference.run(graph, {graph.inputs[0].name: as_array(x)}).values()
    for got, want in zip(found, torch.utils._pytree.tree_leaves(function(x)), strict=True):
        np.testing.assert_allclose(got, as_array(want), rtol=1e-9)


def test_a_complex_number_to_an_infinite_power() -> None:
    graph = import_model(Function(lambda x: x**math.inf).eval(), (pairs(2),), None)
    assert graph.outputs


def test_writes_and_products_of_complex_numbers() -> None:
    def write(x: Any, index: Any, place: Any) -> Any:
        zeros = torch.zeros(4, 5, dtype=PAIRS)
        scattered = zeros.scatter(1, index, x[:, :3]), zeros.scatter(1, index, 2.5), zeros.scatter_add(1, index, x)
        rows = zeros.index_add(0, place[None], x[:1]), zeros.index_copy(0, place[None], x[:1])
        zeros[1], zeros[:, 3] = x[0] * 2, 1j
        zeros[torch.tensor([0, 2])] = x[:2]
        masked = zeros.masked_fill(x.real > 0, 2 + 1j)
        zeros.imag.copy_(zeros)
        return *scattered, *rows, zeros, masked, x.prod(), x.prod(0), x[:3].prod(0, keepdim=True), x[:0].prod(0)

    index = torch.tensor([[0, 3, 4], [1, 2, 3], [4, 0, 1], [2, 4, 3]])
    check(write, pairs(4, 5), index, torch.tensor(2))


def test_rows_without_dimensions() -> None:
    one = real(1)
    check(lambda x: (x[0].softmax(0), x[0].log_softmax(0), fft.fft(x), fft.irfft(fft.rfft(x), 1)), one)


def test_short_time_transforms() -> None:
    window = torch.hann_window(16, dtype=DOUBLE)

    def there_and_back(x: torch.Tensor) -> torch.Tensor:
        return torch.istft(torch.stft(x, 16, 4, window=window, return_complex=True), 16, 4, window=window)

    check(there_and_back, real(2, 64))


def test_the_same_transform_for_every_batch() -> None:
    check(lambda x: fft.irfft(fft.rfft(x), n=6), real(3, 6), dynamic_shapes={"arguments_0": {0: ("batch", 1, 9)}})


class Turned(torch.nn.Module):
    """Rotary positions by complex numbers; the angles are a parameter, a buffer or a constant."""

    def __init__(self, kind: str) -> None:
        super().__init__()
        turns = torch.polar(torch.ones(2, dtype=DOUBLE), torch.tensor([0.5, 1.0], dtype=DOUBLE))
        if kind == "parameter":
            self.turns = torch.nn.Parameter(turns)
        elif kind == "buffer":
            self.register_buffer("turns", turns)
        else:
            self.turns = turns

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.view_as_real(torch.view_as_complex(x.reshape(-1, 2, 2)) * self.turns).flatten(1)


@pytest.mark.parametrize("kind", ["parameter", "buffer", "constant"])
def test_complex_weights(kind: str) -> None:
    check(Turned(kind), real(3, 4))


def test_an_engine_with_complex_numbers() -> None:
    """Spectra of real numbers, filtered: through kernels."""
    module, x = Function(lambda x: fft.irfft(fft.rfft(x) * (1 + 0.5j), n=16)).eval(), torch.randn(3, 16)
    found = np.asarray(tilewright.compile(module, (x,), target="cpu", effort=0)(x))
    bound = 16 * np.finfo(np.float32).eps * np.abs(x.numpy()).sum(-1, keepdims=True)  # of terms up to |x| 1.2
    assert (np.abs(found - module(x).numpy()) <= bound).all()


def test_complex_inputs_are_named_as_pairs() -> None:
    """Never a conversion that drops their imaginary parts."""
    x = torch.randn(3, dtype=torch.complex64)
    engine = tilewright.compile(Function(lambda x: x * 2).eval(), (x,), target="cpu", effort=0)
    for given, way in ((x, "torch.view_as_real"), (x.numpy(), "numpy.stack")):
        with pytest.raises(InputError, match=way):
            engine.run({"arguments_0": given})
    assert np.array_equal(engine.run({"arguments_0": torch.view_as_real(x)})["output"], torch.view_as_real(x * 2))


def test_complex_numbers_between_parts_of_torch_compile() -> None:
    """A step of PyTorch's between two parts: complex results and arguments cross the border."""

    def function(x: torch.Tensor) -> torch.Tensor:
        spectrum = fft.rfft(x) * 2
        logarithm = (spectrum + 3).log()
        return fft.irfft(logarithm * spectrum, n=16) * 0.5

    x = torch.rand(3, 16)
    with torch.no_grad():
        found = torch.compile(function, backend="tilewright", options={"effort": 0})(x)
    wanted = function(x.double())
    scale = float(wanted.abs().max()) * 16  # sums of 16 terms, three after each other
    assert float((found - wanted).abs().max()) <= 16 * torch.finfo(torch.float32).eps * scale


def test_complex_constants_and_vectors_in_torch_compile() -> None:
    """A complex tensor of the code is a constant; what has no rule is PyTorch's step, and not its graph."""

    def function(x: torch.Tensor) -> torch.Tensor:
        left, sizes, right = torch.linalg.svd(x * torch.tensor(2j) + 1)
        return (left * sizes) @ right + (x @ x).exp().abs()

    x = torch.randn(4, 4, dtype=PAIRS)
    found = torch.compile(function, backend="tilewright", options={"effort": 0})(x)
    torch.testing.assert_close(found, function(x))


@pytest.mark.parametrize("use_mask", [False, True])
def test_deformable_convolutions_of_torchvision(use_mask: bool) -> None:
    """With offsets of whole pixels it is a convolution of shifted images."""
    from tilewright.graph.build import GraphBuilder
    from tilewright.importers.torch_export import declare_output
    from tilewright.importers.torch_fx import TorchCall
    from tilewright.importers.torch_ops import RULES
    from tilewright.importers.torch_symbols import SymbolTable

    x, weight, bias = real(2, 4, 7, 6), real(6, 2, 3, 3), real(6)
    offset = torch.zeros(2, 2, 9, 2, 4, 3, dtype=DOUBLE)
    offset[..., 0, :, :] = 1.0  # rows, of every tap
    offset[..., 1, :, :] = -1.0
    mask = torch.full((2, 18, 4, 3), 0.5, dtype=DOUBLE)
    arrays = [x, weight, offset.reshape(2, 36, 4, 3), mask, bias]
    builder = GraphBuilder("deformed")
    values = [builder.input(f"x{i}", float64, tuple(item.shape)) for i, item in enumerate(arrays)]
    node = torch.fx.Graph().create_node("call_function", torch.relu)
    call = TorchCall(builder, SymbolTable(builder, {}), node)
    result = RULES["torchvision.deform_conv2d.default"](call, *values, 2, 2, 1, 1, 1, 1, 2, 2, use_mask)
    declare_output(builder, result, "y")
    found = reference.run(builder.finish(), {f"x{i}": item.numpy() for i, item in enumerate(arrays)})["y"]
    padded = torch.nn.functional.pad(x, (2, 2, 2, 2))[:, :, 2:, :-2]  # one row further down, one column to the left
    shifted = torch.nn.functional.conv2d(padded[:, :, : 7 + 2, : 6 + 2], weight, None, stride=2, groups=2)
    wanted = shifted * (0.5 if use_mask else 1.0) + bias.view(1, -1, 1, 1)
    np.testing.assert_allclose(found, wanted.numpy(), rtol=1e-6, atol=1e-9)
