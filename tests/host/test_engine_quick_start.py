"""Quick starts: the engine of effort 0 takes the machine code of the full build while it is in use."""

from __future__ import annotations

import gc
import logging
import subprocess
import sys
import textwrap
import threading
import time

import numpy as np
import pytest
import torch
from torch import nn

import tilewright
from tilewright.build import quick_start
from tilewright.build.builder import build
from tilewright.engine.engine import Engine
from tilewright.errors import SettingsError

EPSILON = float(np.finfo(np.float32).eps)


class Net(nn.Module):
    """Convolution, product and softmax, so that the tiers differ in code."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.head = nn.Conv2d(3, 20, 3), nn.Linear(20, 10)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(nn.functional.gelu(self.conv(x)).mean((2, 3))).softmax(-1)


def model() -> tuple[nn.Module, torch.Tensor]:
    return Net().eval().requires_grad_(False), torch.randn(2, 3, 9, 11)


def agree(found: torch.Tensor, wanted: torch.Tensor) -> bool:
    """Within the rounding of sums of 27, 63 and 20 terms, of results up to 1."""
    return bool((found - wanted).abs().max() <= 8 * (27 + 63 + 20) * EPSILON)


@pytest.fixture
def held(monkeypatch):
    """Full builds wait until the event is set."""
    event = threading.Event()

    def waiting(graph, target, progress, source, tuning, **options):
        while not tuning.is_quick and not event.wait(0.01):
            progress("held", "", 0.0)  # where it may be stopped
        return build(graph, target, progress, source, tuning, **options)

    monkeypatch.setattr(quick_start, "build", waiting)
    yield event
    event.set()


def test_the_full_build_takes_over(held) -> None:
    module, x = model()
    engine = tilewright.compile(module, (x,), quick_start=True, threads=1)
    assert engine.is_quick and not engine.wait_for_full_build(0.0)
    assert all(len(step.choices) == 1 for step in engine.plan.steps)
    first, kernels = engine(x), {choice.kernel for step in engine.plan.steps for choice in step.choices}
    held.set()
    assert engine.wait_for_full_build() and not engine.is_quick and engine.threads == 1
    assert agree(engine(x), module(x)) and agree(first, module(x))
    assert not kernels & {choice.kernel for step in engine.plan.steps for choice in step.choices}
    assert not any(thread.name == "tilewright-full-build" and thread.is_alive() for thread in threading.enumerate())


def test_runs_in_threads_go_on_over_the_swap(held) -> None:
    module, x = model()
    wanted = module(x)
    engine = tilewright.compile(module, (x,), quick_start=True)
    wrong: list[object] = []
    counts = [0] * 4
    done = threading.Event()

    def work(number: int) -> None:
        try:
            while not done.is_set():
                if not agree(engine(x), wanted):
                    wrong.append("another result")
                counts[number] += 1
        except Exception as error:
            wrong.append(error)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(len(counts))]
    for thread in threads:
        thread.start()
    held.set()
    engine.wait_for_full_build()
    before = list(counts)
    while not wrong and any(now < then + 3 for now, then in zip(counts, before, strict=True)):
        time.sleep(0.01)  # every thread has run the new code
    done.set()
    for thread in threads:
        thread.join()
    assert not wrong and not engine.is_quick


def test_a_run_keeps_the_memory_that_it_began_with(held) -> None:
    module, x = model()
    engine = tilewright.compile(module, (x,), quick_start=True)
    session = engine._session
    held.set()
    engine.wait_for_full_build()
    gc.collect()
    junk = [np.full(100_000, np.nan, np.float32) for _ in range(20)]  # what would take the place of freed weights
    (found,) = session.run({engine.inputs[0].name: x}).values()
    assert agree(found, module(x)) and junk


def test_saved_files_are_full(held, tmp_path) -> None:
    module, x = model()
    engine = tilewright.compile(module, (x,), quick_start=True)
    threading.Timer(0.1, held.set).start()
    engine.save(tmp_path / "full.engine")
    assert not Engine.load(tmp_path / "full.engine").is_quick


def test_failures_are_reported(monkeypatch, caplog) -> None:
    def failing(graph, target, progress, source, tuning, **options):
        if not tuning.is_quick:
            raise MemoryError("no room for it")
        return build(graph, target, progress, source, tuning, **options)

    monkeypatch.setattr(quick_start, "build", failing)
    module, x = model()
    with caplog.at_level(logging.WARNING, "tilewright"):
        engine = tilewright.compile(module, (x,), quick_start=True)
        with pytest.raises(MemoryError, match="no room"):
            engine.wait_for_full_build()
    assert "the full build of an engine failed in the background" in caplog.text and "no room" in caplog.text
    assert engine.is_quick and agree(engine(x), module(x))


def test_an_engine_that_is_gone_ends_its_build(held) -> None:
    module, x = model()
    engine = tilewright.compile(module, (x,), quick_start=True)
    (thread,) = [thread for thread in threading.enumerate() if thread.name == "tilewright-full-build"]
    del engine
    gc.collect()
    thread.join(30)
    assert not thread.is_alive()


@pytest.mark.parametrize("end", ["", "raise KeyboardInterrupt"])
def test_the_end_of_the_interpreter_ends_the_build(end, tmp_path) -> None:
    """Of an ONNX model, which is read in a tenth of the time that importing PyTorch takes."""
    onnx = pytest.importorskip("onnx")
    x, y = (onnx.helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, (2, 3)) for name in ("x", "y"))
    nodes = [onnx.helper.make_node("MatMul", ["x", "w"], ["z"]), onnx.helper.make_node("Relu", ["z"], ["y"])]
    weight = onnx.numpy_helper.from_array(np.ones((3, 3), np.float32), "w")
    onnx.save(onnx.helper.make_model(onnx.helper.make_graph(nodes, "small", [x], [y], [weight])), tmp_path / "m.onnx")
    program = f"""
    import time, numpy, tilewright
    from tilewright.build import quick_start
    usual = quick_start.build

    def slow(graph, target, progress, source, tuning, **options):
        while not tuning.is_quick:  # for ever
            time.sleep(0.01)
            progress("held", "", 0.0)
        return usual(graph, target, progress, source, tuning, **options)

    quick_start.build = slow
    engine = tilewright.compile("m.onnx", quick_start=True)
    print(tuple(engine(numpy.ones((2, 3), numpy.float32)).shape), flush=True)
    {end}
    """
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(program)], capture_output=True, text=True, timeout=300, cwd=tmp_path
    )
    assert done.stdout.strip() == "(2, 3)", done.stderr
    assert (done.returncode == 0 and not done.stderr) if not end else "KeyboardInterrupt" in done.stderr


def test_weights_that_change_after_the_start(held) -> None:
    """The full build has the weights of the call, like the quick one; those of branches too."""

    class Either(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner, self.table = nn.Linear(4, 4), nn.Embedding(9, 4)

        def forward(self, x: torch.Tensor, i: torch.Tensor) -> torch.Tensor:
            x = torch.cond(x.sum() > 0, lambda x: self.inner(x).softmax(-1).cumsum(-1), lambda x: x.cumsum(0), (x,))
            return x + self.table(i)

    either = Either().eval().requires_grad_(False)
    x, i = torch.ones(3, 4), torch.tensor([8, 0, 3])
    plain, image = model()
    calls = [(plain, (image,)), (either, (x, i))]
    wanted = [module(*inputs) for module, inputs in calls]
    engines = [tilewright.compile(module, inputs, quick_start=True) for module, inputs in calls]
    for module, _ in calls:
        for parameter in module.parameters():
            parameter.zero_()
    held.set()
    for engine, (_, inputs), result in zip(engines, calls, wanted, strict=True):
        assert engine.wait_for_full_build(60) and not engine.is_quick
        assert agree(engine(*inputs), result)


def test_what_makes_no_sense_is_refused() -> None:
    module, x = model()
    with pytest.raises(SettingsError, match="quick_start with effort 0"):
        tilewright.compile(module, (x,), quick_start=True, effort=0)
    with pytest.raises(SettingsError, match="quick_start for the target cuda"):
        tilewright.compile(module, (x,), quick_start=True, target=["cpu", "cuda:sm_90a"])


def test_torch_compile(held) -> None:
    module, x = model()
    compiled = torch.compile(module, backend="tilewright", options={"quick_start": True})
    with torch.no_grad():
        assert agree(compiled(x), module(x))
        held.set()
        for thread in threading.enumerate():
            if thread.name == "tilewright-full-build":
                thread.join()
        assert agree(compiled(x), module(x))
    torch._dynamo.reset()


def test_sessions(held) -> None:
    from onnx import TensorProto, helper, numpy_helper

    from tilewright.onnx import InferenceSession
    from tilewright.onnx.session import SessionOptions

    weights = np.random.default_rng(0).standard_normal((5, 4), np.float32)
    x = helper.make_tensor_value_info("x", TensorProto.FLOAT, ["n", 5])
    y = helper.make_tensor_value_info("y", TensorProto.FLOAT, ["n", 4])
    node = helper.make_node("MatMul", ["x", "w"], ["y"])
    graph = helper.make_graph([node], "product", [x], [y], [numpy_helper.from_array(weights, "w")])
    given = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)])
    options = SessionOptions()
    options.quick_start = True
    session = InferenceSession(given.SerializeToString(), options)
    assert isinstance(session.engine, Engine) and session.engine.is_quick
    rows = np.ones((3, 5), np.float32)
    bound = 8 * 5 * EPSILON * np.abs(weights).sum(0).max()
    assert np.abs(session.run(None, {"x": rows})[0] - rows @ weights).max() <= bound
    held.set()
    assert session.engine.wait_for_full_build() and not session.engine.is_quick
    assert np.abs(session.run(None, {"x": rows})[0] - rows @ weights).max() <= bound
