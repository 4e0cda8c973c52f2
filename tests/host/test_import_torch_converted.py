"""Models of `torch.ao`'s `convert` and `convert_fx`: quantized tensors and packed weights, against its kernels."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")

import torch.ao.quantization as ao  # noqa: E402
from torch import nn  # noqa: E402
from torch.ao.quantization.quantize_fx import convert_fx, prepare_fx  # noqa: E402

from tilewright.errors import ImportModelError  # noqa: E402
from tilewright.graph import reference  # noqa: E402
from tilewright.importers import import_model  # noqa: E402

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::UserWarning")
functional = nn.functional


class Stubbed(nn.Module):
    """Layers between a QuantStub and a DeQuantStub."""

    def __init__(self, *layers: Any) -> None:
        super().__init__()
        self.quant, self.dequant, self.body = ao.QuantStub(), ao.DeQuantStub(), nn.Sequential(*layers)

    def forward(self, x: Any) -> Any:
        return self.dequant(self.body(self.quant(x)))


class Residual(nn.Module):
    """Functions of quantized tensors."""

    def __init__(self) -> None:
        super().__init__()
        self.quant, self.dequant = ao.QuantStub(), ao.DeQuantStub()
        self.first, self.relu = nn.Conv2d(3, 8, 3, padding=1), nn.ReLU()
        self.second, self.norm = nn.Conv2d(8, 8, 3, padding=1, groups=2, bias=False), nn.BatchNorm2d(8)
        names = ("sum_relu", "product", "sum", "scaled", "moved", "down", "joined")
        self.functions = nn.ModuleDict({name: torch.ao.nn.quantized.FloatFunctional() for name in names})

    def forward(self, x: Any) -> Any:
        own: Any = self.functions
        y = self.relu(self.first(self.quant(x)))
        z = self.norm(self.second(y))
        y = own["sum_relu"].add_relu(y, z)
        z = own["sum"].add(own["product"].mul(y, z), y)
        z = own["moved"].add_scalar(own["scaled"].mul_scalar(z, -0.7), 0.3)
        z = own["down"].add_scalar(z, -90.0)  # beyond the range: the scale grows
        z = own["joined"].cat([z, y], 1)
        picked = functional.max_pool2d(z[:, :4].permute(0, 2, 3, 1), 2).flatten(1)
        return self.dequant(z), self.dequant(picked), self.dequant(torch.sigmoid(y)), self.dequant(torch.tanh(z))


class Layers(nn.Module):
    """Layers of `torch.ao.nn.quantizable`, which are made of others."""

    def __init__(self) -> None:
        super().__init__()
        self.quant, self.dequant = ao.QuantStub(), ao.DeQuantStub()
        self.lstm = torch.ao.nn.quantizable.LSTM(6, 8, 2, batch_first=True)
        self.attention = torch.ao.nn.quantizable.MultiheadAttention(8, 2)

    def forward(self, x: Any) -> Any:
        y, _ = self.lstm(self.quant(x))
        z, _ = self.attention(y, y, y)
        return self.dequant(y), self.dequant(z)


class Embedded(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.table, self.layer = nn.Embedding(20, 8), nn.Linear(8, 4)
        self.quant, self.dequant = ao.QuantStub(), ao.DeQuantStub()
        self.qconfig = ao.get_default_qconfig("x86")
        self.table.qconfig = ao.float_qparams_weight_only_qconfig

    def forward(self, numbers: Any) -> Any:
        return self.dequant(self.layer(self.quant(self.table(numbers))))


class Traced(nn.Module):
    """What `convert_fx` makes operators with packed weights of."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.norm, self.second = nn.Conv2d(3, 8, 3, padding=1), nn.BatchNorm2d(8), nn.Conv2d(8, 8, 1)
        self.weights, self.last = nn.Parameter(torch.randn(5, 8)), nn.Linear(8, 8)

    def forward(self, x: Any) -> Any:
        y = functional.relu(self.norm(self.first(x)))
        z = functional.relu(self.second(y) + y)
        z = functional.hardswish(torch.cat([z, y * z], 1) * 0.5 + 1.0)
        near = functional.linear(z.permute(0, 2, 3, 1)[..., :8], self.weights)
        return near, torch.sigmoid(self.last(z.permute(0, 2, 3, 1)[..., :8])), torch.chunk(z, 2, 1)[0]


