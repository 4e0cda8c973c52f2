"""Tensors on another GPU than the current one: kernels, operations of the library, engines and `torch.compile`."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from threading import Thread
from typing import Any

import pytest

torch = pytest.importorskip("torch")

import tilewright  # noqa: E402
import tilewright.language as tl  # noqa: E402
from tests.models.blocks import Block  # noqa: E402
from tilewright import Engine, ops  # noqa: E402
from tilewright.errors import InputError  # noqa: E402
from tilewright.importers.torch_compile import backend  # noqa: E402

pytestmark = pytest.mark.skipif(torch.cuda.device_count() < 2, reason="needs two GPUs")
FIRST, SECOND = torch.device("cuda:0"), torch.device("cuda:1")


@pytest.fixture(autouse=True)
def current_gpu_stays() -> Iterator[None]:
    torch.cuda.set_device(0)
    yield
    assert torch.cuda.current_device() == 0


@tilewright.jit
def double(x, out, count, BLOCK: tl.constexpr):
    index = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(out + index, tl.load(x + index, mask=index < count) * 2, mask=index < count)


@pytest.mark.parametrize("own_stream", [False, True])
def test_kernels_run_where_their_tensors_are(own_stream: bool) -> None:
    for place in (SECOND, FIRST, SECOND):
        x = torch.randn(10_000, device=place)
        torch.cuda.synchronize(place)
        with torch.cuda.stream(torch.cuda.Stream(place) if own_stream else None):
            torch.cuda.set_device(0)
            out = torch.empty_like(x)
            double[(20,)](x, out, x.numel(), BLOCK=512)
        torch.cuda.synchronize(place)
        assert out.device == place and torch.equal(out, 2 * x)


def check(found: Any, expected: Any, tolerance: float) -> None:
    assert found.device == expected.device == SECOND
    error = (found.double() - expected).abs().max() / expected.abs().max()
    assert error <= tolerance


def test_operations_run_where_their_tensors_are() -> None:
    a, b = (torch.randn(shape, device=SECOND, dtype=torch.bfloat16) for shape in ((384, 512), (512, 256)))
    check(ops.matmul(a, b), a.double() @ b.double(), 2.0**-8)
    check(ops.matmul(a[:4], b), a[:4].double() @ b.double(), 2.0**-8)
    check(ops.softmax(a), a.double().softmax(-1), 2.0**-8)
    check(ops.reduce(a, axis=0), a.double().sum(0), 2.0**-8)
    check(ops.reduce(a, axis=1), a.double().sum(1), 2.0**-8)
    q = torch.randn(2, 4, 256, 64, device=SECOND, dtype=torch.bfloat16)
    exact = torch.nn.functional.scaled_dot_product_attention(q.double(), q.double(), q.double(), is_causal=True)
    check(ops.attention(q, q, q, causal=True), exact, 2.0**-7)
    multiply = torch.compile(lambda x, y: ops.matmul(x, y) + 1)
    check(multiply(a, b), a.double() @ b.double() + 1, 2.0**-7)


def model(place: Any) -> tuple[Any, Any]:
    module = Block().to(place, torch.float16).eval().requires_grad_(False)
    return module, torch.randn(2, 130, 512, device=place, dtype=torch.float16)


def test_engines_run_on_the_gpu_of_their_inputs(tmp_path: Path) -> None:
    module, x = model(SECOND)
    engine = tilewright.compile(module, (x,), target="cuda", effort=0)
    expected = module.double()(x.double())
    for _ in range(3):
        check(engine(x), expected, 2.0**-7)
    with pytest.raises(InputError, match=r"is on cuda:0, the engine runs on cuda:1: move it there.*cuda\.device"):
        engine(x.to(FIRST))
    check(engine(x.cpu()).to(SECOND), expected, 2.0**-7)
    engine.save(tmp_path / "model.engine")
    with torch.cuda.device(SECOND):
        second = Engine.load(tmp_path / "model.engine")
    first = Engine.load(tmp_path / "model.engine")
    for _ in range(3):
        check(second(x), expected, 2.0**-7)
        check(first(x.to(FIRST)).to(SECOND), expected, 2.0**-7)
    graph, stream = torch.cuda.CUDAGraph(), torch.cuda.Stream(SECOND)
    with torch.cuda.device(SECOND), torch.cuda.graph(graph, stream=stream):
        captured = second(x)
    captured.zero_()
    graph.replay()
    torch.cuda.synchronize(SECOND)
    check(captured, expected, 2.0**-7)


def test_compiled_modules_run_where_they_are() -> None:
    for place in (SECOND, FIRST, SECOND):
        module, x = model(place)
        compiled = torch.compile(module, backend=backend, options={"effort": 0})
        with torch.no_grad():
            values, expected = [compiled(x) for _ in range(4)], module(x)
        for value in values:
            assert value.device == place
            torch.testing.assert_close(value, expected, rtol=2e-2, atol=2e-2)


def test_engines_in_threads_each_on_its_gpu() -> None:
    pairs = [model(place) for place in (FIRST, SECOND)]
    engines = [tilewright.compile(module, (x,), target="cuda", effort=0) for module, x in pairs]
    wrong: list[Any] = []

    def work(engine: Engine, module: Any, x: Any) -> None:
        expected = module(x)
        for _ in range(50):
            value = engine(x)
            if value.device != x.device or not torch.allclose(value, expected, rtol=2e-2, atol=2e-2):
                wrong.append(value)

    threads = [Thread(target=work, args=(engine, *pair)) for engine, pair in zip(engines, pairs, strict=True)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong
