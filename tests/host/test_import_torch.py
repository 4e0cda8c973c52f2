"""The PyTorch importer: inputs, outputs, dynamic shapes, mutations, element types, saved programs."""

from __future__ import annotations

import logging
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")

import sympy  # noqa: E402
from torch import nn  # noqa: E402
from torch.utils._sympy.functions import FloorDiv, Mod, ToFloat, TruncToInt  # noqa: E402
from torch.utils._sympy.value_ranges import ValueRanges  # noqa: E402

import tilewright  # noqa: E402
from tilewright import dtypes  # noqa: E402
from tilewright.errors import ImportModelError, InputError, ShapeError, UnsupportedOperationError  # noqa: E402
from tilewright.graph import reference  # noqa: E402
from tilewright.graph.build import GraphBuilder  # noqa: E402
from tilewright.importers import import_model  # noqa: E402
from tilewright.importers.report import Unsupported  # noqa: E402
from tilewright.importers.torch_symbols import SymbolTable  # noqa: E402
from tilewright.symbolic import evaluate  # noqa: E402


class Function(nn.Module):
    """A module of one function."""

    def __init__(self, function: Callable[..., Any]) -> None:
        super().__init__()
        self.function = function

    def forward(self, *arguments: Any, **named: Any) -> Any:
        return self.function(*arguments, **named)


class Affine(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 3)

    def forward(self, x: torch.Tensor, scale: torch.Tensor) -> dict[str, torch.Tensor]:
        y = self.linear(x) * scale
        return {"scaled": y, "size": torch.tensor(x.shape[0])}


def test_named_outputs_and_keyword_inputs() -> None:
    module = Affine().eval()
    x, scale = torch.randn(2, 4), torch.randn(3)
    graph = import_model(module, {"x": x, "scale": scale}, {"x": {0: "rows"}})
    assert [value.name for value in graph.inputs] == ["x", "scale"]
    assert graph.output_names == ["scaled", "size"]
    found = reference.run(graph, {"x": np.ones((5, 4), np.float32), "scale": scale.numpy()})
    assert found["size"] == 5


@pytest.mark.parametrize(
    "dynamic_shapes",
    [
        {"x": {0: ("rows", 1, 9)}},
        {"x": [("rows", 1, 9), None]},
        {"x": {0: torch.export.Dim("rows", min=1, max=9)}, "scale": None},
        ({0: torch.export.Dim("rows", min=1, max=9)}, None),
    ],
    ids=["axes", "list", "torch-dict", "torch-tuple"],
)
def test_dynamic_shapes_in_every_form(dynamic_shapes: Any) -> None:
    graph = import_model(Affine().eval(), (torch.randn(2, 4), torch.randn(3)), dynamic_shapes)
    (symbol,) = graph.symbols.values()
    assert (symbol.name, symbol.low, symbol.high) == ("rows", 1, 9)
    assert str(graph.inputs[0].shape[0]) == "rows"


def test_nested_inputs_are_named_by_path() -> None:
    def forward(pair: Any, extra: Any) -> torch.Tensor:
        return pair[0] + pair[1] * extra["gain"]

    class Nested(nn.Module):
        def forward(self, pair: Any, extra: Any) -> torch.Tensor:
            return forward(pair, extra)

    example = ((torch.randn(2, 3), torch.randn(2, 3)), {"gain": torch.randn(3)})
    shapes = {"pair_0": {0: "n"}, "pair_1": {0: "n"}}
    graph = import_model(Nested(), example, shapes)
    assert [value.name for value in graph.inputs] == ["pair_0", "pair_1", "extra_gain"]
    assert str(graph.inputs[1].shape[0]) == "n"


@pytest.mark.parametrize("mode, padding", [("sum", None), ("sum", 2), ("mean", None), ("mean", 2), ("max", None)])
def test_bags_of_equal_size(mode: str, padding: int | None) -> None:
    bag = nn.EmbeddingBag(9, 4, mode=mode, padding_idx=padding, dtype=torch.float64)
    weights = torch.rand(5, 3, dtype=torch.float64) if mode == "sum" else None
    module = Function(lambda x, *rest: bag(x, None, *rest)).eval()
    module.bag = bag
    arguments = (torch.randint(0, 9, (5, 3)), *([] if weights is None else [weights]))
    dynamic = None if weights is not None else {"arguments_0": {0: ("bags", 1, 9)}}
    graph = import_model(module, arguments, dynamic)
    found = reference.run(graph, dict(zip((i.name for i in graph.inputs), map(np.asarray, arguments), strict=True)))
    with torch.no_grad():
        np.testing.assert_allclose(found[graph.output_names[0]], module(*arguments).numpy(), rtol=1e-9, atol=1e-12)


