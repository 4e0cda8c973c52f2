"""`tilewright.quantize`: thresholds against an independent reference, engines, reports, bad data."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper
from typer.testing import CliRunner

import tilewright
from tilewright.cli.main import application
from tilewright.dtypes import DType, float16, float32, int8, int32, int64, uint8
from tilewright.errors import InputError, ShapeError
from tilewright.graph.build import GraphBuilder
from tilewright.quant.calibration import samples_of
from tilewright.quant.observers import OBSERVERS, Histogram, affine

# Thresholds, written down again from their definitions, bin by bin ------------------------------------


def reference_percentile(counts: np.ndarray, edges: np.ndarray) -> tuple[float, float]:
    """Bins are dropped from either end as long as no more than half of 0.01 % of the elements are in them."""
    total, first, last = counts.sum(), 0, len(counts)
    while 20_000 * counts[: first + 1].sum() <= total:
        first += 1
    while 20_000 * counts[last - 1 :].sum() <= total:
        last -= 1
    return edges[first], edges[last]


def reference_mse(counts: np.ndarray, edges: np.ndarray) -> tuple[float, float]:
    centers = [(a + b) / 2 for a, b in zip(edges[:-1], edges[1:], strict=True)]
    largest = max(abs(edges[0]), abs(edges[-1]))
    errors = {}
    for step in range(1, 101):
        low, high = max(edges[0], -largest * step / 100), min(edges[-1], largest * step / 100)
        scale, zero = affine(low, high)
        total = 0.0
        for count, x in zip(counts, centers, strict=True):
            if count:
                integer = min(max(round(x / float(scale)) + zero, 0), 255)
                total += count * (x - (integer - zero) * float(scale)) ** 2
        errors[low, high] = total
    return min(errors, key=errors.__getitem__)


def reference_entropy(counts: np.ndarray, edges: np.ndarray) -> tuple[float, float]:
    largest, count_of_bins = max(abs(edges[0]), abs(edges[-1])), len(counts)
    magnitudes = np.zeros(count_of_bins)
    for count, (a, b) in zip(counts, zip(edges[:-1], edges[1:], strict=True), strict=True):
        magnitudes[min(int(abs((a + b) / 2) / largest * count_of_bins), count_of_bins - 1)] += count
    divergences = {}
    for bins in range(128, count_of_bins + 1):
        p, q = magnitudes[:bins].copy(), np.zeros(bins)
        p[-1] += magnitudes[bins:].sum()
        for level in range(128):
            part = slice(level * bins // 128, (level + 1) * bins // 128)
            inside = magnitudes[part] > 0
            if inside.any():
                q[part] = np.where(inside, magnitudes[part].sum() / inside.sum(), 0)
        if (p[q == 0] > 0).any():
            continue
        p, q = p / p.sum(), q / q.sum()
        divergences[bins] = sum(a * np.log(a / b) for a, b in zip(p, q, strict=True) if a > 0)
    cut = largest * min(divergences, key=divergences.__getitem__) / count_of_bins
    return max(edges[0], -cut), min(edges[-1], cut)


REFERENCES = {
    "minmax": lambda counts, edges: (edges[0], edges[-1]), "percentile": reference_percentile, "mse": reference_mse,
    "entropy": reference_entropy,
}  # fmt: skip


@pytest.mark.parametrize("observer", OBSERVERS)
@pytest.mark.parametrize("kind", ["normal", "skewed", "outliers"])
def test_thresholds_equal_an_independent_reference(observer: str, kind: str, rng: np.random.Generator) -> None:
    x = rng.standard_normal(60_000)
    x = {"normal": x, "skewed": np.maximum(x, -0.17) ** 2, "outliers": np.append(x, [37.0, -60.0])}[kind]
    counts, edges = np.histogram(x, 200)
    found = OBSERVERS[observer](Histogram(counts, edges[0], edges[-1]))
    np.testing.assert_allclose(found, REFERENCES[observer](counts, edges), rtol=1e-9, atol=1e-12)
    if kind == "outliers" and observer == "percentile":
        assert found[1] - found[0] < 96  # less than the whole range of 97


def test_scales_have_zero_among_the_integers() -> None:
    for low, high in ((-1.0, 3.0), (0.5, 2.0), (-4.0, -1.0), (0.0, 0.0), (-1e-30, 1e-30)):
        scale, zero = affine(low, high)
        assert 0 <= zero <= 255 and scale > 0
        if high - low > 1e-20:
            ends = (np.array([0, 255]) - zero) * float(scale)
            assert ends[0] <= min(low, 0) + scale and ends[1] >= max(high, 0) - scale


# Engines ----------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """conv 2 to 16, conv 16 to 24 with a bias, ReLUs, mean of pixels, gemm 24 to 10."""
    rng = np.random.default_rng(7)

    def weight(name: str, *shape: int) -> onnx.TensorProto:
        data = rng.standard_normal(shape) / np.sqrt(max(1, np.prod(shape[1:])))
        return numpy_helper.from_array(data.astype(np.float32), name)

    nodes = [
        helper.make_node("Conv", ["x", "w0"], ["c0"], pads=[1, 1, 1, 1]),
        helper.make_node("Relu", ["c0"], ["r0"]),
        helper.make_node("Conv", ["r0", "w1", "b1"], ["c1"], pads=[1, 1, 1, 1], strides=[2, 2]),
        helper.make_node("Relu", ["c1"], ["r1"]),
        helper.make_node("GlobalAveragePool", ["r1"], ["p"]),
        helper.make_node("Flatten", ["p"], ["f"]),
        helper.make_node("Gemm", ["f", "w2", "b2"], ["y"], transB=1),
    ]
    weights = [weight("w0", 16, 2, 3, 3), weight("w1", 24, 16, 3, 3), weight("b1", 24), weight("w2", 10, 24)]
    x = helper.make_tensor_value_info("x", TensorProto.FLOAT, ["batch", 2, 12, 12])
    y = helper.make_tensor_value_info("y", TensorProto.FLOAT, ["batch", 10])
    graph = helper.make_graph(nodes, "net", [x], [y], [*weights, weight("b2", 10)])
    path = tmp_path_factory.mktemp("quantize") / "net.onnx"
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)]), path)
    return path


def samples(rng: np.random.Generator, count: int = 3) -> list[np.ndarray]:
    return [rng.standard_normal((2, 2, 12, 12)).astype(np.float32) for _ in range(count)]


def weights_file(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


def test_engine_and_report(model: Path, rng: np.random.Generator) -> None:
    data = samples(rng)
    plain, found = tilewright.compile(model), tilewright.quantize(model, data, observer="mse")
    x = {"x": samples(rng, 1)[0]}
    wanted, y = plain.run(x)["y"], found.engine.run(x)["y"]
    assert 0 < np.abs(y - wanted).max() < 0.1 * np.abs(wanted).max()
    assert found.engine.weight_bytes < 0.5 * plain.weight_bytes
    rows = {row.name: row for row in found.layers}
    assert [row.op for row in rows.values()] == ["conv", "conv", "matmul"] and set(found.errors) == {"y"}
    first, *rest = rows.values()
    assert first.reason is not None and "2 channels" in first.reason and first.error is None
    assert all(row.reason is None and row.range is not None and 0 < (row.error or 0) < 0.05 for row in rest)
    assert 0 < found.errors["y"] < 0.1


def test_the_same_data_give_the_same_engine(model: Path, tmp_path: Path) -> None:
    for name in ("one", "two"):
        data = samples(np.random.default_rng(3))
        tilewright.quantize(model, data, observer="percentile").engine.save(tmp_path / name)
    assert weights_file(tmp_path / "one") == weights_file(tmp_path / "two")


def test_ranges_as_they_come_need_no_data(model: Path, rng: np.random.Generator) -> None:
    found = tilewright.quantize(model, scheme="int8-dynamic")
    assert [row.reason is None for row in found.layers] == [False, False, True] and found.errors == {}
    x = {"x": samples(rng, 1)[0]}
    wanted = tilewright.compile(model).run(x)["y"]
    np.testing.assert_allclose(found.engine.run(x)["y"], wanted, atol=0.02 * np.abs(wanted).max())


@pytest.mark.parametrize("scheme", ["fp8", "fp8-dynamic"])
def test_8_bit_floats(scheme: str, model: Path, rng: np.random.Generator) -> None:
    """The numbers are those of float8 wherever products are computed; only GPUs multiply them as they are."""
    data = samples(rng)
    found = tilewright.quantize(model, data, scheme)
    (remark,) = found.remarks
    assert "cpu" in remark and [row.reason is None for row in found.layers] == [False, scheme == "fp8", True]
    rows = found.engine.run({"x": data[0]})["y"].astype(np.float64) - tilewright.compile(model).run({"x": data[0]})["y"]
    assert 0 < found.errors["y"] < 2.0**-4 and np.abs(rows).max() > 0
    on_gpu = tilewright.quantize(model, data, scheme, target="cuda:sm_90a")
    assert on_gpu.remarks == () and on_gpu.errors == found.errors
    assert on_gpu.engine.weight_bytes < found.engine.weight_bytes  # which has them as floats


def test_layers_that_are_left_out(model: Path, rng: np.random.Generator) -> None:
    data = samples(rng)
    names = [row.name for row in tilewright.quantize(model, data).layers]
    found = tilewright.quantize(model, data, exclude=[names[1]])
    assert found.layers[1].reason == "it was left out" and found.layers[2].reason is None
    with pytest.raises(InputError, match="no quantized layer is called 'other'"):
        tilewright.quantize(model, data, exclude=["other"])


@pytest.mark.parametrize(
    ("data", "error", "message"),
    [
        ([], InputError, "no sample"),
        (None, InputError, "needs calibration data"),
        ([{"z": np.zeros((1, 2, 12, 12))}], InputError, "sample 0: there is no input 'z'"),
        ([np.zeros((1, 2, 12, 12)), np.zeros((1, 2, 9, 9))], ShapeError, "sample 1"),
        ([np.full((1, 2, 12, 12), np.nan)], InputError, "sample 0: input 'x' has numbers that are infinite or not"),
        ([np.full((1, 2, 12, 12), 1e300)], InputError, "sample 0: input 'x' has numbers beyond the range of f32"),
        ([(np.zeros(3), np.zeros(3))], InputError, "has 2 arrays"),
        ([np.full((1, 2, 12, 12), "a")], InputError, "elements of"),
    ],
)
def test_bad_data_is_reported(model: Path, data: Any, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        tilewright.quantize(model, data)


def test_unknown_scheme_and_observer(model: Path) -> None:
    with pytest.raises(InputError, match="unknown scheme 'int7': choose one of int8, int8-dynamic"):
        tilewright.quantize(model, scheme="int7")
    with pytest.raises(InputError, match="unknown observer 'max'"):
        tilewright.quantize(model, observer="max")


@pytest.mark.parametrize("scheme", ["int4-weights", "int8-weights", "int8-dynamic", "fp8-dynamic", "int8"])
@pytest.mark.parametrize("value", [np.nan, -np.inf])
def test_weights_that_are_not_finite(scheme: str, value: float, tmp_path: Path, rng: np.random.Generator) -> None:
    weights = rng.standard_normal((256, 320)).astype(np.float32)
    weights[3, 5] = value
    node = helper.make_node("MatMul", ["x", "w"], ["y"])
    ends = [
        helper.make_tensor_value_info(name, TensorProto.FLOAT, (3, size)) for name, size in (("x", 256), ("y", 320))
    ]
    graph = helper.make_graph([node], "g", ends[:1], ends[1:], [numpy_helper.from_array(weights, "w")])
    model, output = tmp_path / "m.onnx", tmp_path / "m.engine"
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9), str(model))
    data = [rng.standard_normal((3, 256)).astype(np.float32)] if scheme == "int8" else None
    with pytest.raises(InputError, match=rf"weights w of the layer y.* have {value} at \[3, 5\].*--exclude y"):
        tilewright.quantize(model, data, scheme)
    found = CliRunner().invoke(application(), ["quantize", str(model), "--scheme", "int4-weights", "-o", str(output)])
    assert found.exit_code != 0 and [item.name for item in tmp_path.iterdir()] == ["m.onnx"]


@pytest.mark.parametrize(("dtype", "number", "fits"), [
    (int8, 127, True), (int8, 128, False), (int8, 1e300, False), (int8, np.nan, False), (uint8, -1, False),
    (int32, 2**40, False), (int64, np.uint64(2**63), False), (float16, 65504, True), (float16, 65520.0, False),
    (float32, 2**63, True),
], ids=str)  # fmt: skip
def test_numbers_beyond_a_type(dtype: DType, number: Any, fits: bool) -> None:
    b = GraphBuilder("numbers")
    x = b.input("x", dtype, (2,))
    b.output(b.op("add", [x, x]), "y")
    graph, data = b.finish(), {"x": np.array([0, number], np.asarray(number).dtype)}
    if fits:
        assert len(samples_of(data, graph)) == 1
        return
    with pytest.raises(InputError, match=f"sample 0: input 'x' has numbers beyond the range of {dtype}"):
        samples_of(data, graph)
