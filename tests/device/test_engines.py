"""Engines on a GPU: whole models against float64, the callers' tensors and streams, graphs, and the front doors."""

from __future__ import annotations

import copy
import functools
import gc
import time
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")

import tilewright  # noqa: E402
from tests.host import model_support  # noqa: E402
from tests.models import resnet  # noqa: E402
from tests.models.blocks import Block, Mlp  # noqa: E402
from tests.models.specification import ModelSpecification  # noqa: E402
from tilewright import Engine  # noqa: E402
from tilewright.build.builder import build  # noqa: E402
from tilewright.dtypes import float32  # noqa: E402
from tilewright.graph.build import GraphBuilder  # noqa: E402
from tilewright.importers import import_model  # noqa: E402
from tilewright.importers.torch_compile import backend  # noqa: E402
from tilewright.runtime.cuda.memory import DeviceArray  # noqa: E402

SIZES: dict[str, list[dict[str, int]]] = {
    "bert": [{"batch": 1, "sequence": 1}, {"batch": 3, "sequence": 33}],
    "resnet": [{"batch": 1}, {"batch": 3}],
    "resnet50": [{"batch": 2}],
    "prefill": [{"batch": 1, "sequence": 1}, {"batch": 3, "sequence": 33}],
    "decode": [{"batch": 1, "past": 5}, {"batch": 3, "past": 40}],
}
ROUNDING = 4 * 2.0**-23


@functools.cache
def engine(name: str) -> Engine:
    spec = model_support.specification(name)
    return build(import_model(spec.module, spec.example, spec.dynamic_shapes, spec.name), "cuda")


def largest_error(found: Any, exact: Any) -> float:
    """Over all outputs, relative to the largest value of each."""
    pairs = zip(found, exact, strict=True)
    return max(float((a.double().cpu() - b.double()).abs().max() / b.abs().max()) for a, b in pairs)


def peers(spec: ModelSpecification, inputs: dict[str, Any]) -> list[Any]:
    """PyTorch's own answers in float32: on the CPU, and on this GPU without tf32."""
    there = replace(spec, module=copy.deepcopy(spec.module).cuda())
    with torch.backends.cudnn.flags(allow_tf32=False):
        return [spec.run(inputs), there.run({name: tensor.cuda() for name, tensor in inputs.items()})]


def check(spec: ModelSpecification, built: Engine, sizes: dict[str, int], seed: int, device: str = "cuda") -> None:
    """The engine's largest error is at most twice that of PyTorch, both against float64.

    Largest errors of two libraries differ by some 40 percent from input to input; sums that were taken as one chain
    along the depth of ResNet-50's products were four times as far off.
    """
    inputs = spec.make_inputs(**sizes, seed=seed)
    exact = spec.run(inputs, torch.float64)
    given = {name: tensor.to(device, copy=True) for name, tensor in inputs.items()}
    outputs = built.run(given)
    assert all(value.device.type == device for value in outputs.values())
    found = [*outputs.values(), *(given[name] for name in spec.mutated)]
    errors = [largest_error(peer, exact) for peer in peers(spec, inputs)]
    print(f"{sizes}: {largest_error(found, exact):.2e}, PyTorch on the CPU and the GPU {errors[0]:.2e} {errors[1]:.2e}")
    assert largest_error(found, exact) <= 2 * max(errors) + ROUNDING


@pytest.mark.parametrize("name", SIZES)
def test_models_are_right(name: str, compile_processes: None, rng: np.random.Generator) -> None:
    for sizes in SIZES[name]:
        for device in ("cuda", "cpu", "cuda"):
            check(model_support.specification(name), engine(name), sizes, int(rng.integers(2**31)), device)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("make", [Mlp, Block, "resnet"])
def test_half_precision(make: Any, dtype: torch.dtype) -> None:
    if make == "resnet":
        module, x = resnet.random_model((1, 1), 16, 10).eval(), torch.randn(2, 3, 40, 40)
    else:
        module, x = make().eval(), torch.randn(2, 130, 512)
    with torch.no_grad():
        exact = module.double()(x.to(dtype).double())
        module, x = module.to(dtype), x.to(dtype)
        exact = module.double()(x.double())  # of the rounded parameters
        module = module.to(dtype)
        peer = module.cuda()(x.cuda())
        module = module.cpu()
    built = tilewright.compile(module, (x,), target="cuda")
    found = built(x.cuda())
    assert found.dtype == dtype and found.is_cuda
    allowed = 2 * largest_error([peer], [exact]) + 2 * torch.finfo(dtype).eps
    assert largest_error([found], [exact]) <= allowed
    kernels = {built.kernel_name(choice.kernel) for step in built.plan.steps for choice in step.choices}
    print(sorted(kernels))


def test_tf32_where_the_precision_says_so() -> None:
    module = torch.nn.Sequential(torch.nn.Conv2d(8, 64, 3), torch.nn.Flatten(2), torch.nn.Linear(100, 256)).eval()
    x = torch.randn(4, 8, 12, 12)
    with torch.no_grad():
        exact = module.double()(x.double())
    errors = {
        precision: largest_error(
            [tilewright.compile(module.float(), (x,), target="cuda", precision=precision)(x.cuda())], [exact]
        )
        for precision in ("ieee", "tf32")
    }
    assert errors["ieee"] < 1e-5 < 5e-5 < errors["tf32"] < 5e-3, errors


