"""Fake quantization of PyTorch (quantization-aware training, reference models), against PyTorch's eager results."""

from __future__ import annotations

import copy
import importlib
import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")
quantization = pytest.importorskip("torch.ao.quantization")

import tilewright  # noqa: E402
from tilewright.errors import ImportModelError, UnsupportedOperationError  # noqa: E402
from tilewright.graph.passes.quantized_weights import quantized_weights  # noqa: E402
from tilewright.importers.torch_export import import_module  # noqa: E402

nn: Any = torch.nn
SCALES, ZEROS = torch.tensor([0.02, 0.5, 0.013]), torch.tensor([3, -2, 0], dtype=torch.int32)


@pytest.fixture(autouse=True)
def quiet() -> Any:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # PyTorch announces the end of its quantization
        yield


class Applied(nn.Module):
    def __init__(self, function: Callable[[Any], Any]) -> None:
        super().__init__()
        self.function = function

    def forward(self, x: Any) -> Any:
        return self.function(x)


OPERATIONS: dict[str, Callable[[Any], Any]] = {
    "tensor": lambda x: torch.fake_quantize_per_tensor_affine(x, 0.05, 128, 0, 255),
    "narrow": lambda x: torch.fake_quantize_per_tensor_affine(x, 0.05, 60, 0, 127),
    "sixteen_bits": lambda x: torch.fake_quantize_per_tensor_affine(x, 0.001, 0, -32768, 32767),
    "half": lambda x: torch.fake_quantize_per_tensor_affine(x.half(), 0.05, -3, -128, 127),
    "double": lambda x: torch.fake_quantize_per_tensor_affine(x.double(), 0.05, -3, -128, 127),
    "of_tensors": lambda x: torch.fake_quantize_per_tensor_affine(
        x, torch.tensor([0.07]), torch.tensor([5], dtype=torch.int32), 0, 255
    ),
    "mask": lambda x: torch.ops.aten.fake_quantize_per_tensor_affine_cachemask(x, 0.01, 3, 0, 100),
    "channels": lambda x: torch.fake_quantize_per_channel_affine(x[:, :3], SCALES, ZEROS, 1, -128, 127),
    "last_channels": lambda x: torch.fake_quantize_per_channel_affine(x[:, 3:], SCALES, ZEROS * 0, 1, -8, 7),
    "float_zeros": lambda x: torch.fake_quantize_per_channel_affine(x[:, :3], SCALES, ZEROS + 0.25, 1, -128, 127),
    "learned": lambda x: torch._fake_quantize_learnable_per_tensor_affine(
        x, torch.tensor([0.04]), torch.tensor([300.2]), 0, 255, 1.0
    ),
    "learned_channels": lambda x: torch._fake_quantize_learnable_per_channel_affine(
        x[:, :3], SCALES, ZEROS - 0.6, 1, -128, 127, 1.0
    ),
    "flagged": lambda x: torch.ops.aten._fake_quantize_per_tensor_affine_cachemask_tensor_qparams(
        x, torch.tensor([0.1]), torch.tensor([5], dtype=torch.int32), (x[:1, 0] > 0).long(), 0, 127
    ),
    "nothing": lambda x: torch.fake_quantize_per_tensor_affine(x[:0], 0.05, 128, 0, 255),
}


def _check(module: Any, *inputs: Any, target: str = "cpu", **options: Any) -> Any:
    engine = tilewright.compile(module, inputs, target=target, effort=0, **options)
    with torch.no_grad():
        found, wanted = engine(*inputs), module(*inputs)
    for mine, theirs in zip(*([item] if torch.is_tensor(item) else item for item in (found, wanted)), strict=True):
        assert mine.dtype == theirs.dtype
        torch.testing.assert_close(mine, theirs, rtol=1e-6, atol=1e-6)
    return engine


@pytest.mark.parametrize("name", OPERATIONS)
def test_operations(name: str) -> None:
    torch.manual_seed(1)
    _check(Applied(OPERATIONS[name]).eval(), torch.randn(4, 6) * 3)


def _integers(module: Any, *inputs: Any) -> list[str]:
    """The types of what `dequantize` reads, of which int8 are constants."""
    graph = quantized_weights(import_module(module, inputs))
    assert not any(node.op == "where" for node in graph.nodes)  # flags are known
    found = [node.inputs[0] for node in graph.nodes if node.op == "dequantize"]
    assert all(value in graph.constants for value in found if value is not None and value.dtype.name == "int8")
    return sorted(value.dtype.name for value in found if value is not None)


def _trained(config: Any, *layers: Any, fused: Any = None, data: Any = None) -> Any:
    torch.manual_seed(2)
    module = nn.Sequential(quantization.QuantStub(), *layers, quantization.DeQuantStub()).train()
    module = quantization.fuse_modules_qat(module, fused) if fused else module
    module.qconfig = config
    quantization.prepare_qat(module, inplace=True)
    for _ in range(2 if data is not None else 0):
        module(data)
    return module.eval()


