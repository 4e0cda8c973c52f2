"""ONNX operations that draw random numbers: with a seed those of ONNX's reference, without one others each time."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from onnx.reference import ReferenceEvaluator

import tilewright
from tilewright.errors import ImportModelError
from tilewright.graph import reference
from tilewright.importers.onnx import import_onnx

Feeds = dict[str, np.ndarray]


def parsed(text: str) -> onnx.ModelProto:
    return onnx.parser.parse_model(f'<ir_version: 8, opset_import: ["" : 15]> {text}')


def run(model: onnx.ModelProto, feeds: Feeds) -> list[np.ndarray]:
    return list(reference.run(import_onnx(model), feeds, dtype=None).values())


SEEDED = {
    "uniform": "m () => (float[3, 5] y) { y = RandomUniform <shape = [3, 5], low = -2.0, high = 3.0, seed = 7.0> () }",
    "normal": "m () => (double[40] y) { y = RandomNormal <shape = [40], dtype = 11, mean = 1.5, seed = 3.0> () }",
    "uniform like": """m (double[n, 3] x) => (float[n, 3] y) {
        y = RandomUniformLike <dtype = 1, low = 0.0, high = 1.0, seed = 7.0> (x) }""",
    "normal like": """m (float[n, 3] x) => (float[n, 3] y) {
        y = RandomNormalLike <mean = 0.0, scale = 2.0, seed = 1.0> (x) }""",
}


@pytest.mark.parametrize("name", SEEDED)
def test_seeded_numbers_are_those_of_the_reference(name: str) -> None:
    model = parsed(SEEDED[name])
    dtype = np.float64 if "double" in SEEDED[name] else np.float32
    feeds = {"x": np.zeros((4, 3), dtype)} if model.graph.input else {}
    (wanted,) = ReferenceEvaluator(model).run(None, feeds)
    found, again = run(model, feeds)[0], run(model, feeds)[0]
    assert found.dtype == wanted.dtype
    np.testing.assert_allclose(found, wanted, rtol=1e-6, atol=1e-6)
    np.testing.assert_array_equal(found, again)


def test_numbers_without_a_seed_differ_from_run_to_run() -> None:
    model = parsed("m (float[n] x) => (float[n] y, float[n] z) { y = RandomNormalLike(x) z = RandomNormalLike(x) }")
    engine = tilewright.compile(model, target="cpu")
    x = np.zeros(64, np.float32)
    first, second = engine.run({"x": x}), engine.run({"x": x})
    found = [first["y"], first["z"], second["y"], second["z"]]
    assert len({array.tobytes() for array in found}) == 4
    assert all(np.isfinite(array).all() for array in found)


def test_events_come_with_their_probability() -> None:
    model = parsed("m (float[n] x) => (int64[n] y) { y = Bernoulli <dtype = 7, seed = 5.0> (x) }")
    x = np.repeat(np.array([0.0, 0.25, 1.0], np.float32), 4000)
    (found,) = run(model, {"x": x})
    none, some, every = found.reshape(3, 4000).mean(1)
    assert found.dtype == np.int64 and (none, every) == (0, 1)
    assert abs(some - 0.25) < 6 * (0.25 * 0.75 / 4000) ** 0.5


def test_classes_come_with_their_probabilities() -> None:
    model = parsed("m (float[n, 4] x) => (int32[n, 8000] y) { y = Multinomial <sample_size = 8000, seed = 2.0> (x) }")
    shares = np.array([[0.1, 0.2, 0.3, 0.4], [0.0, 1.0, 0.0, 0.0]])
    with np.errstate(divide="ignore"):
        (found,) = run(model, {"x": np.log(shares).astype(np.float32)})
    assert found.dtype == np.int32 and found.shape == (2, 8000)
    for row, share in zip(found, shares, strict=True):
        counted = np.bincount(row, minlength=4) / 8000
        assert (np.abs(counted - share) <= 6 * np.sqrt(share * (1 - share) / 8000) + 1e-12).all()


@pytest.mark.parametrize("dtype", ["float", "float16"])
def test_dropout_of_a_model_in_training(dtype: str, rng: np.random.Generator) -> None:
    model = parsed(
        f"m ({dtype}[n, 8] x, float r, bool t) => ({dtype}[n, 8] y, bool[n, 8] z) {{"
        "y, z = Dropout <seed = 4> (x, r, t) }"
    )
    x = rng.standard_normal((50, 8)).astype("float32" if dtype == "float" else dtype)
    ratio = np.array(0.3, np.float32)
    wanted, mask = ReferenceEvaluator(model).run(None, {"x": x, "r": ratio, "t": np.array(True)})
    found, kept = run(model, {"x": x, "r": ratio, "t": np.array(True)})
    assert found.dtype == x.dtype
    np.testing.assert_array_equal(kept, mask)
    np.testing.assert_allclose(found.astype(np.float64), wanted.astype(np.float64), rtol=2e-3)
    for share, training in ((0.3, False), (0.0, True)):
        found, kept = run(model, {"x": x, "r": np.array(share, np.float32), "t": np.array(training)})
        np.testing.assert_array_equal(found, x)
        assert kept.all()


def test_numbers_of_integer_types_are_refused() -> None:
    with pytest.raises(ImportModelError, match="random numbers of the type i64"):
        import_onnx(parsed("m (int64[3] x) => (int64[3] y) { y = RandomUniformLike(x) }"))
