"""Calls of engines that become part of a CUDA graph of the caller, on the stand-in: the graph owns the memory."""

from __future__ import annotations

import ctypes
import gc

import numpy as np

from tests.host.cuda_stand_in import Driver
from tilewright.build.builder import build
from tilewright.dtypes import float32
from tilewright.engine.engine import Engine
from tilewright.graph.build import GraphBuilder
from tilewright.runtime.cuda import graph_references
from tilewright.runtime.cuda.memory import DeviceArray
from tilewright.runtime.cuda.streams import LEGACY_DEFAULT


def made() -> Engine:
    """A product of a softmax, with weights and an arena that grows with the rows."""
    b = GraphBuilder("rows")
    rows = b.symbol("rows", 1, 1 << 26)
    x = b.input("x", float32, (rows, 24))
    weights = b.constant(np.random.default_rng(3).standard_normal((24, 40), np.float32), "w")
    b.output(b.op("matmul", [b.op("softmax", [b.op("matmul", [x, weights])], axis=1), weights], transpose_b=True), "y")
    return build(b.finish(), "cuda:sm_90a")


def captured(driver: Driver, engine: Engine, x: DeviceArray, times: int = 1) -> tuple[list, list, DeviceArray]:
    """The graph of calls, its user objects, and what it writes."""
    driver.cuStreamBeginCapture(LEGACY_DEFAULT, 1)
    for _ in range(times):
        y = engine.run({"x": x})["y"]
    owned = driver.captured[LEGACY_DEFAULT].owned
    status, graph = driver.cuStreamEndCapture(LEGACY_DEFAULT)
    assert status == 0
    return graph, owned, y


def destroy(owned: list[tuple[int, int]]) -> None:
    """What the driver does when the last executable of a graph is gone."""
    for value, destructor in owned:
        ctypes.CFUNCTYPE(None, ctypes.c_void_p)(destructor)(value)


def test_a_graph_may_outlive_the_engine(driver: Driver) -> None:
    engine = made()
    x = DeviceArray.from_numpy(np.random.default_rng(4).standard_normal((9, 24), np.float32), 0)
    expected = engine.run({"x": x})["y"].numpy()
    graph, owned, y = captured(driver, engine, x)
    del engine
    gc.collect()
    memory = len(driver.memory)
    driver.cuGraphLaunch(graph, LEGACY_DEFAULT)
    assert np.array_equal(y.numpy(), expected)
    graph_references.release()
    assert len(driver.memory) == memory  # the graph is still there
    destroy(owned)
    graph_references.release()
    gc.collect()
    assert len(driver.memory) < memory and not graph_references._references


def test_a_graph_has_the_memory_of_its_call_though_the_engine_needs_more(driver: Driver) -> None:
    engine = made()
    small, large = (DeviceArray.from_numpy(np.ones((rows, 24), np.float32), 0) for rows in (9, 40000))
    engine.run({"x": small})
    graph, owned, y = captured(driver, engine, small)
    session = engine._session
    before = session._arena.address
    engine.run({"x": large})
    assert session._arena.address != before and before in driver.memory
    driver.cuGraphLaunch(graph, LEGACY_DEFAULT)
    np.testing.assert_allclose(y.numpy(), engine.run({"x": small})["y"].numpy(), rtol=1e-6)
    destroy(owned)
    graph_references.release()
    assert before not in driver.memory


def test_calls_of_one_capture_are_one_reference(driver: Driver) -> None:
    engine = made()
    x = DeviceArray.from_numpy(np.ones((9, 24), np.float32), 0)
    engine.run({"x": x})
    _, owned, _ = captured(driver, engine, x, times=3)
    assert len(owned) == 1
    _, again, _ = captured(driver, engine, x)
    assert len(again) == 1
    destroy(owned + again)
    graph_references.release()
    assert not graph_references._references
