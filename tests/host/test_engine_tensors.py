"""What engines take for tensors, and what they refuse: nothing is lost, nothing ends the process."""

from __future__ import annotations

import multiprocessing.shared_memory
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch._subclasses import FakeTensorMode

import tilewright
from tests.host.handmade import COLUMNS, expected, make_engine
from tests.host.odd_tensors import WITHOUT_MEMORY
from tilewright.errors import InputError, ShapeError, TilewrightError

ROWS = 2


@pytest.fixture(scope="module")
def engine() -> Any:
    return make_engine()


def rows() -> np.ndarray:
    return np.ones((ROWS, COLUMNS), np.float32)


def cache() -> np.ndarray:
    return np.zeros(4, np.int64)


class OnlyArray:
    def __array__(self, *arguments: Any, **options: Any) -> np.ndarray:
        return rows()


def structured() -> np.ndarray:
    return np.zeros((ROWS, COLUMNS), [("a", "<f4")])


def frozen(array: np.ndarray) -> np.ndarray:
    array.flags.writeable = False
    return array


NOT_WRITTEN: list[tuple[Callable[[], Any], type[TilewrightError], str]] = [
    (lambda: rows().tolist(), InputError, "a list has no memory for it"),
    (lambda: tuple(map(tuple, rows().tolist())), InputError, "a tuple has no memory for it"),
    (lambda: [rows()[0], rows()[1]], InputError, "a list has no memory for it"),
    (lambda: rows()[:, ::-1], ShapeError, "must be contiguous"),
    (lambda: np.asfortranarray(rows()), ShapeError, "must be contiguous"),
    (lambda: np.broadcast_to(rows()[:1], (ROWS, COLUMNS)), ShapeError, "must be contiguous"),
    (lambda: np.frombuffer(bytearray(65), np.uint8)[1:].view("f4").reshape(ROWS, -1), ShapeError, "must be contiguous"),
    (lambda: frozen(rows()), InputError, "read-only"),
    (lambda: rows().astype(np.float64), InputError, "is float64"),
    (lambda: rows().astype(">f4"), InputError, "is >f4"),
    (structured, InputError, "the engine was built for float32"),
    (lambda: memoryview(rows()), InputError, r"numpy\.asarray"),
    (lambda: bytearray(64), InputError, r"numpy\.asarray"),
    (OnlyArray, InputError, r"numpy\.asarray"),
    (lambda: np.ma.masked_array(rows(), rows() > 0), InputError, "masked array"),
    (lambda: list(np.ma.masked_array(rows(), rows() > 0)), InputError, "masked array in a list"),
    (lambda: "text", InputError, "cannot read a str"),
    (lambda: torch.ones(COLUMNS, ROWS).T, ShapeError, "must be contiguous"),
    (lambda: torch._neg_view(torch.ones(ROWS, COLUMNS)), ShapeError, "must be contiguous"),
    (lambda: torch.ones(1, COLUMNS).expand(ROWS, -1), ShapeError, "must be contiguous"),
    (lambda: torch.ones(ROWS, COLUMNS, requires_grad=True), InputError, "requires a gradient"),
    (lambda: torch.ones(ROWS, COLUMNS, requires_grad=True) * 1, InputError, "requires a gradient"),
]


@pytest.mark.parametrize(("make", "error", "message"), NOT_WRITTEN)
def test_out_that_cannot_be_written(engine: Any, make: Any, error: Any, message: str) -> None:
    counter, out = cache(), make()
    with pytest.raises(error, match=message):
        engine.run({"x": rows(), "cache": counter}, out={"y": out})
    assert not counter.any()


@pytest.mark.parametrize(
    ("given", "error", "message"),
    [
        ([0, 0, 0, 0], InputError, "input 'cache' is written in place, and a list has no memory"),
        ((0, 0, 0, 0), InputError, "a tuple has no memory"),
        (np.ma.masked_array(cache(), [1, 0, 0, 0]), InputError, "masked array"),
        (frozen(cache()), InputError, "read-only"),
        (torch.zeros(1, dtype=torch.int64).expand(4), ShapeError, "contiguous"),
        (memoryview(cache()), InputError, "cannot read a memoryview"),
    ],
)
def test_updated_inputs_that_cannot_be_written(engine: Any, given: Any, error: Any, message: str) -> None:
    out = np.zeros((ROWS, COLUMNS), np.float32)
    with pytest.raises(error, match=message):
        engine.run({"x": rows(), "cache": given}, out={"y": out})
    assert not out.any()


