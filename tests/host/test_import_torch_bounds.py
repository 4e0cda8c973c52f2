"""Sizes and bounds that follow from sizes: rounded floats, negative bounds, numbers that are read, sizes of 0 and 1.

Engines run them: they also check, or refuse, the sizes that an import assumes; the reference of a graph does not.
"""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable
from itertools import product
from typing import Any

import pytest
import torch
from torch import _prims_common, nn
from torch._inductor import utils as inductor_utils
from torch._subclasses import fake_tensor
from torch.fx.experimental import sym_node, symbolic_shapes

import tilewright
from tests.host.model_support import specification
from tilewright.errors import ShapeError
from tilewright.importers import import_model, torch_size_conditions

_SIZES = (1, 2, 3, 4, 5, 8, 13)


def _check(engine: Any, function: Any, *arguments: torch.Tensor) -> None:
    """Results are those of PyTorch itself."""
    found, wanted = engine(*arguments), function(*arguments)
    for one, other in zip(*((each if isinstance(each, tuple) else (each,)) for each in (found, wanted)), strict=True):
        torch.testing.assert_close(one, other, msg=lambda text: f"sizes {[each.shape for each in arguments]}: {text}")


def _rounded(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
    n = x.shape[0]
    return x[: round(n * 0.7)], x[int(n * 0.3) :], x.new_ones(round(n / 2) + 1)


def _root(x: torch.Tensor) -> torch.Tensor:
    root = int(math.sqrt(x.shape[0]))
    return x[: root * root].reshape(root, root)


def _resized(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
    image = x.reshape(1, 1, 1, -1).expand(-1, -1, 3, -1)
    size = round(x.shape[0] * 0.45) + 1
    return nn.functional.interpolate(image, scale_factor=1.3), nn.functional.adaptive_avg_pool1d(image[0], size)


def _from_the_end(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
    n = x.shape[0]
    return x[-(n // 3) - 1 :], x[(3 - n) // 2 :], x[: 4 - n], x[n - 9 : n - 4], x[: -(-n // 4)]


def _distance(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
    n = x.shape[0]
    return x[: abs(n - 5)], x.new_ones(abs(6 - n) + 1), x[n * n - 9 :]


@pytest.mark.parametrize("function", [_rounded, _root, _resized, _from_the_end, _distance])
def test_bounds_that_follow_from_sizes(function: Any) -> None:
    engine = tilewright.compile(function, (torch.randn(5),), {"x": {0: ("n", 1, 13)}}, "cpu")
    for size in _SIZES:
        _check(engine, function, torch.randn(size))


_OF_TWO: dict[str, Callable[[Any, Any], slice]] = {
    "distance": lambda n, m: slice(abs(n + m - 8)),
    "distance_from_the_end": lambda n, m: slice(-abs(n + m - 8), None),
    "difference_from_the_end": lambda n, m: slice(-abs(n - m), None),
    "product": lambda n, m: slice(m * m - n),
    "rounded": lambda n, m: slice(round((n - 7) - 5 / 3), m),
    "extremes": lambda n, m: slice(min(m // 2, n - 3), max(m - n, n // 3)),
}


@pytest.mark.parametrize("bounds", _OF_TWO.values(), ids=_OF_TWO.keys())
def test_bounds_that_follow_from_two_sizes(bounds: Any) -> None:
    """What PyTorch asks of sizes while it decomposes a program is answered as for the example: every pair of sizes has
    its own answer."""

    def function(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return x[bounds(x.shape[0], y.shape[0])]

    ranges = {"x": {0: ("n", 1, 10)}, "y": {0: ("m", 1, 10)}}
    engine = tilewright.compile(function, (torch.randn(6), torch.randn(9)), ranges, "cpu")
    for n, m in product(range(1, 11), repeat=2):
        _check(engine, function, torch.randn(n), torch.randn(m))


def test_sizes_without_a_way_are_refused_by_name() -> None:
    """Products that need 54 rows, as the example's have: there are too many others."""

    def function(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return x[: int(math.sqrt(x.shape[0] * y.shape[0]))]

    ranges = {"x": {0: ("n", 1, 13)}, "y": {0: ("m", 1, 13)}}
    engine = tilewright.compile(function, (torch.randn(6), torch.randn(9)), ranges, "cpu")
    assert any("which every call checks" in remark for remark in engine.remarks)
    _check(engine, function, torch.randn(6), torch.randn(9))
    with pytest.raises(ShapeError, match="n = 5, m = 4"):
        engine(torch.randn(5), torch.randn(4))


def test_exported_programs_check_what_their_decomposition_asks() -> None:
    """A program that is given already has one way."""

    class Model(nn.Module):
        def forward(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
            return x[: abs(x.shape[0] + y.shape[0] - 8)]

    dims = {"x": {0: torch.export.Dim("n", max=10)}, "y": {0: torch.export.Dim("m", max=10)}}
    program = torch.export.export(Model(), (torch.randn(6), torch.randn(9)), dynamic_shapes=dims)
    engine = tilewright.compile(program, target="cpu")
    _check(engine, Model(), torch.randn(6), torch.randn(9))
    with pytest.raises(ShapeError, match="does not take the sizes"):
        engine(torch.randn(6), torch.randn(3))
    assert any("which every call checks" in remark for remark in engine.remarks)


def test_numbers_computed_through_several_floats() -> None:
    def function(x: torch.Tensor) -> torch.Tensor:
        return x * int(math.sqrt(int(math.ceil(x.shape[0] / 3) / 3)))

    engine = tilewright.compile(function, (torch.randn(6),), {"x": {0: ("n", 1, 60)}}, "cpu")
    for size in (1, 6, 7, 27, 28, 60):
        _check(engine, function, torch.randn(size))


def _ranges(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
    n = x.shape[0]
    return torch.arange(0, 1, 1 / n)[:n] * x, torch.arange(0.5, n / 2, 0.25), torch.arange(n * 0.5, n * 3, n)


def test_ranges_whose_ends_and_steps_are_floats_of_sizes() -> None:
    engine = tilewright.compile(_ranges, (torch.randn(6),), {"x": {0: ("n", 2, 13)}}, "cpu")
    for size in range(2, 14):
        _check(engine, _ranges, torch.randn(size))


def _masks_of_a_past(x: torch.Tensor, past: torch.Tensor) -> tuple[torch.Tensor, ...]:
    new, before = x.shape[0], past.shape[0]
    mask = torch.ones(new, before + new, dtype=torch.bool).tril(before)
    return mask, torch.ones(4, 9).triu(new - before), torch.triu(torch.ones(3, 3), diagonal=1 - new)


def test_triangles_below_diagonals_that_are_sizes() -> None:
    shapes = {"x": {0: ("new", 1, 13)}, "past": {0: ("before", 1, 13)}}
    engine = tilewright.compile(_masks_of_a_past, (torch.randn(4), torch.randn(6)), shapes, "cpu")
    for new, before in product((1, 2, 13), repeat=2):
        _check(engine, _masks_of_a_past, torch.randn(new), torch.randn(before))


def _filled(x: torch.Tensor, k: torch.Tensor) -> tuple[torch.Tensor, ...]:
    number = int(k)
    return (
        torch.full((3,), number),
        torch.full((x.shape[0], 2), float(number)),
        torch.full_like(x, -number),
        x * int(math.sqrt(number + x.shape[0])),
    )


@pytest.mark.skipif(torch.__version__.startswith("2.11."), reason="PyTorch 2.11 fixes numbers that are read")
def test_tensors_filled_with_numbers_that_are_read() -> None:
    engine = tilewright.compile(_filled, (torch.randn(5), torch.tensor(2)), {"x": {0: ("n", 1, 13)}}, "cpu")
    for size in _SIZES:
        _check(engine, _filled, torch.randn(size), torch.tensor(size // 2))


def test_long_ranges_round_as_python_does() -> None:
    """Halves to even numbers, and factors that a float64 does not hold: a formula, or what the run computes."""
    high = 200_000
    for part in (0.5, 0.7, 0.1, 1 / 3, 2.5):
        engine = tilewright.compile(
            lambda x, part=part: x.new_ones(round(x.shape[0] * part)),
            (torch.randn(6),),
            {"x": {0: ("n", 1, high)}},
            "cpu",
        )
        for size in (1, 5, 15, 25, 35, 45, 1005, high - 5):
            assert engine(torch.zeros(size)).shape == (round(size * part),)


def _read_below(x: torch.Tensor, k: torch.Tensor) -> torch.Tensor:
    count = int(k)
    return x[:count].sum() if x.shape[0] % 2 else (x * count).sum()


def _read_in_one_way(x: torch.Tensor, k: torch.Tensor) -> torch.Tensor:
    return x * int(k.sum()) if x.shape[0] > 6 else x - 1


@pytest.mark.skipif(torch.__version__.startswith("2.11."), reason="PyTorch 2.11 fixes numbers that are read")
@pytest.mark.parametrize("function", [_read_below, _read_in_one_way])
def test_numbers_read_in_the_ways_of_code_are_those_of_the_call(function: Any) -> None:
    engine = tilewright.compile(function, (torch.randn(5), torch.tensor(2)), {"x": {0: ("n", 1, 13)}}, "cpu")
    assert all("api.py" not in remark and "numbers in tensors" not in remark for remark in engine.remarks)
    for size in _SIZES:
        _check(engine, function, torch.randn(size), torch.tensor(size // 2))


def _squeezed(x: torch.Tensor) -> torch.Tensor:
    y = x * 2 if x.shape[0] % 2 else x
    return y.squeeze(0).sum() + y.squeeze().reshape(-1).amax()


def _squeezed_in_one_way(x: torch.Tensor) -> torch.Tensor:
    return x.sum(0) if x.shape[0] > 4 else x.squeeze(0)


def test_sizes_of_1_of_which_a_squeeze_makes_another_rank() -> None:
    engine = tilewright.compile(_squeezed, (torch.randn(6, 3),), {"x": {0: ("n", 1, 13)}}, "cpu")
    for size in _SIZES:
        _check(engine, _squeezed, torch.randn(size, 3))


def test_a_squeeze_gives_results_of_another_rank_at_size_1() -> None:
    engine = tilewright.compile(_squeezed_in_one_way, (torch.randn(6, 3),), {"x": {0: ("n", 1, 13)}}, "cpu")
    for size in (1, 2, 3, 5, 13):
        _check(engine, _squeezed_in_one_way, torch.randn(size, 3))


def _of_nothing_too(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
    return x.sum(0), torch.cat([x, x[1:], x[:0]]), x @ x.T, x[x > 0], x[: x.shape[0] - 3]


def test_ranges_from_0() -> None:
    engine = tilewright.compile(_of_nothing_too, (torch.randn(2, 3),), {"x": {0: ("n", 0, 9)}}, "cpu")
    for size in (0, 1, 2, 9):
        _check(engine, _of_nothing_too, torch.randn(size, 3))


def test_ranges_from_0_of_a_model_that_does_not_take_it() -> None:
    with pytest.raises(ShapeError, match="the range of 'n' begins at 0, and there is no program for this size"):
        import_model(lambda x: x.amax(0), (torch.randn(2, 3),), {"x": {0: ("n", 0, 9)}})


def test_a_model_that_asks_nothing_of_its_sizes_has_one_way() -> None:
    """How tensors lie in memory is asked while a program is decomposed, and no result depends on it."""
    spec = specification("bert")
    graph = import_model(spec.module, spec.example, spec.dynamic_shapes, spec.name)
    assert not graph.remarks and all(node.op != "if" for node in graph.nodes)


def _cut_for_some_sizes(x: torch.Tensor, y: torch.Tensor, k: torch.Tensor) -> torch.Tensor:
    n, m = x.shape[0], y.shape[0]
    return y[: int(k)] if (n - 1) * m > 0 else y * 2


@pytest.mark.skipif(torch.__version__.startswith("2.11."), reason="PyTorch 2.11 fixes numbers that are read")
def test_ways_of_sizes_of_0_and_1_are_kept_next_to_numbers_that_are_read() -> None:
    ranges = {"x": {0: ("n", 0, 5)}, "y": {0: ("m", 0, 5)}}
    example = (torch.randn(3), torch.randn(4), torch.tensor(2))
    engine = tilewright.compile(_cut_for_some_sizes, example, ranges, "cpu", effort=0)
    for n, m in product(range(6), repeat=2):
        _check(engine, _cut_for_some_sizes, torch.randn(n), torch.randn(m), torch.tensor(2))


def test_the_functions_by_which_pytorch_asks_of_sizes_have_their_names() -> None:
    """The callers are recognised by name, so this fails for a release of PyTorch that renames one."""
    modules = (_prims_common, fake_tensor, symbolic_shapes, sym_node, inductor_utils)
    text = "".join(map(inspect.getsource, modules))
    named = {*torch_size_conditions._OF_MEMORY, *torch_size_conditions._OF_DYNAMO, torch_size_conditions._OF_GUARDS}
    of_other_releases = {"are_strides_like_channels_last", "is_expanded"}
    assert {name for name in named if f"def {name}(" not in text} <= of_other_releases


def test_a_range_whose_condition_pytorch_cannot_word() -> None:
    def squares(x: torch.Tensor) -> torch.Tensor:
        return torch.arange(0, x.shape[0] ** 2, x.shape[0]) + x

    engine = tilewright.compile(squares, (torch.randn(3),), {"x": {0: ("n", 1, 9)}}, effort=0)
    for count in (1, 4, 9):
        x = torch.randn(count)
        torch.testing.assert_close(engine(x), squares(x))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
def test_lines_of_any_number_of_steps(dtype: torch.dtype) -> None:
    def line(x: torch.Tensor) -> torch.Tensor:
        return torch.linspace(-1.5, 3, x.shape[0], dtype=dtype) * x + torch.linspace(0, 1, 5).sum()

    engine = tilewright.compile(line, (torch.ones(4),), {"x": {0: ("n", 1, 500)}}, effort=0)
    for count in (1, 2, 3, 4, 7, 500):
        x = torch.ones(count)
        torch.testing.assert_close(engine(x), line(x))


def test_largest_elements_in_windows_of_any_length() -> None:
    pool = nn.functional.max_pool1d

    def pooled(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return pool(x, 2), pool(x[0], 3, 1, 1), pool(x, 2, 2, 1, ceil_mode=True), pool(x, 2, 1, 0, 2)

    engine = tilewright.compile(pooled, (torch.randn(2, 3, 8),), {"x": {0: ("b", 1, 64), 2: ("n", 4, 99)}}, effort=0)
    for batch, length in ((1, 4), (2, 9), (64, 99)):
        x = torch.randn(batch, 3, length)
        _check(engine, pooled, x)


def _half_of(size: int) -> int:
    return int(size) // 2 + 1


@pytest.mark.parametrize(
    "function",
    [
        lambda x: x / math.sqrt(x.shape[0]),
        lambda x: x.sum(0) / float(x.shape[0]),
        lambda x: x * float(x.shape[0]) ** 0.5 + torch.tensor(float(x.shape[0])),
        lambda x: x[: int(x.shape[0]) // 2],
        lambda x: x[: int(x.shape[0] * 0.7)],
        lambda x: x[: int(x.shape[0] ** 0.5)] * isinstance(x.shape[0], int),
        lambda x: x[: _half_of(x.shape[0])],
    ],
)
def test_sizes_in_numbers_of_python(function: Callable[[torch.Tensor], torch.Tensor]) -> None:
    """They are no conditions on the size."""
    engine = tilewright.compile(function, (torch.randn(3, 4),), {"x": {0: ("n", 1, 300)}}, effort=0)
    for size in (1, 2, 3, 77, 300):
        _check(engine, function, torch.randn(size, 4))
    assert "int" not in globals() and math.sqrt.__module__ == "math"
