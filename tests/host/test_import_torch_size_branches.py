"""Code that goes different ways for different sizes: every size takes its own."""

from __future__ import annotations

import copy
from contextlib import nullcontext
from itertools import product
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils._pytree import tree_flatten

import tilewright
from tilewright.graph import reference
from tilewright.importers import import_model
from tilewright.importers.torch_mutations import written_copies
from tilewright.importers.torch_size_conditions import RangeBroken, stopping


def _padded_to_windows(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    rest = -x.shape[1] % 4
    if rest:
        x = nn.functional.pad(x, (0, rest))
    x = x.reshape(x.shape[0], -1, 4).softmax(-1)
    return x.mean(1) if y.shape[0] * 0.5 > 2.2 else x.mean(1) + y.sum()


def _running(x: torch.Tensor, cache: torch.Tensor) -> list[torch.Tensor]:
    total, found = torch.zeros_like(x[:, 0]), []
    for place in range(x.shape[1]):
        total = total * 0.5 + x[:, place]
        found.append(total)
    if x.shape[1] > 2:
        cache.add_(total)
    return [torch.stack(found[::2], 1), total]


def _apart(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    if x.shape[0] == 1:
        return x + 7
    return x[: y.shape[0]] - y if x.shape[0] > y.shape[0] else x - y[: x.shape[0]]


def _of_a_length(x: torch.Tensor) -> torch.Tensor:
    if x.shape[0] > 10:
        return x[:10] * 2
    return nn.functional.pad(x, (0, 10 - x.shape[0]), value=-1.0) if x.shape[0] < 10 else x


def _to_an_even_length(x: torch.Tensor) -> torch.Tensor:
    return x * 2 if x.shape[0] < 12 else x.new_ones((x.shape[0] + 1) // 2 * 2)


def _written_flat(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """With one row, the transposed matrix lies as it is needed, and what is written to is no copy."""
    y = x.sin()
    flat = y.t().contiguous().view(-1)
    flat.add_(1)
    y.transpose(0, 1).reshape(-1)[:2] = 5.0
    y.t().ravel().mul_(0.5)
    return y, flat


@pytest.mark.parametrize(
    ("function", "shapes", "dynamic"),
    [
        (_padded_to_windows, ((2, 8), (4,)), {"x": {0: ("b", 1, 3), 1: ("n", 1, 12)}, "y": {0: ("m", 1, 9)}}),
        (_running, ((2, 3), (2,)), {"x": {0: ("b", 1, 3), 1: ("n", 1, 6)}, "cache": {0: ("b", 1, 3)}}),
        (_apart, ((5,), (3,)), {"x": {0: ("n", 1, 6)}, "y": {0: ("m", 1, 6)}}),
        (_of_a_length, ((10,),), {"x": {0: ("n", 1, 40)}}),
        (_to_an_even_length, ((6,),), {"x": {0: ("n", 1, 1100)}}),
        (_written_flat, ((3, 4),), {"x": {0: ("n", 1, 5), 1: ("m", 1, 4)}}),
    ],
    ids=["windows", "loop", "lengths", "one length", "even length", "writes"],
)
def test_each_way_that_code_takes_for_some_sizes(function: Any, shapes: Any, dynamic: Any) -> None:
    graph = import_model(function, tuple(map(torch.ones, shapes)), dynamic)
    names = list(dynamic)
    assert any("paths are in the engine" in remark for remark in graph.remarks)
    ranges = {entry[0]: entry[1:] for axes in dynamic.values() for entry in axes.values()}
    generator = np.random.default_rng(3)
    for _ in range(12):
        sizes = {name: int(generator.integers(low, high, endpoint=True)) for name, (low, high) in ranges.items()}
        given = {
            name: torch.randn([sizes[dynamic[name][axis][0]] for axis in range(len(shape))])
            for name, shape in zip(names, shapes, strict=True)
        }
        arrays = {name: tensor.clone().numpy() for name, tensor in given.items()}
        found = reference.run(graph, arrays)
        wanted = torch.utils._pytree.tree_leaves(function(**given))
        for name, other in zip(graph.output_names, wanted, strict=True):
            np.testing.assert_allclose(found[name], other.numpy(), rtol=1e-4, atol=1e-5)
        for target in graph.mutations:
            np.testing.assert_allclose(found[target.name], given[target.name].numpy(), rtol=1e-5, atol=1e-6)


class _Windows(nn.Module):
    """Layers whose weights each way reads, and the count of windows."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(48, 48), nn.ReLU(), nn.Linear(48, 48))

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        rest = -x.shape[0] % 4
        if rest:
            x = nn.functional.pad(x, (0, 0, 0, rest), value=2.0)
        return self.layers(x.reshape(-1, 4, 48)).sum(1), torch.full((2,), x.shape[0] // 4)


def test_an_engine_keeps_each_weight_of_its_ways_once(tmp_path: Path) -> None:
    module = _Windows().eval()
    engine = tilewright.compile(module, (torch.ones(8, 48),), target="cpu", dynamic_shapes={"x": {0: ("n", 1, 16)}})
    assert any("2 paths are in the engine" in remark for remark in engine.remarks)
    own = sum(parameter.nbytes for parameter in module.parameters())
    assert own <= engine.weight_bytes < 1.5 * own  # columns are filled up to whole registers
    engine.save(tmp_path / "windows.engine")
    loaded = tilewright.load(tmp_path / "windows.engine")
    for size in (3, 8, 12, 15, 3, 8):
        x = torch.randn(size, 48)
        found, count = loaded(x.numpy())
        expected = module(x)
        np.testing.assert_allclose(found, expected[0].detach().numpy(), rtol=1e-4, atol=1e-4)
        np.testing.assert_array_equal(count, expected[1].numpy())
        count[...] = -1  # is the caller's own


def _with_numbers(x: torch.Tensor) -> tuple[Any, ...]:
    half = x.shape[0] // 2
    return (x * 2, {"half": half, "factor": 0.1}, 7) if half > 2 else (x + 1, {"half": 2 * half, "factor": 3.5}, 7)


def _with_a_number_at_one(x: torch.Tensor) -> tuple[torch.Tensor, int]:
    return x + 1, 5 if x.shape[0] == 1 else 6


@pytest.mark.parametrize("function", [_with_numbers, _with_a_number_at_one])
def test_python_numbers_among_the_results_are_those_of_the_way(function: Any) -> None:
    graph = import_model(function, (torch.ones(6),), {"x": {0: ("n", 1, 9)}})
    assert graph.results_of is not None
    for size in range(1, 10):
        x = torch.randn(size)
        found = reference.run(graph, {"x": x.numpy()})
        _, *numbers = graph.results_of([found[name] for name in graph.output_names])
        assert numbers == list(function(x)[1:])


def _squeezed(x: torch.Tensor) -> dict[str, Any]:
    return {"all": x.squeeze() * 2, "last": x.squeeze(1), "rows": x.shape[0]}


def _squeezed_parts(x: torch.Tensor) -> list[torch.Tensor]:
    """Sizes that follow from others, which may be 1."""
    return [x[1:].squeeze(0), x[::3].squeeze(), x.expand(2, -1, -1).flatten(0, 1).squeeze(0)]


def _chunks(x: torch.Tensor) -> list[torch.Tensor]:
    """Of a size of 1 the last part is the first."""
    return [x.chunk(2)[-1], *x.split(3)]


def _rows(x: torch.Tensor) -> list[torch.Tensor]:
    return [row * 2 for row in x] if x.shape[0] < 4 else [x.sum(0)]


def _of_other_kinds(x: torch.Tensor) -> Any:
    if x.shape[0] == 1:
        return x[0] > 0
    return (x + 1, x.amax()) if x.shape[0] > 4 else (x.double(), None)


def _of_like_names(x: torch.Tensor) -> dict[str, torch.Tensor]:
    """Two results of one name, and one whose name is that with a type."""
    return {"y": x.long(), "y_float32": x + 1} if x.shape[0] > 2 else {"y": x, "y_float32": x * 3}


class _OfObjects(nn.Module):
    """A buffer that is written, and an object whose parts are there for some sizes alone."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("calls", torch.zeros(2))

    def forward(self, x: torch.Tensor) -> SimpleNamespace:
        self.calls.add_(x.shape[0])
        return SimpleNamespace(logits=x.squeeze(0) + self.calls[0], sum=x.sum(0) if x.shape[0] > 3 else None)


@pytest.mark.parametrize(
    "function", [_squeezed, _squeezed_parts, _chunks, _rows, _of_other_kinds, _of_like_names, _OfObjects().eval()]
)
def test_results_that_differ_in_kind_are_those_of_the_way(function: Any) -> None:
    module = function if isinstance(function, nn.Module) else None
    shapes = {"x": {0: ("n", 1, 7), 1: ("m", 1, 3)}} if function is _squeezed else {"x": {0: ("n", 1, 7)}}
    graph = import_model(copy.deepcopy(function), (torch.ones(6, 3),), shapes)
    assert graph.results_of is not None
    for n, m in product(range(1, 8), (1, 3) if function is _squeezed else (3,)):
        x = torch.randn(n, m)
        kept = {} if module is None else {"calls": module.calls.numpy().copy()}
        found = reference.run(graph, {"x": x.numpy(), **kept})
        made = graph.results_of([found[name] for name in graph.output_names])
        expected = function(x)
        if module is not None:
            made, expected = vars(made), vars(expected)
        leaves, structure = tree_flatten(expected)
        own, own_structure = tree_flatten(made)
        assert structure == own_structure
        for leaf, wanted in zip(own, leaves, strict=True):
            if isinstance(wanted, torch.Tensor):
                assert leaf.dtype.kind == wanted.numpy().dtype.kind  # the reference computes in float64
                assert leaf.shape == wanted.shape
                np.testing.assert_allclose(leaf, wanted.numpy(), rtol=1e-5)
            else:
                assert leaf == wanted


def test_an_engine_file_of_several_kinds_gives_them_by_name(tmp_path: Path) -> None:
    engine = tilewright.compile(_squeezed, (torch.ones(6, 3),), {"x": {0: ("n", 1, 7), 1: ("m", 1, 3)}}, "cpu")
    assert any("'kind' is the number of the call's kind" in remark for remark in engine.remarks)
    engine.save(tmp_path / "squeezed.engine")
    loaded = tilewright.load(tmp_path / "squeezed.engine")
    for n, m in ((1, 1), (1, 3), (5, 1), (5, 3)):
        x = torch.randn(n, m)
        torch.testing.assert_close(engine(x)["all"], _squeezed(x)["all"])
        found = loaded.run({"x": x})
        torch.testing.assert_close(found["all"], x * 2)  # with all its dimensions
        assert found["last"].shape == (n, m)


@pytest.mark.parametrize(("low", "stops"), [(2, True), (6, False)])
def test_an_export_stops_where_pytorch_takes_one_way_of_a_range(low: int, stops: bool) -> None:
    reached = []

    class Branching(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            x = x * 2 if x.shape[0] > 5 else x + 1
            reached.append(x.shape[0])
            return x

    dynamic = ({0: torch.export.Dim("rows", min=low, max=20)},)
    with pytest.raises(RangeBroken) if stops else nullcontext(), stopping():
        torch.export.export(Branching(), (torch.ones(8, 3),), dynamic_shapes=dynamic, strict=False)
    assert bool(reached) != stops


@pytest.mark.parametrize("deferred", [False, True])
def test_conditions_on_two_sizes_stop_exports_that_assert_them(deferred: bool) -> None:
    class Compared(nn.Module):
        def forward(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
            return x.sum() if x.shape[0] > y.shape[0] else y.sum()

    dynamic = tuple({0: torch.export.Dim(name, min=2, max=20)} for name in ("first", "second"))
    given = (torch.ones(8), torch.ones(5))
    refused = RangeBroken if deferred else torch._dynamo.exc.UserError  # which PyTorch raises at the end
    with pytest.raises(refused), stopping(deferred):
        torch.export.export(
            Compared(), given, dynamic_shapes=dynamic, strict=False,
            prefer_deferred_runtime_asserts_over_guards=deferred,
        )  # fmt: skip


def test_progress_says_which_way_of_the_code_is_exported() -> None:
    reported: list[tuple[str, str]] = []
    tilewright.compile(
        _to_an_even_length, torch.ones(13), dynamic_shapes={"x": {0: ("rows", 1, 20)}}, target="cpu",
        progress=lambda stage, item, seconds: reported.append((stage, item)),
    )  # fmt: skip
    items = [item for stage, item in reported if stage == "import"]
    assert items[:3] == ["function", "torch.export of _to_an_even_length", "operations of _to_an_even_length"]
    assert "torch.export of the path of rows 11" in items


class _Flattened(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = (x * 2).transpose(1, 2).reshape(x.shape[0], -1)
        y += 1
        return y.relu_()


def test_a_copy_that_nobody_reads_afterwards_needs_no_other_way() -> None:
    sizes = ({0: torch.export.Dim.AUTO},)
    program = torch.export.export(_Flattened(), (torch.ones(2, 3, 4),), dynamic_shapes=sizes)
    assert not written_copies(program)