Examples = Sequence[tuple[Any, ...]]


def data(*shape: int) -> Examples:
    return [(torch.randn(*shape),) for _ in range(4)]


def converted(module: nn.Module, examples: Examples, fused: Any = None, config: Any = None) -> tuple[Any, Examples]:
    """After `prepare`, with ranges of these examples, and `convert`."""
    module = ao.fuse_modules(module.eval(), fused) if fused else module.eval()
    module.qconfig = config or getattr(module, "qconfig", None) or ao.get_default_qconfig("x86")
    module = ao.prepare(module)
    for example in examples:
        module(*example)
    return ao.convert(module), examples


def traced(module: nn.Module, examples: Examples, mapping: Any) -> tuple[Any, Examples]:
    """After `prepare_fx` and `convert_fx`."""
    module = prepare_fx(module.eval(), mapping, examples[0])
    for example in examples:
        module(*example)
    return convert_fx(module), examples


def transposed(rank: int) -> tuple[Any, Examples]:
    layer = getattr(nn, f"ConvTranspose{rank}d")(4, 6, 3, stride=2, padding=1, output_padding=1)
    observer = ao.MinMaxObserver.with_args(reduce_range=True)
    return converted(Stubbed(layer), data(2, 4, *[5] * rank), config=ao.QConfig(observer, ao.default_weight_observer))


def convolutions(rank: int) -> tuple[Any, Examples]:
    kind: Any = getattr(nn, f"Conv{rank}d")
    mode = "reflect" if rank < 3 else "zeros"
    layers = kind(4, 6, 3, stride=2, padding=1), nn.ReLU(), kind(6, 4, 2, padding=1, padding_mode=mode)
    return converted(Stubbed(*layers), data(2, 4, *[7] * rank), [["body.0", "body.1"]])


def dynamic_convolution() -> tuple[Any, Examples]:
    layer: Any = nn.Conv2d(3, 4, 3)
    layer.qconfig = ao.default_dynamic_qconfig
    return nn.Sequential(torch.ao.nn.quantized.dynamic.Conv2d.from_float(layer)), data(2, 3, 8, 8)


def sums_and_pools() -> tuple[Any, Examples]:
    layers = nn.AvgPool2d(2), nn.Upsample(scale_factor=2, mode="bilinear"), nn.AdaptiveAvgPool2d(1)
    return converted(Stubbed(*layers, nn.Flatten()), data(2, 4, 8, 8))


CASES: dict[str, Callable[[], tuple[Any, Examples]]] = {
    "linear": lambda: converted(Stubbed(nn.Linear(16, 8), nn.ReLU(), nn.Linear(8, 3)), data(4, 16)),
    "linear_relu": lambda: converted(Stubbed(nn.Linear(16, 8), nn.ReLU()), data(4, 16), [["body.0", "body.1"]]),
    "functions": lambda: converted(Residual(), data(2, 3, 8, 8), [["first", "relu"], ["second", "norm"]]),
    **{f"conv{rank}d": lambda rank=rank: convolutions(rank) for rank in (1, 2, 3)},  # type: ignore[misc]
    **{f"transposed{rank}d": lambda rank=rank: transposed(rank) for rank in (1, 2)},  # type: ignore[misc]
    "activations": lambda: converted(
        Stubbed(nn.Hardswish(), nn.ELU(), nn.LeakyReLU(0.1), nn.ReLU6(), nn.Threshold(0.2, 0.1), nn.Sigmoid()),
        data(2, 4, 8),
    ),
    "norms": lambda: converted(
        Stubbed(nn.BatchNorm2d(4), nn.InstanceNorm2d(4, affine=True), nn.GroupNorm(2, 4), nn.LayerNorm([8, 8])),
        data(2, 4, 8, 8),
    ),
    "pools": sums_and_pools,
    "lstm_and_attention": lambda: converted(Layers(), data(2, 4, 6)),
    "embedding": lambda: converted(Embedded(), [(torch.randint(0, 20, (3, 5)),) for _ in range(3)]),
    "fx": lambda: traced(Traced(), data(2, 3, 8, 8), ao.get_default_qconfig_mapping("x86")),
    "fx_dynamic": lambda: traced(
        nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.LSTM(8, 6, batch_first=True)), data(2, 3, 8),
        ao.QConfigMapping().set_global(ao.default_dynamic_qconfig),
    ),
    "fx_half": lambda: traced(
        nn.Sequential(nn.Linear(8, 8), nn.ReLU()), data(2, 8),
        ao.QConfigMapping().set_global(ao.float16_dynamic_qconfig),
    ),
    "dynamic_convolution": dynamic_convolution,
    "the_model_itself": lambda: (ao.quantize_dynamic(nn.Sequential(nn.Linear(8, 4)), {nn.Linear})[0], data(3, 8)),
}  # fmt: skip


