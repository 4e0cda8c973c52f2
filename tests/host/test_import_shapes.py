"""Dynamic shapes in the neutral form, sympy sizes, and ONNX shape arithmetic at import."""

from __future__ import annotations

import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from tilewright.errors import ImportModelError, ShapeError
from tilewright.graph import reference
from tilewright.graph.build import GraphBuilder
from tilewright.importers.shapes import Dimension, parse_dynamic_shapes, symbol_name
from tilewright.symbolic import evaluate


def test_neutral_forms() -> None:
    class Named:
        __name__, min, max = "n", 2, 8

    parsed = parse_dynamic_shapes(
        {"a": {0: ("n", 2, 8), 1: "m", 2: (1, 4), 3: 7}, "b": ["n", None, Named()], "c": None, "d": {0: ("k", 5, 5)}}
    )
    n, m = Dimension("n", 2, 8), Dimension("m")
    assert parsed == {"a": {0: n, 1: m, 2: Dimension("a_2", 1, 4), 3: 7}, "b": {0: n, 2: n}, "d": {0: 5}}


@pytest.mark.parametrize("entry", [True, 1.5, ("n", 5, 2), ("n",), (1, 2, 3, 4), object(), "two words", ""])
def test_malformed_entries(entry: Any) -> None:
    with pytest.raises(ImportModelError, match=r"dynamic_shapes\['x'\]\[0\]"):
        parse_dynamic_shapes({"x": {0: entry}})


def test_names_from_files_become_identifiers() -> None:
    assert [symbol_name(text) for text in ("batch", "batch-size", "2*n", "unk__12")] == [
        "batch",
        "batch_size",
        "d2_n",
        "unk__12",
    ]


