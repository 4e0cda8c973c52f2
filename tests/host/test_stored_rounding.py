"""Rounded weights in the cache: equal to those that are made, again after damage, and in a run that was interrupted."""

from __future__ import annotations

from pathlib import Path

import ml_dtypes
import numpy as np
import pytest

import tilewright
from tilewright.dtypes import float32
from tilewright.graph.build import GraphBuilder
from tilewright.graph.core import Graph
from tilewright.quant import stored_rounding
from tilewright.quant.rounding import Moments, RoundedWeights, rounded
from tilewright.quant.stored_rounding import rounded_once
from tilewright.settings import settings
from tilewright.targets.llvm import cache


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(settings, "cache_directory", tmp_path / "cache")
    return tmp_path / "cache"


def layer(rng: np.random.Generator, columns: int, depth: int) -> tuple[np.ndarray, Moments]:
    moments = Moments.of(depth, True)
    moments.add(rng.standard_normal((50, depth)).astype(np.float32))
    return rng.standard_normal((columns, depth)).astype(np.float32), moments


def equal(one: RoundedWeights, other: RoundedWeights) -> bool:
    pairs = [(getattr(one.matrix, name), getattr(other.matrix, name)) for name in ("codes", "scales", "zeros", "order")]
    pairs.append((one.factors, other.factors))
    same = all((a is None) == (b is None) and (a is None or (a.dtype == b.dtype and (a == b).all())) for a, b in pairs)
    return same and one.matrix.depth == other.matrix.depth


@pytest.mark.parametrize("method", ["gptq", "awq"])
@pytest.mark.parametrize(("bits", "group", "depth"), [(4, 32, 64), (8, 0, 48), (4, 16, 40), (8, 8, 24)])
def test_once(
    rng: np.random.Generator, monkeypatch: pytest.MonkeyPatch, own_cache: Path, method: str, bits: int, group: int,
    depth: int,
) -> None:  # fmt: skip
    weights, moments = layer(rng, 24, depth)
    expected = rounded(weights, bits, group, method, moments)
    assert equal(rounded_once(weights, bits, group, method, moments), expected)
    calls: list[int] = []
    monkeypatch.setattr(stored_rounding, "rounded", lambda *given: calls.append(1) or rounded(*given))
    assert equal(rounded_once(weights, bits, group, method, moments), expected) and not calls
    moments.add(np.ones((1, depth), np.float32))
    rounded_once(weights, bits, group, method, moments)
    rounded_once(weights + 1, bits, group, method, moments)
    assert len(calls) == 2
    for path in own_cache.rglob("rounded-*"):
        path.write_bytes(path.read_bytes()[:-40])
    rounded_once(weights, bits, group, method, moments)
    assert len(calls) == 3


def test_keys_of_arrays() -> None:
    """Arrays of any type and number of axes have keys, others for others, and the same in another order."""
    narrow = np.dtype(ml_dtypes.bfloat16)
    arrays: list[dict[str, np.ndarray]] = [
        {}, {"a": np.array(1.5)}, {"a": np.array(2.5)}, {"b": np.array(1.5)}, {"a": np.array([1.5])},
        {"a": np.array(1.5, np.float32)}, {"a": np.array(1, narrow)}, {"a": np.array([1, 2], narrow)},
        {"a": np.array(["x", None], object)}, {"a": np.zeros((0, 3))}, {"a": np.zeros((3, 0))},
        {"a": np.arange(6).reshape(2, 3)}, {"a": np.arange(6).reshape(2, 3).T}, {"a b": np.array(1.5)},
        {"a": np.array(1.5), "b": np.array(2.5)}, {"a": np.array(2.5), "b": np.array(1.5)},
    ]  # fmt: skip
    assert len({cache.arrays_key(each) for each in arrays}) == len(arrays)
    assert all(cache.arrays_key(each) == cache.arrays_key(dict(reversed(each.items()))) for each in arrays)
    strided = np.arange(12).reshape(3, 4)[:, ::2]
    assert cache.arrays_key({"a": strided}) == cache.arrays_key({"a": strided.copy()})


def test_the_limit_is_applied_to_each_layer(
    own_cache: Path, rng: np.random.Generator, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cache, "_ROUNDED_LIMIT", 20_000)
    for _ in range(5):
        rounded_once(layer(rng, 64, 128)[0], 8, 64, "gptq", layer(rng, 64, 128)[1])
    sizes = [path.stat().st_size for path in (own_cache / "rounded").rglob("*.kernel")]
    assert 0 < len(sizes) < 5 and sum(sizes) <= 20_000


def three_layers(rng: np.random.Generator) -> Graph:
    b = GraphBuilder("net")
    x = b.input("x", float32, (8, 128))
    for _ in range(3):
        x = b.op("relu", [b.op("matmul", [x, b.constant(rng.standard_normal((128, 128)).astype(np.float32) / 11)])])
    b.output(x, "y")
    return b.finish()


def test_a_run_that_was_interrupted_goes_on(rng: np.random.Generator, monkeypatch: pytest.MonkeyPatch) -> None:
    graph, data = three_layers(rng), [rng.standard_normal((8, 128)).astype(np.float32) for _ in range(3)]
    calls: list[int] = []

    def interrupted(*given: object) -> RoundedWeights:
        if len(calls) == 2:
            raise KeyboardInterrupt
        calls.append(1)
        return rounded(*given)  # type: ignore[arg-type]

    monkeypatch.setattr(stored_rounding, "rounded", interrupted)
    with pytest.raises(KeyboardInterrupt):
        tilewright.quantize(graph, data, scheme="int4-weights", method="gptq")
    calls.clear()
    resumed = tilewright.quantize(graph, data, scheme="int4-weights", method="gptq")
    assert len(calls) == 1
    whole = tilewright.quantize(graph, data, scheme="int4-weights", method="gptq")
    found, expected = (np.array(each.engine.run({"x": data[0]})["y"]) for each in (resumed, whole))
    assert (found == expected).all()