def _plain() -> Any:
    """Modules of the general kind, activations in 0..127 and weights by channel."""
    activation = quantization.FakeQuantize.with_args(
        observer=quantization.MovingAverageMinMaxObserver, quant_min=0, quant_max=127
    )
    weight = quantization.FakeQuantize.with_args(
        observer=quantization.MovingAveragePerChannelMinMaxObserver, quant_min=-128, quant_max=127,
        dtype=torch.qint8, qscheme=torch.per_channel_symmetric,
    )  # fmt: skip
    return quantization.QConfig(activation=activation, weight=weight)


CONFIGS: dict[str, Callable[[], Any]] = {
    "plain": _plain,
    "fused": lambda: quantization.get_default_qat_qconfig("x86"),
    "by_tensor": lambda: quantization.get_default_qat_qconfig("qnnpack"),
}


@pytest.mark.parametrize("name", ["tensor", "of_tensors", "channels", "mask", "learned", "learned_channels"])
def test_operations_on_any_number_of_rows(name: str) -> None:
    torch.manual_seed(7)
    module = Applied(OPERATIONS[name]).eval()
    engine = tilewright.compile(
        module, (torch.randn(4, 6),), target="cpu", effort=0, dynamic_shapes={"x": {0: ("rows", 1, 9)}}
    )
    for rows in (1, 9):
        x = torch.randn(rows, 6) * 3
        found, wanted = engine(x), module(x)
        for mine, theirs in zip(*([item] if torch.is_tensor(item) else item for item in (found, wanted)), strict=True):
            torch.testing.assert_close(mine, theirs, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("observes", [False, True])
def test_a_trained_model_of_any_batch(observes: bool) -> None:
    x = torch.randn(5, 64)
    module = _trained(CONFIGS["fused"](), nn.Linear(64, 16), data=x)
    module.apply(quantization.enable_observer if observes else quantization.disable_observer)
    engine = tilewright.compile(module, (x,), target="cpu", effort=0, dynamic_shapes={"input": {0: ("rows", 1, 9)}})
    module.apply(quantization.disable_observer)
    for rows in (1, 9):
        x = torch.randn(rows, 64)
        torch.testing.assert_close(engine(x), module(x), rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("name", CONFIGS)
def test_a_trained_model_multiplies_integers(name: str) -> None:
    x = torch.randn(5, 64)
    module = _trained(CONFIGS[name](), nn.Linear(64, 96), nn.Linear(96, 16), data=x)
    module.apply(quantization.disable_observer)
    modules = dict(module.named_modules())
    engine = _check(module, x)
    assert dict(module.named_modules()) == modules  # what stood in for the export is gone
    assert not engine.remarks
    assert _integers(module, x) == ["int8", "int8", "uint8", "uint8", "uint8"]


def test_observers_that_are_on_leave_their_ranges() -> None:
    x = torch.randn(5, 64)
    for name in ("plain", "fused"):
        module = _trained(CONFIGS[name](), nn.Linear(64, 16), data=x)
        state = {key: value.clone() for key, value in module.state_dict().items()}
        engine = tilewright.compile(module, (x * 3,), target="cpu", effort=0)
        found = engine(x * 3)
        assert all(torch.equal(value, state[key]) for key, value in module.state_dict().items())
        assert [remark for remark in engine.remarks if "disable_observer" in remark and "observers" in remark]
        module.apply(quantization.disable_observer)
        torch.testing.assert_close(found, module(x * 3), rtol=1e-6, atol=1e-6)


def test_convolutions_with_batch_norms() -> None:
    x = torch.randn(2, 8, 9, 7)
    layers = (nn.Conv2d(8, 16, 3), nn.BatchNorm2d(16), nn.ReLU(), nn.Conv2d(16, 8, 1))
    module = _trained(CONFIGS["fused"](), *layers, fused=[["1", "2", "3"]], data=x)
    module.apply(quantization.disable_observer)
    _check(module, x)
    assert _integers(module, x).count("int8") == 2


def test_switched_off_and_fixed_ranges() -> None:
    x = torch.randn(5, 64)
    module = _trained(CONFIGS["plain"](), nn.Linear(64, 16), data=x)
    module.apply(quantization.disable_observer)
    module.apply(quantization.disable_fake_quant)
    _check(module, x)
    fixed = quantization.FixedQParamsFakeQuantize.with_args(
        observer=quantization.FixedQParamsObserver.with_args(
            scale=1 / 256, zero_point=0, dtype=torch.quint8, quant_min=0, quant_max=255
        )
    )
    assert not _check(nn.Sequential(nn.Sigmoid(), fixed()).eval(), x).remarks


def test_an_exported_program() -> None:
    x = torch.randn(5, 64)
    module = _trained(CONFIGS["fused"](), nn.Linear(64, 16), data=x)
    with torch.no_grad():
        observing = torch.export.export(copy.deepcopy(module), (x,))
        module.apply(quantization.disable_observer)
        program = torch.export.export(module, (x,))
    engine = tilewright.compile(program, target="cpu", effort=0)
    assert len(engine.inputs) == 1 and not engine.remarks
    torch.testing.assert_close(engine(x), module(x), rtol=1e-6, atol=1e-6)
    engine = tilewright.compile(observing, target="cpu", effort=0)
    assert [remark for remark in engine.remarks if "disable_observer" in remark]
    torch.testing.assert_close(engine(x), module(x), rtol=1e-6, atol=1e-6)


def test_ranges_that_are_not_known() -> None:
    x = torch.randn(5, 64)
    module = _trained(CONFIGS["fused"](), nn.Linear(64, 16))
    with pytest.raises(ImportModelError, match="has seen no data.*disable_observer"):
        tilewright.compile(module, (x,), target="cpu", effort=0)
    moving = quantization.FakeQuantize(observer=quantization.MovingAverageMinMaxObserver, is_dynamic=True,
                                       quant_min=0, quant_max=255, averaging_constant=1)  # fmt: skip
    with pytest.raises(ImportModelError, match="at each call"):
        tilewright.compile(nn.Sequential(moving).eval(), (x,), target="cpu", effort=0)

    def helper(x: Any) -> Any:
        on, zero = (x[0, :1] > 0).long(), torch.zeros(1, dtype=torch.int32)
        return torch.ops.aten._fused_moving_avg_obs_fq_helper_functional(
            x, on, on, x[0, :1], x[0, :1], torch.ones(1), zero, 0.01, 0, 255, -1
        )[0]

    with pytest.raises(UnsupportedOperationError, match="turns on and off"):
        tilewright.compile(Applied(helper).eval(), (x,), target="cpu", effort=0)


class Branches(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.second, self.last = nn.Conv2d(8, 16, 3, padding=1), nn.Conv2d(16, 16, 1), nn.Linear(16, 8)

    def forward(self, x: Any) -> Any:
        y = torch.relu(self.first(x))
        return self.last((y + torch.nn.functional.hardtanh(self.second(y), 0, 6)).mean((2, 3)))


def test_a_reference_model() -> None:
    fx = pytest.importorskip("torch.ao.quantization.quantize_fx")
    torch.manual_seed(3)
    x = torch.randn(2, 8, 6, 5)
    prepared = fx.prepare_fx(Branches().eval(), quantization.get_default_qconfig_mapping("x86"), (x,))
    prepared(x)
    module = fx.convert_to_reference_fx(prepared)
    _check(module, x)
    assert _integers(module, x).count("int8") == 3
    assert module(x).shape == (2, 8)  # PyTorch's functions are its own again


def test_pt2e_models_multiply_integers() -> None:
    """The integers that `convert_pt2e` writes are read by kernels of integers."""
    operations: Any = torch.ops.quantized_decomposed
    torch.manual_seed(4)
    weight, scales = torch.randint(-127, 128, (16, 64), dtype=torch.int8), torch.rand(16) * 0.01

    def layer(x: Any) -> Any:
        near = operations.quantize_per_tensor(x, 0.037, 128, 0, 255, torch.uint8)
        near = operations.dequantize_per_tensor(near, 0.037, 128, 0, 255, torch.uint8)
        zeros = torch.zeros(16, dtype=torch.int64)
        table = operations.dequantize_per_channel(weight, scales, zeros, 0, -127, 127, torch.int8)
        return torch.nn.functional.linear(near, table)

    engine = tilewright.compile(Applied(layer).eval(), (torch.randn(5, 64),), target="cpu", effort=0)
    assert _integers(Applied(layer).eval(), torch.randn(5, 64)) == ["int8", "uint8"]
    x = torch.randn(5, 64)
    np.testing.assert_allclose(engine(x), layer(x), rtol=1e-5, atol=1e-5)


def test_modules_of_several_names() -> None:
    """Preparation shares one module around a pool; a layer may be in two places, or in a part that is."""
    x = torch.randn(1, 3, 12, 12)
    mapping = quantization.get_default_qat_qconfig_mapping("x86")
    module = nn.Sequential(nn.Conv2d(3, 8, 3), nn.MaxPool2d(2))
    prepared = importlib.import_module("torch.ao.quantization.quantize_fx").prepare_qat_fx(
        module.train(), mapping, (x,)
    )
    prepared(x)
    prepared.eval().apply(quantization.disable_observer)
    names = [name for name, child in prepared.named_modules(remove_duplicate=False) if _is_fake(child)]
    assert len(names) > len({prepared.get_submodule(name) for name in names})
    _check(prepared, x)
    fake = quantization.FakeQuantize()
    shared = nn.Sequential(nn.Linear(6, 6), fake)
    both = nn.ModuleDict({"first": fake, "second": nn.Sequential(shared, fake, shared)})
    model = Applied(lambda x: both["second"](both["first"](x)))
    model.both = both
    model(torch.randn(4, 6))
    model.eval().apply(quantization.disable_observer)
    _check(model, torch.randn(4, 6))
    assert both["first"] is both["second"][1] is both["second"][0][1] is both["second"][2][1] is fake


def _is_fake(child: Any) -> bool:
    return isinstance(child, quantization.FakeQuantizeBase)
