"""Every ONNX rule against the ONNX project's own node cases, through the graph's NumPy reference."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import ml_dtypes
import numpy as np
import pytest

onnx = pytest.importorskip("onnx")

from onnx import ModelProto, TensorProto, numpy_helper  # noqa: E402

from tilewright.errors import ImportModelError, UnsupportedOperationError  # noqa: E402
from tilewright.graph import reference  # noqa: E402
from tilewright.importers.onnx import import_onnx  # noqa: E402
from tilewright.importers.onnx_ops import RULES, early, random  # noqa: E402
from tilewright.importers.onnx_schema import RUNTIME_DOMAIN, rule_name  # noqa: E402
from tools.onnx_cases import node_cases, pooled  # noqa: E402

# Ops without a case of their own among the node cases, and those whose cases need more than one op.
WITHOUT_CASES = {"GlobalLpPool", "MaxRoiPool", "Scatter", "SimplifiedLayerNormalization", *early.TABLE.rules}
# Operations of which every case is right when small inputs are constants.
WHOLE = (
    "BitCast",
    "DequantizeLinear",
    "QuantizeLinear",
    "Attention",
    "BatchNormalization",
    "Col2Im",
    "ConvTranspose",
    "DeformConv",
    "CenterCropPad",
    "Det",
    "Einsum",
    "GridSample",
    "LRN",
    "LayerNormalization",
    "LpPool",
    "MaxPool",
    "MaxUnpool",
    "AffineGrid",
    "ReverseSequence",
    "RoiAlign",
    "TfIdfVectorizer",
    "ai.onnx.preview.training::Adagrad",
    "ai.onnx.preview.training::Adam",
    "ai.onnx.preview.training::Momentum",
    "Resize",
    "RotaryEmbedding",
    "ai.onnx.preview::FlexAttention",
)
# Reductions of nothing have no meaning in the graph.
EMPTY = "empty_set"

# Whose numbers are random, or which need an optional package: tests of their own.
ELSEWHERE = {*random.TABLE.rules, "ImageDecoder"} - {"Dropout"}

Case = Any


@pytest.fixture(scope="module")
def cases() -> dict[str, list[Case]]:
    """The single-node cases by operation."""
    found: dict[str, list[Case]] = {}
    for case in node_cases():
        nodes = case.model.graph.node
        listed = any(item is None or isinstance(item, list) for side in case.data_sets[0] for item in side)
        if len(nodes) == 1 and "_expanded" not in case.name and EMPTY not in case.name and not listed:
            found.setdefault(rule_name(nodes[0]), []).append(case)
    return found


@pytest.mark.parametrize("kind", ["AVG", "MAX", "LPPOOL"])
@pytest.mark.parametrize("count_include_pad", [0, 1])
def test_windows_are_pooled_together_as_onnx_pools_each(
    kind: str, count_include_pad: int, rng: np.random.Generator
) -> None:
    from onnx.reference.ops.op_pool_common import pool

    for _ in range(10):
        axes = int(rng.integers(1, 4))
        x = rng.standard_normal((1, 2, *rng.integers(4, 8, axes))).astype(np.float32)
        kernel, strides, gaps = (rng.integers(1, high, axes).tolist() for high in (4, 3, 2 + axes % 2))
        pads = rng.integers(0, kernel, (2, axes)).ravel().tolist()
        missing = 0 if count_include_pad else np.nan
        padded = np.pad(x, [(0, 0)] * 2 + list(zip(pads[:axes], pads[axes:], strict=True)), constant_values=missing)
        spans = [
            extent - 1 - (size - 1) * gap for extent, size, gap in zip(padded.shape[2:], kernel, gaps, strict=True)
        ]
        if min(spans) < 0:
            continue
        counts = [span // stride + 1 for span, stride in zip(spans, strides, strict=True)]
        given = (padded, x.shape, kernel, strides, counts, kind, pads, pads, gaps, count_include_pad, 2)
        np.testing.assert_allclose(pooled(*given), pool(*given), rtol=1e-5, atol=1e-6)


def to_array(item: Any) -> np.ndarray:
    return numpy_helper.to_array(item) if isinstance(item, TensorProto) else np.asarray(item)


def bound(
    model: ModelProto, inputs: list[np.ndarray], chosen: Callable[[np.ndarray], bool], outputs: int
) -> ModelProto:
    """The model with some inputs as initializers, as exporters write axes, shapes and other parameters."""
    result = ModelProto()
    result.CopyFrom(model)
    del result.graph.output[outputs:]
    for entry, data in zip(model.graph.input, inputs, strict=False):
        if chosen(data):
            result.graph.initializer.append(numpy_helper.from_array(data, entry.name))
    return result


BINDINGS: tuple[Callable[[np.ndarray], bool], ...] = (
    lambda data: False,
    lambda data: data.dtype.kind in "iub" and data.ndim <= 1,
    lambda data: (data.dtype.kind in "iub" and data.ndim <= 1) or data.ndim == 0,
    lambda data: data.dtype.kind in "iub",
    lambda data: data.size <= 16,
)


def tolerance(dtype: np.dtype) -> tuple[float, float]:
    """Relative and absolute: the cases store results rounded to few digits in the element type."""
    if dtype.itemsize < 4 and dtype.kind not in "iub":
        return 2e-2, 1e-3
    return 1e-4, 1e-4


def defined(case: Case, given: np.ndarray, want: np.ndarray) -> Any:
    """The elements that the standard defines: casts of floats beyond an integer type are what NumPy and ml_dtypes make
    of them, of each version something else."""
    integer = case.name.startswith("test_cast") and want.dtype.name.startswith(("int", "uint"))
    if not integer or want.dtype.itemsize * 8 > 32 or given.dtype == object or given.dtype.kind == "U":
        return ...
    limits, numbers = ml_dtypes.iinfo(want.dtype), given.astype(np.float64)
    return (numbers > limits.min - 1) & (numbers < limits.max + 1)


def run(case: Case) -> str:
    """ "right", or why the case is not supported; raises on a wrong answer."""
    arrays, expected = ([to_array(item) for item in side] for side in case.data_sets[0])
    reason = ""
    for chosen, outputs in [(chosen, outputs) for outputs in (len(expected), 1) for chosen in BINDINGS]:
        try:
            graph = import_onnx(bound(case.model, arrays, chosen, outputs))
        except (UnsupportedOperationError, ImportModelError) as error:
            reason = str(error)
            assert "the import rule failed" not in reason, f"{case.name}: {reason}"
            continue
        names = {value.name for value in graph.inputs}
        entries = zip(case.model.graph.input, arrays, strict=False)
        results = reference.run(graph, {entry.name: data for entry, data in entries if entry.name in names}, dtype=None)
        for name, want in zip(graph.output_names, expected, strict=False):
            got = results[name]
            want = want.astype(object) if want.dtype.kind == "U" else want
            assert (got.shape, got.dtype) == (want.shape, want.dtype), case.name
            relative, absolute = tolerance(want.dtype)
            exact = want.dtype.kind in "iub"
            if want.dtype == object:
                assert got.tolist() == want.tolist(), case.name
                continue
            where = defined(case, arrays[0], want)
            np.testing.assert_allclose(
                got[where] if exact else got.astype(np.float64)[where],
                want[where] if exact else want.astype(np.float64)[where],
                rtol=relative,
                atol=absolute,
                err_msg=case.name,
            )
        return "right"
    return reason


@pytest.mark.parametrize("operation", WHOLE)
def test_every_case_is_right(operation: str, cases: dict[str, list[Case]]) -> None:
    assert cases[operation]
    assert {case.name: run(case) for case in cases[operation]} == {case.name: "right" for case in cases[operation]}


@pytest.mark.parametrize(
    "operation",
    sorted(
        name for name in set(RULES) - WITHOUT_CASES - ELSEWHERE if not name.startswith((RUNTIME_DOMAIN, "ai.onnx.ml"))
    ),
)
def test_rule(operation: str, cases: dict[str, list[Case]]) -> None:
    """Each case gives the right answer or is refused with a reason; at least one is right."""
    outcomes = {case.name: run(case) for case in cases.get(operation, [])}
    assert "right" in outcomes.values(), outcomes