def test_out_for_an_updated_input(engine: Any) -> None:
    counter = cache()
    with pytest.raises(InputError, match="output 'cache_out' is the input 'cache', which is updated in place"):
        engine.run({"x": rows(), "cache": counter}, out={"cache_out": cache()})
    assert not counter.any()
    engine.run({"x": rows(), "cache": counter}, out={"cache_out": counter, "y": None})
    assert counter.all()


def test_arrays_that_are_written(engine: Any) -> None:
    with pytest.warns(PendingDeprecationWarning):
        matrix = np.asmatrix(np.zeros((ROWS, COLUMNS), np.float32))
    shared = multiprocessing.shared_memory.SharedMemory(create=True, size=64)
    mapped = np.ndarray((ROWS, COLUMNS), np.float32, buffer=shared.buf)
    for out in (
        matrix,
        mapped,
        torch.nn.Parameter(torch.zeros(ROWS, COLUMNS), False),
        np.zeros((3, ROWS, COLUMNS), "f4")[1],
    ):
        engine.run({"x": rows(), "cache": cache()}, out={"y": out})
        np.testing.assert_allclose(np.asarray(out), expected(rows()))
    shared.close()
    shared.unlink()
    for given in ({"x": mapped, "cache": cache()}, {"x": mapped.T.T[::-1], "cache": cache()}):
        with pytest.raises(InputError, match="its shared memory or mapped file was closed"):
            engine.run(given)
    with pytest.raises(InputError, match="was closed"):
        engine.run({"x": rows(), "cache": cache()}, out={"y": mapped})


@pytest.mark.parametrize("name", WITHOUT_MEMORY)
@pytest.mark.filterwarnings("ignore")
def test_tensors_without_memory(engine: Any, name: str) -> None:
    value = WITHOUT_MEMORY[name]()
    with pytest.raises(TilewrightError):
        engine.run({"x": value, "cache": cache()})
    if value is not None:
        with pytest.raises(TilewrightError):
            engine.run({"x": rows(), "cache": cache()}, out={"y": value})


def test_tensors_inside_of_transforms(engine: Any) -> None:
    def call(x: Any) -> Any:
        return engine.run({"x": x, "cache": torch.zeros(4, dtype=torch.int64)})["y"]

    x = torch.ones(3, ROWS, COLUMNS)
    for transformed in (torch.vmap(call), torch.func.functionalize(call), torch.func.grad(lambda x: call(x[0]).sum())):
        with pytest.raises(InputError):
            transformed(x)
    inner, counter = x[0], torch.zeros(4, dtype=torch.int64)
    with FakeTensorMode(), pytest.raises(InputError, match="has a shape and no memory"):
        engine.run({"x": inner, "cache": counter})
    assert not counter.any()


def test_the_default_device_of_pytorch_changes_nothing(engine: Any) -> None:
    x, counter = torch.ones(ROWS, COLUMNS), torch.zeros(4, dtype=torch.int64)
    with torch.device("meta"):
        y = engine.run({"x": x, "cache": counter})["y"]
    np.testing.assert_allclose(y.numpy(), expected(rows()))


ODD: list[Any] = [
    None,
    [],
    [rows()],
    rows(),
    "x",
    3,
    object(),
    {1: rows()},
    {None: rows()},
    {"x": rows()},
    iter(()),
    {},
]


@pytest.mark.parametrize("given", ODD, ids=lambda value: type(value).__name__)
def test_odd_arguments(engine: Any, given: Any) -> None:
    with pytest.raises(InputError):
        engine.run(given)
    if given is not None and not (isinstance(given, dict) and not given):
        with pytest.raises(InputError):
            engine.run({"x": rows(), "cache": cache()}, out=given)


def test_odd_numbers_of_threads(engine: Any) -> None:
    for threads in (0, -1, 1.5, "2", [1], object()):
        with pytest.raises(InputError, match="threads is a whole number"):
            engine.run({"x": rows(), "cache": cache()}, threads=threads)
    engine.run({"x": rows(), "cache": cache()}, threads=np.int64(2))
    with pytest.raises(InputError, match="runs is a whole number"):
        engine.profile({"x": rows(), "cache": cache()}, runs=0)