def flat(given: Any) -> list[Any]:
    return [given] if isinstance(given, torch.Tensor) else [leaf for item in given for leaf in flat(item)]


@pytest.mark.parametrize("name", CASES)
def test_converted_models(name: str) -> None:
    """Equal but for few elements that are a step away."""
    torch.manual_seed(3)
    torch.backends.quantized.engine = "x86"
    module, examples = CASES[name]()
    before = list(module.state_dict())
    graph = import_model(module, examples[0])
    assert list(module.state_dict()) == before
    for example in examples:
        inputs = {item.name: x.numpy() for item, x in zip(graph.inputs, example, strict=True)}
        for found, wanted in zip(reference.run(graph, inputs).values(), flat(module(*example)), strict=True):
            assert found.shape == wanted.shape
            away = np.abs(found - wanted.detach().numpy()) > 1e-5 * float(wanted.abs().max()) + 1e-6
            assert away.mean() < 0.02
    if name in ("linear", "conv2d", "fx", "the_model_itself"):
        assert any(constant.dtype == np.int8 for constant in graph.constants.values())


def test_halves_of_steps_go_to_even_integers() -> None:
    """`quantize_per_tensor` adds the zero point before it rounds."""
    x = torch.tensor([0.125, 0.375, 0.625, 0.875, -0.125])
    quantize = torch.ao.nn.quantized.Quantize(0.25, 61, torch.quint8)
    module = nn.Sequential(quantize, torch.ao.nn.quantized.DeQuantize())
    (found,) = reference.run(import_model(module, (x,)), {"input": x.numpy()}).values()
    np.testing.assert_allclose(found, module(x).numpy(), rtol=1e-6)


def test_properties_of_quantized_tensors() -> None:
    class Read(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.quantize = torch.ao.nn.quantized.Quantize(0.05, 60, torch.quint8)

        def forward(self, x: Any) -> Any:
            y = self.quantize(x)
            assert y.is_quantized and y.dtype == torch.quint8
            return y.int_repr(), y.dequantize() * y.q_scale() + y.q_zero_point(), y > 0

    x = torch.randn(4, 5)
    found = reference.run(import_model(Read(), (x,)), {"x": x.numpy()}).values()
    for mine, theirs in zip(found, Read()(x), strict=True):
        np.testing.assert_allclose(mine, theirs.numpy(), rtol=1e-6)


def layer() -> Any:
    return converted(Stubbed(nn.Linear(8, 4)), data(2, 8))[0].eval()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda module, x: module.body[0](x), r"'body.0' .*Linear\) takes quantized tensors, and is given floats"),
        (lambda module, x: torch.cumsum(module.quant(x), 1), "calls cumsum of quantized tensors.*convert_to_reference"),
        (lambda module, x: torch.maximum(*[module.quant(x)] * 2), "calls maximum of quantized tensors"),
    ],
)
def test_refused(change: Callable[[Any, Any], Any], message: str) -> None:
    class Changed(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.body, self.quant = layer().body, layer().quant

        def forward(self, x: Any) -> Any:
            return change(self, x)

    with pytest.raises(ImportModelError, match=message):
        import_model(Changed().eval(), (torch.randn(2, 8),))


def test_quantized_inputs_and_lone_embeddings_are_refused() -> None:
    x = torch.quantize_per_tensor(torch.randn(2, 8), 0.1, 0, torch.quint8)
    with pytest.raises(ImportModelError, match=r"example input is a quantized tensor \(torch.quint8\)"):
        import_model(layer().body[0], (x,))
    with pytest.raises(ImportModelError, match="the model itself is a quantized Embedding"):
        import_model(torch.ao.nn.quantized.Embedding(4, 16), (torch.tensor([1]),))
