"""PyTorch programs whose sizes depend on data: cut into parts, equal to eager, wrong sizes refused."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from torch._subclasses.fake_tensor import FakeTensorMode  # noqa: E402
from torch.fx.experimental.symbolic_shapes import ShapeEnv  # noqa: E402
from torch.utils import _pytree as pytree  # noqa: E402

import tilewright  # noqa: E402
from tilewright.errors import ImportModelError, InputError, ShapeError, UnsupportedOperationError  # noqa: E402

pytestmark = pytest.mark.usefixtures("quick_engines")

BATCH = {"x": {0: ("batch", 1, 9)}}


def rows(*sizes: int) -> list[tuple[Any, ...]]:
    """Whole numbers [size, 3] for each size, then such without anything above 0."""
    torch.manual_seed(sum(sizes))
    found = [(torch.randint(-3, 4, (size, 3)).float(),) for size in sizes]
    return [*found, (-torch.ones(2, 3),)]


def numbers(*values: Any) -> list[tuple[Any, ...]]:
    """The same rows with each of some numbers."""
    torch.manual_seed(3)
    x = torch.randn(5, 3)
    return [(x, torch.tensor(value)) for value in values]


def check(function: Callable[..., Any], calls: Sequence[tuple[Any, ...]], dynamic: Any = None) -> Any:
    """Compile with the first call as the example, and compare all calls with PyTorch."""
    engine = tilewright.compile(function, calls[0], dynamic_shapes=dynamic, effort=0)
    for arguments in calls:
        with torch.no_grad():
            wanted = pytree.tree_leaves(function(*arguments))
        found = pytree.tree_leaves(engine(*arguments))
        assert len(found) == len(wanted)
        for result, expected in zip(found, wanted, strict=True):
            expected = torch.as_tensor(expected)
            torch.testing.assert_close(torch.as_tensor(result), expected, rtol=1e-5, atol=1e-5, equal_nan=True)
    return engine


def positions(x: Any) -> tuple[Any, ...]:
    return torch.nonzero(x > 0), *torch.where(x > 0), torch.nonzero_static(x > 0, size=4)


def masks(x: Any) -> tuple[Any, ...]:
    some = x[x > 0]
    return some.sum() + some.shape[0], torch.masked_select(x, x[:, :1] > 0), x[x.sum(1) > 0] @ torch.ones(3, 2)


def assignments(x: Any) -> tuple[Any, ...]:
    y = x.clone()
    chosen = y[:, 0] > 0
    y[chosen] = y[chosen] * 2
    y[~chosen] += 1
    summed = x.index_put((chosen,), torch.ones(3), accumulate=True)
    return y, summed, x.masked_scatter(x > 0, torch.arange(27.0))


def different(x: Any) -> tuple[Any, ...]:
    return (
        *torch.unique(x, return_inverse=True, return_counts=True),
        *torch.unique(x, dim=0, return_inverse=True),
        *torch.unique_consecutive(x > 0, return_counts=True),
        torch.unique_consecutive(x > 0, dim=0),
    )


def _traces_whole_numbers() -> bool:
    with FakeTensorMode(shape_env=ShapeEnv()):
        _, counts = torch.unique(torch.ones(3), return_counts=True)
    return counts.dtype == torch.int64


right_types = pytest.mark.skipif(
    not _traces_whole_numbers(), reason=f"PyTorch {torch.__version__} traces counts with the type of what is counted"
)


@pytest.mark.parametrize("function", [positions, masks, assignments, pytest.param(different, marks=right_types)])
def test_choices_that_depend_on_data(function: Callable[..., Any]) -> None:
    check(function, rows(5, 1, 2, 9), BATCH)


def test_masks_next_to_other_indices() -> None:
    def function(x: Any) -> tuple[Any, ...]:
        rows, columns = x.sum(1) > 0, x.sum(0) > 0
        return x[:, columns], x[rows][:, columns], x[rows, :2], x[rows, 1]

    check(function, [(torch.ones(5, 3),), (-torch.ones(5, 3),), (torch.eye(5, 3) - 0.5,)])


@right_types
def test_counts_and_repeats() -> None:
    def function(counts: Any, weights: Any) -> tuple[Any, ...]:
        found = torch.bincount(counts, minlength=2), torch.bincount(counts, weights)
        return *found, torch.repeat_interleave(weights, counts), torch.repeat_interleave(counts)

    lists = ([1, 2, 0], [0, 0, 0], [7, 1, 1])
    engine = check(function, [(torch.tensor(each), torch.arange(3.0)) for each in lists])
    with pytest.raises(ShapeError, match="as low as -1; they must be 0 or more"):
        engine(torch.tensor([-1, 0, 2]), torch.arange(3.0))


@right_types
def test_truth_values_that_meet_are_true() -> None:
    """Sums of booleans are "or" in machine code too, which adds single bits otherwise."""
    places = torch.tensor([0, 0, 2, 2, 2])

    def sums(x: Any, y: Any) -> tuple[Any, ...]:
        scattered = x.scatter_add(0, places, y), x.index_put((places,), y, accumulate=True), x.index_add(0, places, y)
        reduced = x.scatter_reduce(0, places, y, "sum"), x.scatter_reduce(0, places, y, "prod")
        return *scattered, *reduced, y.sum(dtype=torch.bool)

    check(sums, [(torch.tensor([True, False, False, True]), torch.tensor([True, True, True, False, True]))])


@pytest.mark.skipif(not _traces_whole_numbers(), reason="this PyTorch traces counts as numbers of the tensor's type")
def test_nan_is_no_other_nan() -> None:
    check(lambda x: torch.unique(x, return_counts=True), [(torch.tensor([1.0, float("nan"), 2.0, float("nan"), 1.0]),)])


@pytest.mark.skipif(_traces_whole_numbers(), reason="this PyTorch traces counts as whole numbers")
def test_results_that_pytorch_traces_with_a_wrong_type_are_refused() -> None:
    for function in (lambda x: torch.unique(x, return_counts=True), lambda x: torch.bincount(x.long(), x)):
        with pytest.raises(UnsupportedOperationError, match="traces a result as"):
            check(function, [(torch.ones(3),)])


def as_size(x: Any, n: Any) -> tuple[Any, ...]:
    k = n.item()
    torch._check(k >= 0)
    torch._check(k <= x.shape[0])
    return x[:k] * 2, k, x.repeat(k, 1), torch.arange(k), torch.zeros(k, 3) + x[:1], x * k


def test_what_a_model_checks_of_its_tensors_is_checked_in_every_call() -> None:
    """As models of texts with images do: as many places in the text as there are patches of the image."""

    def filled(words: Any, patches: Any) -> Any:
        places = words == 3
        torch._check_tensor_all(places.sum() == len(patches), lambda: "places and patches")
        return torch.zeros(*words.shape, 2).masked_scatter(places[..., None], patches)

    words, patches = torch.tensor([[3, 1, 3], [3, 5, 3]]), torch.randn(4, 2)
    engine = check(filled, [(words, patches), (words.flip(1), patches)])
    with pytest.raises(InputError, match="a check that the model makes"):
        engine(torch.tensor([[3, 1, 3], [3, 5, 4]]), patches)


def test_a_number_read_from_a_tensor_as_a_size() -> None:
    engine = check(as_size, numbers(2, 0, 1, 5))
    for number, words in ((6, "is 6, outside 0..5"), (-1, "is -1; 0 to")):
        with pytest.raises(ShapeError, match=words):
            engine(torch.randn(5, 3), torch.tensor(number))


def test_a_number_that_may_be_negative() -> None:
    def function(x: Any, n: Any) -> tuple[Any, ...]:
        k = n.item()
        return x[:k] * 2, x[k:], x.sum(0) * k, (k + 3) * 2, -k // 2

    check(function, numbers(2, 0, -1, 5, 7))
    check(lambda x, n: x[n.item()], numbers(2, -1))
    check(lambda x, n: x * n.item() - x.max().item(), numbers(2.5, -1.0))


def test_sizes_in_a_list_must_have_the_right_sum() -> None:
    def function(x: Any, sizes: Any) -> tuple[Any, ...]:
        first, second, third = sizes.tolist()
        return x.split([first, second, third])

    engine = check(function, numbers([2, 2, 1], [0, 5, 0]))
    for sizes in ([0, 4, 0], [1, 1, 1]):
        with pytest.raises(ShapeError, match="must be 5"):
            engine(torch.randn(5, 3), torch.tensor(sizes))


def test_a_number_that_may_be_negative_where_a_size_is_needed_is_fixed() -> None:
    x, n = numbers(2)[0]
    engine = tilewright.compile(lambda x, n: torch.nn.functional.pad(x, (n.item(), -n.item())), (x, n))
    assert torch.equal(engine(x, n), torch.nn.functional.pad(x, (2, -2)))
    with pytest.raises(InputError, match=r"n.item\(\)"):
        engine(x, torch.tensor(3))
    assert any("say that it is not: torch._check(number >= 0)" in remark for remark in engine.remarks)


def test_rows_are_rolled_by_a_number_that_may_be_negative() -> None:
    x, n = numbers(2)[0]
    engine = tilewright.compile(lambda x, n: x.roll(n.item(), 0), (x, n))
    for shift in (2, 0, -1, 17):
        assert torch.equal(engine(x, torch.tensor(shift)), x.roll(shift, 0))


def in_chunks(x: Any) -> tuple[Any, ...]:
    """As gated delta rules do: filled up to whole chunks, with a mask of a chunk's size."""
    filled = torch.nn.functional.pad(x, (0, 0, 0, (4 - x.shape[0] % 4) % 4), value=1.5)
    parts = filled.reshape(-1, 4, 3)
    products = parts @ parts.transpose(1, 2)
    chunk = filled.shape[0] // parts.shape[0]
    mask = torch.triu(torch.ones(4, 4, dtype=torch.bool), 1)
    return products.reshape(parts.shape[0], chunk, chunk).masked_fill(mask, 0.0), filled