class Unspeakable:
    """A value that cannot be shown, nor asked for anything."""

    def __getattr__(self, name: str) -> Any:
        raise RuntimeError(name)

    def __repr__(self) -> str:
        raise RuntimeError("no text")


@pytest.mark.parametrize("kind", ["freed", "nested", "unspeakable", "released"])
def test_messages_do_not_read_the_values_that_they_are_about(engine: Any, kind: str) -> None:
    """PyTorch ends the process where a tensor whose memory was given back is printed."""
    value: Any = Unspeakable()
    if kind == "freed":
        value = torch.ones(2, 4)
        value.untyped_storage().resize_(0)
    elif kind == "nested":
        value = torch.nested.nested_tensor([torch.ones(4), torch.ones(3)])
    elif kind == "released":
        value = memoryview(b"four")
        assert hash(value)
        value.release()
    given = {"x": rows(), "cache": cache()}
    for run in (
        lambda: engine.run({value: rows()}),
        lambda: engine.run(given, threads=value),
        lambda: engine.run(given, out={value: rows()}),
        lambda: tilewright.load("absent.engine", rebuild=value),
        lambda: tilewright.load("absent.engine", expect_sha256=value),
        lambda: tilewright.load("absent.engine", trusted_keys=[value]),
    ):
        with pytest.raises(TilewrightError):
            run()


def test_fractions_are_not_truncated(engine: Any) -> None:
    with pytest.raises(InputError, match="do not make an? int64 tensor: there are fractions"):
        engine.run({"x": rows(), "cache": [0.5, 1, 2, 3]})


# Versions


def test_versions_rise_of_what_a_run_changes(engine: Any) -> None:
    x, counter, out = torch.ones(ROWS, COLUMNS), torch.zeros(4, dtype=torch.int64), torch.zeros(ROWS, COLUMNS)
    for number in range(1, 4):
        engine.run({"x": x, "cache": counter}, out={"y": out})
        assert (x._version, counter._version, out._version) == (0, number, number)
    with pytest.raises(InputError):
        engine.run({"x": x, "cache": counter}, out={"z": out})
    assert counter._version == 3 and counter.tolist() == [3] * 4


def test_backward_knows_that_a_saved_tensor_was_changed(engine: Any) -> None:
    weight, saved = torch.ones(ROWS, COLUMNS, requires_grad=True), torch.ones(ROWS, COLUMNS)
    y = (weight * saved).sum()
    engine.run({"x": torch.ones(ROWS, COLUMNS), "cache": cache()}, out={"y": saved})
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        y.backward()


@pytest.fixture(scope="module")
def updating() -> Any:
    """An engine that doubles its input in place."""

    class Doubles(torch.nn.Module):
        def forward(self, kv: torch.Tensor) -> torch.Tensor:
            kv.mul_(2.0)
            return kv.sum()

    return tilewright.compile(Doubles(), (torch.ones(4),), target="cpu")


def test_updates_of_tensors_that_require_gradients(updating: Any) -> None:
    (name,) = [spec.name for spec in updating.inputs]
    leaf = torch.ones(4, requires_grad=True)
    for kv in (leaf, leaf[:], torch.nn.Parameter(torch.ones(4))):
        with pytest.raises(InputError, match="requires a gradient"):
            updating.run({name: kv})
    assert leaf.tolist() == [1] * 4
    y = (leaf * leaf).sum()
    with torch.no_grad():
        updating.run({name: leaf})
    assert leaf.tolist() == [2] * 4
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        y.backward()


def test_updates_of_tensors_with_a_history(updating: Any) -> None:
    (name,) = [spec.name for spec in updating.inputs]
    leaf = torch.ones(4, requires_grad=True)
    kv = leaf * 3
    y = (kv * kv).sum()
    updating.run({name: kv})
    assert kv.tolist() == [6] * 4
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        y.backward(retain_graph=True)
    with pytest.raises(InputError, match="engines have no gradients"):
        kv.sum().backward()
    with torch.inference_mode():
        inner = torch.ones(4)
    updating.run({name: inner})
    assert inner.tolist() == [2] * 4