def test_names_keep_their_capital_letters() -> None:
    """Export makes small letters of all."""

    class Capitals(nn.Module):
        def forward(self, X: torch.Tensor, x: torch.Tensor, P: torch.Tensor, Extra: dict[str, Any]) -> torch.Tensor:
            return X + x * P + Extra["Gain"]

    example = {"X": torch.randn(3, 2), "x": torch.randn(2), "P": torch.randn(3, 2), "Extra": {"Gain": torch.randn(2)}}
    graph = import_model(Capitals().eval(), example, {"X": {0: ("Rows", 1, 9)}, "P": {0: ("Rows", 1, 9)}})
    assert [value.name for value in graph.inputs] == ["X", "x", "P", "Extra_Gain"]
    assert str(graph.inputs[2].shape[0]) == "Rows"


def test_sizes_in_arithmetic() -> None:
    """Products, quotients and remainders of dynamic sizes stay symbolic."""

    def forward(x: torch.Tensor) -> torch.Tensor:
        rows, columns = x.shape
        flat = x.reshape(rows * columns)
        return flat[: (rows * columns) // 2] * rows + columns % 3

    graph = import_model(Function(forward), (torch.randn(4, 6),), {"arguments_0": {0: ("r", 2, 64), 1: ("c", 2, 64)}})
    x = np.random.default_rng(0).standard_normal((7, 8)).astype(np.float32)
    (found,) = reference.run(graph, {"arguments_0": x}).values()
    np.testing.assert_allclose(found, x.reshape(-1)[:28] * 7 + 2, rtol=1e-6)


class Cache(nn.Module):
    """State in a buffer, written in several ways."""

    def __init__(self, how: str) -> None:
        super().__init__()
        self.how = how
        self.register_buffer("state", torch.zeros(2, 6, 3))

    def forward(self, new: torch.Tensor, place: torch.Tensor) -> torch.Tensor:
        if self.how == "index_copy":
            self.state.index_copy_(1, place, new)
        elif self.how == "index_put":
            self.state[:, place] = new
        elif self.how == "slice":
            self.state[:, 2:4] = new
        elif self.how == "copy":
            self.state[:, 1:3].copy_(new)
        else:
            self.state.add_(1.0)
        return self.state.sum(1)


@pytest.mark.parametrize("how", ["index_copy", "index_put", "slice", "copy", "add"])
def test_mutated_buffers_become_mutated_inputs(how: str) -> None:
    """A buffer that the model changes is an input with its name, after the arguments; the caller keeps its memory."""
    module = Cache(how)
    new, place = torch.randn(2, 2, 3), torch.tensor([4, 1])
    graph = import_model(module, (new, place))
    assert [value.name for value in graph.inputs] == ["new", "place", "state"]
    state = torch.randn(2, 6, 3)
    found = reference.run(graph, {"state": state.numpy(), "new": new.numpy(), "place": place.numpy()})
    module.state = state.clone()
    with torch.no_grad():
        expected = module(new, place)
    np.testing.assert_allclose(found["state"], module.state.numpy(), rtol=1e-6)
    np.testing.assert_allclose(found[graph.output_names[0]], expected.numpy(), rtol=1e-5, atol=1e-5)


def test_buffers_that_an_object_holds_too_are_written() -> None:
    """As a static cache: the module registers the tensors of an object, and writes them by the object."""

    class Kept(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.kept = SimpleNamespace(state=torch.zeros(2, 6, 3))
            self.register_buffer("state", self.kept.state, persistent=False)

        def forward(self, new: torch.Tensor, place: torch.Tensor) -> torch.Tensor:
            self.kept.state.index_copy_(1, place, new)
            return self.kept.state.sum(1)

    new, place = torch.randn(2, 2, 3), torch.tensor([4, 1])
    graph = import_model(Kept(), (new, place))
    assert [value.name for value in graph.inputs] == ["new", "place", "state"]
    state = torch.randn(2, 6, 3)
    found = reference.run(graph, {"state": state.numpy(), "new": new.numpy(), "place": place.numpy()})
    expected = state.index_copy(1, place, new)
    np.testing.assert_allclose(found["state"], expected.numpy(), rtol=1e-6)
    np.testing.assert_allclose(found[graph.output_names[0]], expected.sum(1).numpy(), rtol=1e-5, atol=1e-5)


def test_bfloat16_parameters_share_memory() -> None:
    module = nn.Linear(4, 3, bias=False).to(torch.bfloat16)
    graph = import_model(module, (torch.randn(2, 4).to(torch.bfloat16),))
    ((value, data),) = graph.constants.items()
    assert value.dtype == dtypes.bfloat16
    assert np.shares_memory(data.view(np.int16), module.weight.detach().view(torch.int16).numpy())


def test_tied_parameters_are_one_constant() -> None:
    class Tied(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.embed = nn.Embedding(7, 4)
            self.head = nn.Linear(4, 7, bias=False)
            self.head.weight = self.embed.weight

        def forward(self, ids: torch.Tensor) -> torch.Tensor:
            return self.head(self.embed(ids))

    graph = import_model(Tied(), (torch.tensor([1, 2]),))
    assert len(graph.constants) == 1


def test_saved_program(tmp_path: Path) -> None:
    module = Affine().eval()
    rows = torch.export.Dim("rows", min=1, max=9)
    program = torch.export.export(module, (torch.randn(2, 4), torch.randn(3)), dynamic_shapes=({0: rows}, None))
    path = tmp_path / "affine.pt2"
    torch.export.save(program, path)
    named = import_model(path, dynamic_shapes={"x": {0: ("rows", 1, 5)}})
    assert [(s.name, s.low, s.high) for s in named.symbols.values()] == [("rows", 1, 5)]
    assert named.name == "affine"
    plain = import_model(program)
    assert [(s.name, s.low, s.high) for s in plain.symbols.values()] == [("x_0", 1, 9)]


def test_training_mode_is_reported_and_kept(caplog: pytest.LogCaptureFixture) -> None:
    module = nn.Sequential(nn.Linear(4, 4), nn.Dropout(0.5)).train()
    with caplog.at_level(logging.WARNING, logger="tilewright"):
        graph = import_model(module, (torch.randn(2, 4),))
    assert "training mode" in caplog.text
    assert all(child.training for child in module.modules())
    assert "dropout" not in {node.op for node in graph.nodes}


def test_outputs_that_are_inputs_or_repeated() -> None:
    graph = import_model(Function(lambda x: (x, x + 1, x + 0)), (torch.randn(3),))
    x = np.array([1.0, 2.0, 3.0], np.float32)
    found = reference.run(graph, {graph.inputs[0].name: x})
    np.testing.assert_array_equal(found["output_0"], x)
    np.testing.assert_array_equal(found["output_1"], x + 1)


def test_every_unsupported_operation_is_listed(golden: Callable[..., None]) -> None:
    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = Function(lambda x: torch.geqrf(x)[0].sum(-1))
            self.linear = nn.Linear(4, 4)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            y = self.inner(self.linear(x))
            z = torch.nonzero(y)
            large = torch.linalg.lu_factor(x.repeat(20, 10))[0]
            return y.sum() + z.sum() + torch.linalg.ldl_factor(x @ x.T)[0].sum() + large

    with pytest.raises(UnsupportedOperationError) as error:
        import_model(Model().eval(), (torch.randn(2, 4),))
    golden(_without_lines(str(error.value)))


def _without_lines(text: str) -> str:
    """Line numbers of this file are not part of the text that is kept."""
    import re

    return re.sub(r"(\.py):\d+", r"\1:LINE", text) + "\n"


@pytest.mark.parametrize(
    ("function", "why"),
    [
        (lambda x: torch.poisson(x), "random numbers"),
        (lambda x: torch.complex(x, x).log1p().real, "complex numbers in this operation"),
    ],
)
def test_what_no_graph_can_express_says_why(function: Any, why: str) -> None:
    with pytest.raises(UnsupportedOperationError, match=f"why:    {why}") as error:
        import_model(Function(function), (torch.randn(2, 4),))
    assert "add a rule" not in str(error.value) and "eval_with_key" not in str(error.value)


def test_branches_that_depend_on_data() -> None:
    """Both branches of torch.cond are computed; a NaN of the other one does no harm."""
    linear = nn.Linear(4, 4).eval()

    class Branches(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear = linear

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return torch.cond(x.sum() > 0, lambda x: self.linear(x), lambda x: x.log().neg(), (x,)) + 1

    graph = import_model(Branches().eval(), (torch.randn(2, 4),))
    for x in (torch.rand(2, 4), -torch.rand(2, 4)):
        (found,) = reference.run(graph, {graph.inputs[0].name: x.numpy()}).values()
        np.testing.assert_allclose(found, Branches()(x).detach().numpy(), rtol=1e-5, atol=1e-6)


def test_comparisons_of_masks_inside_transformers() -> None:
    """nn.Transformer asks whether its mask is causal, which an export cannot know: the mask says it all."""

    class Decoder(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.TransformerDecoder(nn.TransformerDecoderLayer(8, 2, 8, batch_first=True), 1)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            mask = nn.Transformer.generate_square_subsequent_mask(x.shape[1])
            return self.layer(x, x, tgt_mask=mask)

    module, x = Decoder().eval(), torch.randn(2, 3, 8)
    graph = import_model(module, (x,), {"x": {0: ("batch", 1, 8)}})
    (found,) = reference.run(graph, {"x": x.numpy()}).values()
    np.testing.assert_allclose(found, module(x).detach().numpy(), rtol=1e-4, atol=1e-5)


def test_conversions_that_change_nothing() -> None:
    """A module that converts a part of its own to the element type that it has."""

    class Router(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.gate = nn.Linear(4, 2)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            self.gate = self.gate.to(x.dtype)
            return self.gate(x)

    module, x = Router().eval(), torch.randn(3, 4)
    graph = import_model(module, (x,))
    (found,) = reference.run(graph, {"x": x.numpy()}).values()
    np.testing.assert_allclose(found, module(x).detach().numpy(), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("bias", [False, True])
def test_dynamic_quantized_layers(bias: bool) -> None:
    """Activations are rounded to 7 bits by the range of each call, weights are 8-bit numbers: exact products."""
    from torch.ao.quantization import quantize_dynamic

    module = nn.Sequential(nn.Linear(8, 6, bias=bias), nn.ReLU(), nn.Linear(6, 3)).eval()
    module = quantize_dynamic(module, {nn.Linear}, dtype=torch.qint8)
    graph = import_model(module, (torch.randn(4, 8),))
    assert type(module[0]).__module__.startswith("torch.ao")
    differences = []
    for _ in range(8):
        x = torch.randn(4, 8)
        (found,) = reference.run(graph, {graph.inputs[0].name: x.numpy()}).values()
        differences.append(np.abs(found - module(x).numpy()).max() / np.abs(found).max())
    # A number on the border of two steps may be rounded to either: then by one of 127 steps, in one of a few terms.
    assert np.median(differences) < 1e-5 and max(differences) < 0.05


def test_operations_without_a_line_of_the_user() -> None:
    """Export wraps what runs under autocast in a function of its own, whose code has no file."""

    def forward(x: torch.Tensor) -> torch.Tensor:
        with torch.autocast("cpu", torch.bfloat16):
            y = x @ x
        return y.float() + 1

    graph = import_model(Function(forward).eval(), (torch.randn(4, 4),))
    assert any(node.op == "matmul" for node in graph.nodes)
    assert not any("eval_with_key" in (node.source or "") for node in graph.nodes)


def test_composite_operators_of_a_library_that_came_later() -> None:
    """They are decomposed as PyTorch's own are, though a model was imported before they were registered."""
    import_model(nn.Linear(4, 3).eval(), (torch.randn(2, 4),))
    library = torch.library.Library("tilewright_later", "DEF")
    library.define("doubled(Tensor x) -> Tensor")
    library.impl("doubled", lambda x: x * 2, "CompositeImplicitAutograd")
    graph = import_model(Function(torch.ops.tilewright_later.doubled).eval(), (torch.randn(3),))
    assert [node.op for node in graph.nodes] == ["multiply"]


def test_numbers_among_the_examples_are_reported() -> None:
    class Scaled(nn.Module):
        def forward(self, x: torch.Tensor, scale: float) -> torch.Tensor:
            return x * scale

    graph = import_model(Scaled().eval(), (torch.randn(2), 2.5))
    assert "input 'scale' is always 2.5, as in the example" in graph.remarks


def test_missing_example_and_unexportable_model() -> None:
    with pytest.raises(ImportModelError, match="needs example_inputs"):
        import_model(nn.Linear(2, 2))

    def leave(x: torch.Tensor) -> torch.Tensor:
        return torch.from_numpy(x.numpy() + 1)

    with pytest.raises(ImportModelError, match="PyTorch cannot export Function, at test_import_torch.py:"):
        import_model(Function(leave), (torch.randn(2),))
    with pytest.raises(InputError, match="missing a required argument: 'y'"):
        import_model(lambda x, y: x + y, (torch.randn(2),))


def test_another_shape_in_place_names_the_line() -> None:
    def turn(x: torch.Tensor) -> torch.Tensor:
        x.transpose_(0, 1)
        return x.add_(1).mul_(2)

    with pytest.raises(UnsupportedOperationError, match=r"(?s)test_import_torch.py:\d+.*'x' another shape: \(4, 3\)"):
        import_model(turn, (torch.randn(3, 4),))


def test_sizes_that_are_multiples() -> None:
    """What torch.export calls derived dimensions: as a U-Net has, whose images are halved and doubled."""

    class Skip(nn.Module):
        def forward(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
            return torch.cat([x, y[:, None].expand(-1, 4, -1).flatten(0, 1)], 1)[1:]

    tiles, module = torch.export.Dim("tiles", min=2, max=16), Skip().eval()
    example = torch.randn(12, 5), torch.randn(3, 2)
    engine = tilewright.compile(module, example, {"x": {0: 4 * tiles}, "y": {0: tiles}})
    for count in (2, 7, 16):
        x, y = torch.randn(4 * count, 5), torch.randn(count, 2)
        torch.testing.assert_close(engine(x, y), module(x, y))
    with pytest.raises(ShapeError, match="dimension 0 is 29, the engine takes 4\\*tiles with tiles = 7"):
        engine(torch.randn(29, 5), torch.randn(7, 2))
    alone = tilewright.compile(nn.ReLU().eval(), (torch.randn(12, 5),), ({0: 4 * tiles},))
    assert "4*tiles" in repr(alone)
    with pytest.raises(ShapeError, match=r"dimension 0 is 68, which makes tiles 17, outside the engine's range"):
        alone(torch.randn(68, 5))


@pytest.mark.parametrize(("function", "provable"), [(torch.relu, True), (lambda x: x.reshape(-1, 2, 4), False)])
def test_conditions_that_pytorch_cannot_prove(monkeypatch: pytest.MonkeyPatch, function: Any, provable: bool) -> None:
    """Export is asked for assertions in place of guards, which are proved here, or the first error holds."""
    export = torch.export.export

    def refuse(*arguments: Any, **options: Any) -> Any:
        if "prefer_deferred_runtime_asserts_over_guards" not in options:
            raise ValueError("Constraints violated (n)! min(32*n, 64*n) == 32*n")
        return export(*arguments, **options)

    monkeypatch.setattr(torch.export, "export", refuse)
    module, shapes = Function(function).eval(), (({0: torch.export.Dim("n", min=1, max=64)},),)
    if provable:
        (x,) = import_model(module, (torch.randn(6, 4),), shapes).inputs
        assert str(x.shape[0]) not in ("4", "6")
    else:
        with pytest.raises(ImportModelError, match="Constraints violated"):
            import_model(module, (torch.randn(6, 4),), shapes)


@pytest.mark.parametrize(
    ("condition", "holds"),
    [
        ("Eq(Min(32*s, 64*s), 32*s)", True),
        ("Eq(FloorDiv(4*s, 4), s)", True),
        ("Eq(Mod(s, 2), 0)", False),
        ("s <= 64", True),
        ("s < 64", False),
        ("Ne(s, 65)", True),
        ("Ne(s, 64)", False),
        ("s + t > 0", False),
    ],
)
def test_conditions_on_sizes(condition: str, holds: bool) -> None:
    functions = {"FloorDiv": FloorDiv, "Mod": Mod}
    s = sympy.Symbol("s", integer=True, positive=True)
    table = SymbolTable(GraphBuilder("sizes"), {s: ValueRanges(1, 64)})
    table.name(s, None, "s")
    relation = sympy.sympify(condition, {**functions, "s": s}, evaluate=False)
    assert table.always(relation) == holds


@pytest.mark.parametrize("factor", [0.5, 0.25, 3.0])
def test_sizes_cut_to_integers(factor: float) -> None:
    """``int(factor * (s - 10))`` rounds towards zero, also below zero."""
    s = sympy.Symbol("s", integer=True, positive=True)
    table = SymbolTable(GraphBuilder("sizes"), {s: ValueRanges(1, 64)})
    table.name(s, None, "s")
    size = table.size(TruncToInt(sympy.Float(factor) * ToFloat(s - 10)))
    assert [evaluate(size, {"s": n}) for n in range(1, 20)] == [int(factor * (n - 10)) for n in range(1, 20)]


def test_conditions_on_floats_are_not_dropped() -> None:
    """PyTorch can take ``int(n * 0.5)`` for what it is in the example, and asserts nothing of it."""
    shapes = {"x": {0: ("n", 3, 20)}}
    x = torch.randn(12, 2)
    graph = import_model(lambda x: x * int((x.shape[0] - 10) * 0.5), (x,), shapes)
    for n in (4, 7, 12, 17):
        (found,) = reference.run(graph, {"x": np.ones((n, 2), np.float32)}).values()
        np.testing.assert_array_equal(found, np.full((n, 2), int((n - 10) * 0.5), np.float32))
    graph = import_model(lambda x: x * 2 if x.shape[0] * 0.5 > 4.2 else x, (x,), shapes)
    for n in (3, 8, 9, 20):
        (found,) = reference.run(graph, {"x": np.ones((n, 2), np.float32)}).values()
        np.testing.assert_array_equal(found, np.full((n, 2), 2 if n > 8 else 1, np.float32))


@pytest.mark.parametrize(("low", "high"), [(3, 7), (9, 15), (73, 90)])
def test_ranges_without_a_size_of_the_exported_program(low: int, high: int) -> None:
    tiles = torch.export.Dim("tiles", min=1, max=9)
    program = torch.export.export(nn.ReLU(), (torch.randn(16, 2),), dynamic_shapes=({0: 8 * tiles},))
    (x,) = import_model(program, dynamic_shapes={"input": {0: ("rows", low - 2, high + 1)}}).inputs
    assert str(x.shape[0]) == "8*rows"
    with pytest.raises(ImportModelError, match=rf"its range {low}\.\.{high} has none of the sizes .* 8\.\.72\)"):
        import_model(program, dynamic_shapes={"input": {0: ("rows", low, high)}})


def test_a_program_that_pytorch_cannot_decompose(monkeypatch: pytest.MonkeyPatch) -> None:
    program = torch.export.export(nn.Linear(2, 2), (torch.randn(1, 2),))

    def fail(*arguments: Any) -> Any:
        raise AssertionError("expected sympy.Symbol")

    monkeypatch.setattr(type(program), "run_decompositions", fail)
    with pytest.raises(ImportModelError, match=r"cannot decompose the exported program .*expected sympy\.Symbol"):
        import_model(program)


def test_unknown_names_in_dynamic_shapes() -> None:
    with pytest.raises(ImportModelError, match="an input 'y' that the model does not have"):
        import_model(Affine().eval(), (torch.randn(2, 4), torch.randn(3)), {"y": {0: "n"}})
    with pytest.raises(ImportModelError, match="names axis 5"):
        import_model(Affine().eval(), (torch.randn(2, 4), torch.randn(3)), {"x": {5: "n"}})


def test_an_element_type_without_a_meaning_here_names_the_input() -> None:
    class Identity(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x

    with pytest.raises(ImportModelError, match=r"input 'x': the element type torch\.float8_e8m0fnu"):
        import_model(Identity().eval(), (torch.zeros(2).to(torch.float8_e8m0fnu),))


def test_complex_buffers_without_a_use_do_no_harm() -> None:
    module = Affine()
    module.register_buffer("spectrum", torch.ones(3, dtype=torch.complex64))
    import_model(module.eval(), (torch.randn(2, 4), torch.randn(3)))


def test_example_inputs_may_be_one_tensor_or_the_modules_own() -> None:
    class Combine(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = nn.Parameter(torch.full((3,), 5.0))

        def forward(self, a: torch.Tensor, b: torch.Tensor, c: torch.Tensor) -> torch.Tensor:
            return a + 10 * b + 100 * c * self.weight

    module = Combine().eval()
    once = torch.ones(3)
    graph = import_model(module, (once, once, module.weight))
    inputs = {name: np.full(3, value, np.float32) for name, value in (("a", 1), ("b", 2), ("c", 3))}
    (found,) = reference.run(graph, inputs).values()
    np.testing.assert_array_equal(found, np.full(3, 1521.0))


def test_example_inputs_may_be_any_numpy_array() -> None:
    graph = import_model(Function(lambda x: x + 1).eval(), (np.ones((4, 3), np.float32)[::-1, ::2],))
    assert list(graph.inputs[0].shape) == [4, 2]


class _Doubled(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("calls", torch.zeros(1))

    def forward(self, input: torch.Tensor) -> Any:
        self.calls.add_(1.0)
        return input * 2, 5, None


def test_examples_of_size_one_stay_dynamic_and_what_is_left_out_is_reported(caplog: pytest.LogCaptureFixture) -> None:
    graph = import_model(_Doubled().eval(), (torch.randn(1, 4),), {"input": {0: ("b", 1, 4)}})
    assert [str(size) for size in graph.inputs[0].shape] == ["b", "4"]
    assert (graph.symbols["b"].low, graph.symbols["b"].high) == (1, 4)
    assert any("'calls'" in remark for remark in graph.remarks)
    assert [remark for remark in graph.remarks if "always 5" in remark or "always None" in remark]
    assert "always 5" in caplog.text


def test_examples_outside_their_range_are_reported() -> None:
    with pytest.raises(ImportModelError, match=r"size 9 along axis 0, outside the range 1\.\.4 of 'b'"):
        import_model(_Doubled().eval(), (torch.randn(9, 4),), {"input": {0: ("b", 1, 4)}})


def test_files_that_are_no_exports(tmp_path: Path) -> None:
    (tmp_path / "text.pt2").write_text("hello")
    torch.save({"weight": torch.zeros(2)}, tmp_path / "weights.pt2")
    for name in ("text.pt2", "weights.pt2"):
        with pytest.raises(ImportModelError, match=r"not a torch\.export file"):
            import_model(tmp_path / name)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.float16, torch.bfloat16])
def test_hard_activations_are_exact_at_their_ends(dtype: torch.dtype) -> None:
    class Hard(nn.Module):
        def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
            return nn.functional.hardsigmoid(x), nn.functional.hardswish(x)

    x = torch.tensor([-9.0, -3.0, 0.0, 3.0, 9.0], dtype=dtype)
    gate, product = tilewright.compile(Hard().eval(), (x,))(x)
    assert gate.tolist() == [0.0, 0.0, 0.5, 1.0, 1.0] and product.tolist() == [0.0, 0.0, 0.0, 3.0, 9.0]


def test_sinh_in_float64_where_the_smaller_power_still_counts() -> None:
    class Sinh(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return torch.sinh(x)

    x = torch.linspace(-40, 40, 999, dtype=torch.float64)
    result = torch.as_tensor(tilewright.compile(Sinh().eval(), (x,))(x))
    np.testing.assert_allclose(result, torch.sinh(x), rtol=32 * torch.finfo(torch.float64).eps)


def test_a_text_is_no_size(tmp_path: Path) -> None:
    """SymPy would run it as Python."""
    with pytest.raises(Unsupported, match="a str"):
        SymbolTable(GraphBuilder("sizes"), {}).size(f"open({str(tmp_path / 'made')!r}, 'w').close()")
    assert not (tmp_path / "made").exists()


@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("options", [{"proj_size": 2}, {"bidirectional": True, "num_layers": 2}], ids=str)
def test_last_states_of_recurrent_layers(options: dict[str, Any], bias: bool) -> None:
    """For every batch: PyTorch 2.11 has an axis too many, or takes the batch to differ from 1."""
    layer = nn.LSTM(3, 4, batch_first=True, bias=bias, **options).eval()
    graph = import_model(layer, (torch.randn(3, 5, 3),), {"input": {0: ("batch", 1, 8)}})
    for batch in (1, 2, 8):
        x = torch.randn(batch, 5, 3)
        outputs, (hidden, memory) = layer(x)
        found = list(reference.run(graph, {"input": x.numpy()}).values())
        for mine, theirs in zip(found, (outputs, hidden, memory), strict=True):
            np.testing.assert_allclose(mine, theirs.detach(), rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("kind", ["LSTM", "GRU", "RNN"])
def test_recurrent_layers_of_any_length(kind: str) -> None:
    """One operation for each layer, whatever the length."""
    layer = getattr(nn, kind)(3, 4, 2, bidirectional=True).eval()
    graph = import_model(layer, (torch.randn(5, 2, 3),), {"input": {0: ("steps", 1, 500), 1: ("batch", 1, 8)}})
    assert [node.op for node in graph.nodes].count("recurrent") == 2
    x = torch.randn(11, 3, 3)
    found = list(reference.run(graph, {"input": x.numpy()}).values())
    for mine, theirs in zip(found, torch.utils._pytree.tree_leaves(layer(x)), strict=True):
        np.testing.assert_allclose(mine, theirs.detach(), rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("packed", [False, True])
def test_projected_states_of_any_length(packed: bool) -> None:
    """A loop over the steps for each direction, and for padded sequences."""

    class Layer(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.LSTM(3, 4, proj_size=2, bidirectional=True)

        def forward(self, x: torch.Tensor, lengths: torch.Tensor) -> Any:
            if not packed:
                return self.layer(x)
            rows, last = self.layer(nn.utils.rnn.pack_padded_sequence(x, lengths, enforce_sorted=False))
            return nn.utils.rnn.pad_packed_sequence(rows, total_length=x.shape[0])[0], last

    layer = Layer().eval()
    shapes = {"x": {0: ("steps", 1, 500), 1: ("batch", 1, 8)}, "lengths": {0: ("batch", 1, 8)}}
    graph = import_model(layer, (torch.randn(5, 3, 3), torch.tensor([5, 2, 4])), shapes)
    assert [node.op for node in graph.nodes].count("loop") == 2
    for steps, lengths in ((11, [3, 11]), (1, [1])):
        x, ends = torch.randn(steps, len(lengths), 3), torch.tensor(lengths)
        found = list(
            reference.run(graph, {v.name: {"x": x, "lengths": ends}[v.name].numpy() for v in graph.inputs}).values()
        )
        for mine, theirs in zip(found, torch.utils._pytree.tree_leaves(layer(x, ends)), strict=True):
            np.testing.assert_allclose(mine, theirs.detach(), rtol=1e-4, atol=1e-6)


def _written_in_steps(x: torch.Tensor) -> torch.Tensor:
    y = x.clone()
    y[:, ::2] *= 2
    return y


@pytest.mark.parametrize("function", [
    lambda x: nn.functional.interpolate(x[None, None], size=(3, x.shape[1] + 3)),
    lambda x: torch.pdist(x.mT),
    _written_in_steps,
])  # fmt: skip
def test_sizes_that_a_call_tells(function: Any) -> None:
    """Places of the nearest pixels, of pairs of rows, and writes to a part of a dimension; the example is a view."""
    graph = import_model(function, (torch.randn(1, 2, 6)[0],), {"x": {1: ("n", 1, 16)}})
    for size in (1, 2, 5, 16):
        x = torch.randn(2, size)
        found = next(iter(reference.run(graph, {"x": x.numpy()}).values()))
        np.testing.assert_allclose(found, function(x), rtol=1e-4, atol=1e-6)


class Halves(nn.Module):
    """Numbers of parts and of rows that PyTorch alone takes for conditions on the batch."""

    def forward(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        first, second = torch.chunk(torch.cat([x, y]), 2)
        return (first * second).reshape(len(x), 2, -1).sum(-1) + len(y)


def test_conditions_that_hold_for_all_sizes_are_none() -> None:
    shapes = {name: {0: ("n", 1, 8)} for name in "xy"}
    graph = import_model(Halves(), (torch.randn(3, 4), torch.randn(3, 4)), dynamic_shapes=shapes)
    for n in (1, 5, 8):
        x, y = torch.randn(n, 4), torch.randn(n, 4)
        (found,) = reference.run(graph, {"x": x.numpy(), "y": y.numpy()}).values()
        np.testing.assert_allclose(found, Halves()(x, y).numpy(), rtol=1e-5, atol=1e-5)


def padded_windows(x: torch.Tensor) -> torch.Tensor:
    """Means of windows of 4 x 4, the last ones filled up."""
    batch, height, width = x.shape
    x = nn.functional.pad(x, (0, -width % 4, 0, -height % 4))
    rows, columns = x.shape[1] // 4, x.shape[2] // 4
    windows = x.view(batch, rows, 4, columns, 4).permute(0, 1, 3, 2, 4).reshape(-1, 16)
    spread = (windows - windows.mean(1, keepdim=True)).view(batch, rows, columns, 4, 4).permute(0, 1, 3, 2, 4)
    return spread.reshape(batch, 4 * rows, 4 * columns)[:, :height, :width]


def smoothed(x: torch.Tensor) -> torch.Tensor:
    sizes = (x.shape[1] // 2, x.shape[2] // 3 + 1)
    resized = nn.functional.interpolate(x[None], sizes, mode="bicubic", antialias=True)
    pooled = nn.functional.max_pool2d(resized, 2, ceil_mode=True, return_indices=True)[1]
    return torch.linalg.matrix_norm(resized, ord=1).sum() + pooled.sum()


@pytest.mark.parametrize("function", [padded_windows, smoothed])
def test_sizes_that_computed_ones_are_1_for(function: Any) -> None:
    shapes = {"x": {0: ("batch", 1, 5), 1: ("h", 2, 20), 2: ("w", 2, 20)}}
    graph = import_model(function, (torch.randn(2, 7, 9),), shapes)
    assert not graph.remarks or function is smoothed  # PyTorch asserts where the pool's last windows begin
    for sizes in ((1, 2, 2), (5, 20, 20), (2, 4, 13)):
        x = torch.randn(sizes)
        (found,) = reference.run(graph, {"x": x.numpy()}).values()
        np.testing.assert_allclose(found, function(x).numpy(), rtol=1e-4, atol=1e-4)


def test_code_branches_on_what_an_operator_has_branched_on() -> None:
    def later(x: torch.Tensor) -> torch.Tensor:
        rest = x[3:]
        rest = rest + rest.sum(0, keepdim=True)  # asks whether there is one row, which changes nothing
        return rest * 100 if rest.shape[0] == 1 else rest

    graph = import_model(later, (torch.randn(8, 3),), {"x": {0: ("n", 4, 10)}})
    assert "if rest.shape[0] == 1" in graph.remarks[0]
    for n in (4, 5, 10):
        x = torch.randn(n, 3)
        (found,) = reference.run(graph, {"x": x.numpy()}).values()
        np.testing.assert_allclose(found, later(x).numpy(), rtol=1e-5, atol=1e-5)


def test_a_condition_that_size_1_breaks_is_checked_at_the_call() -> None:
    def ways(x: torch.Tensor) -> torch.Tensor:
        x = x * 2 if x.shape[0] * x.shape[0] <= 64 else x - 1  # for which PyTorch refuses the range
        return x + 100 if x.shape[0] > 1 else x - 7

    graph = import_model(ways, (torch.randn(4),), {"x": {0: "n"}})
    for n in (2, 8):
        x = torch.randn(n)
        (found,) = reference.run(graph, {"x": x.numpy()}).values()
        np.testing.assert_allclose(found, ways(x).numpy(), rtol=1e-6)
    assert "taken while n > 1)" in graph.remarks[1]
    with pytest.raises(ShapeError):
        reference.run(graph, {"x": np.ones(1, np.float32)})


def test_conditions_on_sizes_are_checked_at_the_call() -> None:
    def halves(x: torch.Tensor) -> torch.Tensor:
        if x.shape[0] % 2:
            x = x[1:]
        return x.reshape(2, -1).sum(0)

    engine = tilewright.compile(halves, (torch.randn(8),), {"x": {0: ("n", 1, 30)}}, effort=0)
    for n in (2, 7, 30):
        torch.testing.assert_close(engine(torch.ones(n)), torch.full((n // 2,), 2.0))
    engine = tilewright.compile(halves, (torch.randn(8),), {"x": {0: "n"}}, effort=0)
    torch.testing.assert_close(engine(torch.ones(2)), torch.full((1,), 2.0))
    with pytest.raises(
        ShapeError, match=r"n = 7.*if x\.shape\[0\] % 2: \(the example's path, taken while Eq\(Mod\(n, 2\)"
    ):
        engine(torch.ones(7))
    with pytest.raises(
        ImportModelError,
        match=r"no range of n: PyTorch takes it for 8, as in the example, at test_import_torch\.py:\d+: ",
    ):
        import_model(lambda x: [x * n for n in range(x.shape[0])][-1], (torch.ones(8),), {"x": {0: ("n", 1, 30)}})