def test_filling_up_to_whole_chunks() -> None:
    check(in_chunks, rows(7, 5, 8, 9, 12)[:-1], {"x": {0: ("n", 5, 12)}})


def test_fills_and_cuts_that_depend_on_sizes() -> None:
    def function(x: Any, y: Any) -> tuple[Any, ...]:
        return (
            torch.nn.functional.pad(y, (0, x.shape[0], 1, 2)),
            torch.nn.functional.pad(x, (-1, 1, 2, -(x.shape[0] // 2)), value=2.0),
        )

    calls = [(torch.randn(n, 3), torch.randn(2, 2)) for n in (4, 1, 2, 9)]
    check(function, calls, BATCH)


def writes(x: Any, at: Any, end: Any) -> tuple[Any, ...]:
    """Writes to places that numbers in tensors choose; the last is to a view."""
    cache = torch.zeros(3, 6)
    cache[:, at] = x[:3, 0]
    cache[1, at:end] = 7
    cache[1:2, None, :end, ...] = x[:1, :1]
    cache[at.item()] = 2
    cache[at, at] += 1
    cache[:, at].mul_(3)
    return cache, torch.select_scatter(cache, x[:3, 1], 1, end.item()), torch.narrow(cache, 1, at, 1)


def test_numbers_in_tensors_choose_what_is_written() -> None:
    x = torch.randn(5, 3)
    check(writes, [(x, torch.tensor(at), torch.tensor(end)) for at, end in ((1, 3), (0, 5), (2, 1), (-1, -2))])


def test_masks_of_uint8_choose_what_is_written() -> None:
    def masked(x: Any, which: Any) -> Any:
        x = x.clone()
        x[which] = 5
        return x

    engine = tilewright.compile(masked, (torch.zeros(2, 3), torch.tensor(1, dtype=torch.uint8)), effort=0)
    torch.testing.assert_close(engine(torch.zeros(2, 3), torch.tensor(1, dtype=torch.uint8)), torch.full((2, 3), 5.0))


@pytest.mark.parametrize("of", ["the part", "the tensor"])
def test_writes_next_to_a_narrow_from_a_place_in_a_tensor_are_refused(of: str) -> None:
    def written(x: Any, at: Any) -> Any:
        x = x.clone()
        part = x.narrow(1, at, 2)
        (part if of == "the part" else x).mul_(2)
        return x, part

    with pytest.raises(ImportModelError, match=r"writes to it.*test_import_torch_data\.py:\d+: part = x\.narrow"):
        tilewright.compile(written, (torch.ones(3, 6), torch.tensor(1)), effort=0)


def test_a_narrow_from_a_place_in_a_tensor_stays_within() -> None:
    x = torch.randn(2, 6)
    engine = check(lambda x, at: x.narrow(1, at, 2), [(x, torch.tensor(at)) for at in (0, 4, -6, -2)])
    for at in (5, -1, -7):
        with pytest.raises(InputError, match="is within the tensor"):
            engine(x, torch.tensor(at))


def test_a_place_that_is_written_is_one_of_the_tensors() -> None:
    def written(x: Any, at: Any) -> Any:
        x = x.clone()
        x[:, at] = 5
        return x

    x = torch.randn(2, 6)
    engine = check(written, [(x, torch.tensor(at)) for at in (1, 0, -6, 5)])
    for at in (6, -7):
        with pytest.raises(InputError, match=r"an index out of range.*takes -6\.\.5"):
            engine(x, torch.tensor(at))


def test_a_slice_that_is_written_has_the_values_size() -> None:
    class Cache(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("keys", torch.zeros(2, 8))

        def forward(self, x: Any, at: Any) -> Any:
            self.keys[:, at : at + x.shape[1]] = x
            return self.keys.sum(1)

    example = torch.ones(2, 3), torch.tensor(1)
    engine = tilewright.compile(Cache().eval(), example, dynamic_shapes={"x": {1: ("n", 1, 6)}, "at": None}, effort=0)
    for length, at in ((3, 1), (1, 7), (6, 0), (2, -4)):
        model, keys = Cache(), torch.zeros(2, 8)
        arguments = torch.randn(2, length), torch.tensor(at)
        wanted = model(*arguments)
        torch.testing.assert_close(engine(x=arguments[0], at=arguments[1], keys=keys), wanted)
        torch.testing.assert_close(keys, model.keys)
    with pytest.raises(InputError, match=r"has the value's size at test_import_torch_data\.py"):
        engine(x=torch.ones(2, 4), at=torch.tensor(6), keys=torch.zeros(2, 8))


def squeezed(x: Any) -> tuple[Any, ...]:
    places = (x[:, 0] > 0).nonzero().squeeze()
    return x[places], places


def test_a_squeeze_of_a_count_takes_all_but_one() -> None:
    first, none = torch.tensor([[1.0, 2, 3], [-1, 0, 2], [4, 0, 1]]), -torch.ones(3, 3)
    for dynamic in (None, BATCH):
        engine = check(squeezed, [(first,), (none,), (torch.ones(3, 3),)], dynamic)
        with pytest.raises(
            ShapeError, match=r"test_import_torch_data.py:\d+: places = .* at a size of 1.*squeeze\(-1\)"
        ):
            engine(torch.tensor([[1.0, 2, 3], [-1, 0, 2], [-4, 0, 1]]))


def without_a_rule(x: Any) -> Any:
    y = x + 1
    return torch.geqrf(y)[0]


def test_errors_name_lines_of_plain_functions() -> None:
    with pytest.raises(UnsupportedOperationError, match=r"model \(without_a_rule\), test_import_torch_data.py:\d+"):
        tilewright.compile(without_a_rule, (torch.ones(3, 3),))
    with pytest.raises(ImportModelError, match=r"cannot export lambda, at test_import_torch_data.py:\d+: .*numpy"):
        tilewright.compile(lambda x: torch.from_numpy(x.numpy() + 1), (torch.ones(3, 3),))