@pytest.mark.parametrize(("package", "extra", "file"), [("torch", "torch", "m.pt2"), ("onnx", "onnx", "m.onnx")])
def test_missing_packages_are_named(
    package: str, extra: str, file: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from tilewright.errors import MissingDependencyError
    from tilewright.importers import import_model

    (tmp_path / file).touch()
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(MissingDependencyError, match=rf"pip install 'tilewright\[{extra}\]'"):
        import_model(tmp_path / file)


def test_two_ranges_of_one_name() -> None:
    with pytest.raises(ImportModelError, match="'n' has two ranges: 1..4 and 1..5"):
        parse_dynamic_shapes({"x": {0: ("n", 1, 4)}, "y": {0: ("n", 1, 5)}})
    with pytest.raises(ImportModelError, match=r"dynamic_shapes\['x'\]\['n'\]: axes are given by number"):
        parse_dynamic_shapes({"x": {"n": (1, 4)}})


def test_derived_sizes_are_taken_where_an_importer_knows_them() -> None:
    Dim = pytest.importorskip("torch").export.Dim
    tiles = Dim("tiles", min=2, max=8)
    given = {"x": {0: 8 * tiles, 1: tiles}}
    assert parse_dynamic_shapes(given, derived=True)["x"][0] == Dimension("tiles", 16, 64, derived=True)
    free = {"x": {0: 8 * Dim("free", min=1), 1: Dim("n")}}
    assert parse_dynamic_shapes(free, derived=True)["x"] == {0: Dimension("free", 8, derived=True), 1: Dimension("n")}
    with pytest.raises(ImportModelError, match=r"dynamic_shapes\['x'\]\[0\] .* give the axis a size of its own"):
        parse_dynamic_shapes(given)


def test_sympy_sizes(rng: np.random.Generator) -> None:
    """Every function that PyTorch writes sizes with, at random values of the symbols."""
    pytest.importorskip("torch")
    import sympy
    from torch.utils._sympy import functions

    from tilewright.importers.report import Unsupported
    from tilewright.importers.torch_symbols import SymbolTable

    s, t = sympy.Symbol("s", integer=True, positive=True), sympy.Symbol("t", integer=True, positive=True)
    table = SymbolTable(GraphBuilder("g"), {})
    for symbol in (s, t):
        table.name(symbol, None, str(symbol))
    expressions = [
        3 * s * t + s**2 - 4,
        functions.FloorDiv(s * t + 1, 3),
        functions.Mod(s + t, 5),
        functions.PythonMod(s, 4),
        functions.ModularIndexing(s, 2, 7),
        functions.CleanDiv(4 * s, 2),
        functions.Max(s, t, 3),
        functions.Min(s, t + 1),
        s * (s + 1) / 2,
    ]
    for expression in expressions:
        for _ in range(5):
            values = {"s": int(rng.integers(1, 50)), "t": int(rng.integers(1, 50))}
            want = expression.subs({s: values["s"], t: values["t"]})
            assert evaluate(table.size(expression), values) == int(want), expression
    with pytest.raises(Unsupported, match="depends on the data"):
        table.size(sympy.Symbol("u0"))


def test_onnx_shape_arithmetic() -> None:
    """Shape, Gather, Slice, arithmetic, Where, Concat, Reshape, Expand, ConstantOfShape, Range, Split on sizes."""
    pytest.importorskip("onnx")
    import onnx.parser

    from tilewright.importers import import_model

    model = onnx.parser.parse_model("""
        <ir_version: 10, opset_import: ["" : 20]>
        chain (float[batch, sequence, 6] x) => (float[a, b] flat, float[c, d] ones, int64[e] line, float[f, g] first) {
            shape = Shape(x)
            zero = Constant<value_int: int = 0>()
            one = Constant<value_int: int = 1>()
            two = Constant<value_ints: ints = [2]>()
            zeros = Constant<value_ints: ints = [0]>()
            minus = Constant<value_ints: ints = [-1]>()
            batch = Gather<axis: int = 0>(shape, zero)
            sequence = Gather<axis: int = 0>(shape, one)
            product = Mul(batch, sequence)
            rows = Unsqueeze(product, zeros)
            target = Concat<axis: int = 0>(rows, minus)
            flat = Reshape(x, target)
            part = Slice(shape, zeros, two)
            positive = Greater(part, zeros)
            chosen = Where(positive, part, minus)
            ones = ConstantOfShape<value: tensor = float[1] {1}>(chosen)
            line = Range(zero, product, one)
            half = Shape<start: int = 2, end: int = 3>(x)
            halved = Div(half, two)
            sizes = Concat<axis: int = 0>(halved, halved)
            left, right = Split<axis: int = 2>(x, sizes)
            cast = Cast<to: int = 7>(zero)
            seen = Gather<axis: int = 1>(left, cast)
            first = Identity(seen)
        }
    """)
    graph = import_model(model, dynamic_shapes={"x": {0: ("batch", 1, 8)}})
    assert {symbol.name: symbol.high for symbol in graph.symbols.values()}["batch"] == 8
    x = np.arange(2 * 5 * 6, dtype=np.float32).reshape(2, 5, 6)
    found = reference.run(graph, {"x": x})
    np.testing.assert_array_equal(found["flat"], x.reshape(10, 6))
    np.testing.assert_array_equal(found["ones"], np.ones((2, 5)))
    np.testing.assert_array_equal(found["line"], np.arange(10))
    np.testing.assert_array_equal(found["first"], x[:, 0, :3])


@pytest.mark.parametrize(
    ("equation", "shapes"),
    [
        ("bhqd,bhkd->bhqk", [(2, 3, 4, 5), (2, 3, 6, 5)]),
        ("ij,jk", [(2, 3), (3, 4)]),
        ("...ij,...jk->...ik", [(2, 3, 4), (2, 4, 5)]),
        ("ij->ji", [(2, 3)]),
        ("ijk->", [(2, 3, 4)]),
        ("ij,kl->ijkl", [(2, 3), (4, 5)]),
        ("bi,bi->b", [(2, 3), (2, 3)]),
        ("ij,jk,kl->il", [(2, 3), (3, 4), (4, 5)]),
        ("abc,cd->ad", [(2, 3, 4), (4, 5)]),
    ],
)
def test_einsum(equation: str, shapes: list[tuple[int, ...]], rng: np.random.Generator) -> None:
    from tilewright.dtypes import float64
    from tilewright.importers.einsum import einsum
    from tilewright.importers.emitter import Emitter

    builder = GraphBuilder("einsum")
    operands = [builder.input(f"x{index}", float64, shape) for index, shape in enumerate(shapes)]
    builder.output(einsum(Emitter(builder), equation, operands), "y")
    arrays = [rng.standard_normal(shape) for shape in shapes]
    found = reference.run(builder.finish(), {f"x{index}": data for index, data in enumerate(arrays)})
    np.testing.assert_allclose(found["y"], np.einsum(equation, *arrays), rtol=1e-12, atol=1e-12)


def test_ranges_from_zero_are_not_changed_silently(caplog: pytest.LogCaptureFixture) -> None:
    with pytest.raises(ShapeError, match="begin the range of 'batch' at 1"):
        parse_dynamic_shapes({"x": {0: ("batch", 0, 8)}})
    assert parse_dynamic_shapes({"x": {0: ("batch", 0, 0)}}) == {"x": {0: 0}}
    with caplog.at_level("INFO", "tilewright"):
        dimension = SimpleNamespace(__name__="batch", min=0, max=8)
        assert parse_dynamic_shapes({"x": {0: dimension}}) == {"x": {0: Dimension("batch", 1, 8)}}
    assert "batch: begins at 1, not at 0" in caplog.text