@pytest.mark.hopper
def test_tf32_by_tensor_copies() -> None:
    """Weights of either order, two tensors in batches; rounded to tf32, not cut off, which is twice as far off."""

    class Products(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear, self.matrix = torch.nn.Linear(512, 256), torch.nn.Parameter(torch.randn(256, 384) / 16)

        def forward(self, x, y):
            return torch.relu(self.linear(x)) @ self.matrix, torch.bmm(x, y.transpose(1, 2))

    module, x, y = Products().eval(), torch.randn(3, 200, 512), torch.randn(3, 72, 512)
    engine = tilewright.compile(module, (x, y), target="cuda", precision="tf32", effort=0)
    assert all("hopper" in step.evidence["chosen"] for step in engine.plan.steps)
    found = engine(x.cuda(), y.cuda())
    with torch.no_grad():
        exact = module.double()(x.double(), y.double())
    assert 1e-5 < largest_error(found, exact) < 1e-3


def double() -> Engine:
    b = GraphBuilder("double")
    n = b.symbol("n", 1, 1 << 20)
    x = b.input("x", float32, (n,))
    b.output(b.op("add", [x, x]), "y")
    return build(b.finish(), "cuda")


def test_streams_and_memory_of_the_caller() -> None:
    built = double()
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        for size in (5, 1 << 18, 77):
            x = first = torch.randn(size, device="cuda")
            for _ in range(3):
                x = built(x)
            torch.testing.assert_close(x, first * 8, rtol=0, atol=0)
    y = torch.empty(5, device="cuda")
    assert built.run({"x": torch.ones(5, device="cuda")}, out={"y": y})["y"] is y
    assert y.tolist() == [2.0] * 5
    shifted = torch.arange(9.0, device="cuda")[1:]
    assert built(shifted).tolist() == (shifted * 2).tolist()
    values = np.arange(6, dtype=np.float32)
    np.testing.assert_array_equal(built(values), values * 2)
    array = built(DeviceArray.from_numpy(values))
    np.testing.assert_array_equal(array.numpy(), values * 2)


def test_inside_of_a_graph_of_the_caller() -> None:
    built = double()
    x = torch.ones(100, device="cuda")
    built(x)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        y = built(x)
    x.fill_(4)
    graph.replay()
    assert y.tolist() == [8.0] * 100


def test_results_are_the_same_every_time(rng: np.random.Generator) -> None:
    spec = model_support.specification("bert")
    inputs = {n: t.cuda() for n, t in spec.make_inputs(batch=3, sequence=33, seed=int(rng.integers(2**31))).items()}
    first = [value.clone() for value in engine("bert").run(inputs).values()]
    for _ in range(20):
        assert all(torch.equal(a, b) for a, b in zip(first, engine("bert").run(inputs).values(), strict=True))


def test_saved_and_loaded(tmp_path: Any, rng: np.random.Generator) -> None:
    engine("bert").save(tmp_path / "bert.engine")
    loaded = tilewright.load(tmp_path / "bert.engine")
    check(model_support.specification("bert"), loaded, {"batch": 2, "sequence": 9}, int(rng.integers(2**31)))
    spec = model_support.specification("bert")
    inputs = {name: tensor.cuda() for name, tensor in spec.make_inputs(batch=2, sequence=9, seed=1).items()}
    assert all(row["milliseconds"] > 0 for row in loaded.profile(inputs))


def test_torch_compile_on_the_gpu(caplog: pytest.LogCaptureFixture) -> None:
    module = Mlp(64).cuda().eval()
    compiled = torch.compile(module, backend=backend)  # whose name PyTorch knows where the package is installed
    with torch.no_grad():
        for rows in (3, 7):
            x = torch.randn(rows, 64, device="cuda")
            torch.testing.assert_close(compiled(x), module(x), rtol=1e-4, atol=1e-5)
    assert "stays with PyTorch" not in caplog.text


def test_torch_compile_with_results_on_the_host(caplog: pytest.LogCaptureFixture) -> None:
    module = Mlp(64).cuda().eval()

    def function(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        y = module(x)
        return y, y.transpose(0, 1).cpu(), y.argmax(-1).cpu()

    compiled = torch.compile(function, backend=backend)
    with torch.no_grad():
        x = torch.randn(5, 64, device="cuda")
        for found, want in zip(compiled(x), function(x), strict=True):
            assert found.device == want.device and found.stride() == want.stride()
            torch.testing.assert_close(found, want, rtol=1e-4, atol=1e-5)
    assert "stays with PyTorch" not in caplog.text


def test_a_captured_graph_outlives_the_compiled_model() -> None:
    """The graph has the memory of its call, also when the model is no more, and gives it back when it is no more."""
    from tilewright.runtime.cuda import graph_references

    torch.manual_seed(2026)
    model = torch.nn.Sequential(torch.nn.Linear(512, 4096), torch.nn.GELU(), torch.nn.Linear(4096, 512))
    model = model.to("cuda", torch.bfloat16).eval()
    x = torch.randn(64, 512, device="cuda", dtype=torch.bfloat16)
    with torch.inference_mode():
        compiled = torch.compile(model, backend="tilewright")
        expected = compiled(x)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            found = compiled(x)
        del compiled
        torch._dynamo.reset()
        gc.collect()
        others = [torch.full((1 << 26,), 7.0, device="cuda") for _ in range(4)]
        found.zero_()
        graph.replay()
        assert torch.equal(found, expected)
    assert graph_references._references
    del graph, others
    end = time.monotonic() + 5
    while graph_references._references and time.monotonic() < end:  # the driver tells on a thread of its own
        time.sleep(0.01)
        graph_references.release()
    assert not graph_references._references
