"""Code that depends on the numbers in tensors: built as it goes for the example, and checked at every call."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from torch import nn  # noqa: E402

import tilewright  # noqa: E402
from tilewright.errors import InputError, ShapeError  # noqa: E402
from tilewright.graph import reference  # noqa: E402
from tilewright.importers import torch_size_one  # noqa: E402
from tilewright.importers.torch_export import import_function, import_module  # noqa: E402
from tilewright.importers.torch_source_lines import is_written_by_user  # noqa: E402

pytestmark = pytest.mark.filterwarnings("ignore")
takes_truths = pytest.mark.skipif(
    torch.__version__.startswith("2.11."),
    reason="PyTorch 2.11 does not export code that asks for the numbers in tensors",
)


def built(module: nn.Module, *example: Any, axes: Any = None) -> Any:
    return tilewright.compile(module.eval(), example, target="cpu", effort=0, dynamic_shapes=axes)


class Branches(nn.Module):
    """As Longformer asks for global attention, and as Fairseq's models raise for numbers out of range."""

    def forward(self, x: Any, mask: Any) -> Any:
        if mask.all():
            x = x * 2
        if x.max() > 100:
            raise ValueError("too large")
        return x + 1


def test_folders_of_users_may_be_called_torch() -> None:
    assert is_written_by_user("/home/someone/torch/model.py") and is_written_by_user(__file__)
    assert not is_written_by_user(torch.nn.functional.__file__)
    assert not is_written_by_user("C:\\Python\\Lib\\site-packages\\torch\\nn\\modules\\module.py")


@takes_truths
def test_branches_are_the_examples_and_checked() -> None:
    x, mask = torch.rand(3, 4), torch.ones(3, dtype=torch.bool)
    engine = built(Branches(), x, mask, axes={"x": {0: ("n", 1, 8)}, "mask": {0: ("n", 1, 8)}})
    for n in (1, 3, 8):
        x, mask = torch.rand(n, 4), torch.ones(n, dtype=torch.bool)
        assert torch.equal(engine(x, mask), x * 2 + 1)
    with pytest.raises(InputError, match=r"test_import_torch_data_conditions.py:\d+: if mask.all\(\)"):
        engine(x, torch.zeros(8, dtype=torch.bool))
    with pytest.raises(InputError, match=r"if x.max\(\) > 100.*while"):
        engine(x + 90, mask)
    assert sum("every call checks" in remark for remark in engine.remarks) == 2


class Count(nn.Module):
    """A number that a loop needs, and one that is negative and a fraction."""

    def forward(self, x: Any, lengths: Any, slope: Any) -> Any:
        for step in range(int(lengths.max())):
            x = x + step
        if slope.item() < -0.5:
            x = x * slope
        return x - lengths.min().item()


@takes_truths
def test_numbers_of_loops_and_fractions() -> None:
    x, lengths, slope = torch.rand(2, 3), torch.tensor([-1, 3]), torch.tensor(-2.5)
    module = Count()
    engine = built(module, x, lengths, slope)
    for low, factor in ((-1, -2.5), (-7, -0.75), (3, -9.0)):
        given = x, torch.tensor([low, 3]), torch.tensor(factor)
        np.testing.assert_allclose(engine(*given), module(*given), rtol=1e-6)
    with pytest.raises(InputError, match="range"):
        engine(x, torch.tensor([1, 4]), slope)
    with pytest.raises(InputError, match="slope.item"):
        engine(x, lengths, torch.tensor(-0.25))


class Resized(nn.Module):
    """As ViLT: an image resized to what a mask says; the sizes become those of the example."""

    def forward(self, x: Any, mask: Any) -> Any:
        height = int(mask[:, 0].sum())
        return nn.functional.interpolate(x, size=(height, 6), mode="bilinear", align_corners=True)


def test_sizes_without_a_kernel_are_the_examples() -> None:
    x, mask = torch.rand(1, 2, 4, 4), torch.ones(5, 5)
    engine = built(Resized(), x, mask)
    torch.testing.assert_close(engine(x, mask), Resized()(x, mask))
    with pytest.raises(InputError, match="height"):
        engine(x, torch.ones(5, 5).triu(1))


class Strided(nn.Module):
    """As Longformer's overlapping chunks: strides in the memory of a transposed tensor."""

    def forward(self, x: Any) -> Any:
        y = (x * 2).transpose(0, 1)
        return y.as_strided((3, x.shape[0], 2), (1, 6, 2))


def test_strides_of_a_transposed_tensor() -> None:
    engine = built(Strided(), torch.rand(5, 6), axes={"x": {0: ("n", 2, 8)}})
    for n in (2, 5, 8):
        x = torch.rand(n, 6)
        assert torch.equal(engine(x), Strided()(x))


class Chunks(nn.Module):
    """As Longformer's: chunks that overlap by half, of a tensor that is a multiple of a chunk long."""

    def __init__(self, transposed: bool) -> None:
        super().__init__()
        self.transposed = transposed

    def forward(self, x: Any) -> Any:
        missing = (4 - x.shape[1] % 4) % 4
        if missing > 0:
            x = nn.functional.pad(x, (0, 0, 0, missing))
        y = (x.transpose(0, 1) * 2).transpose(0, 1) if self.transposed else x * 2
        y = y.view(y.size(0), torch.div(y.size(1), 4, rounding_mode="trunc"), 4, y.size(2))
        size, stride = list(y.size()), list(y.stride())
        size[1], stride[1] = 2 * size[1] - 1, stride[1] // 2
        return y.as_strided(size, stride)


@pytest.mark.parametrize("transposed", [False, True])
@pytest.mark.parametrize("width", [1, 3])
def test_chunks_that_overlap_are_pieces_of_a_line(transposed: bool, width: int) -> None:
    module = Chunks(transposed).eval()
    graph = import_module(module, (torch.rand(2, 10, width),), {"x": {1: ("n", 1, 30)}})
    (node,) = (node for node in graph.nodes if node.op == "if")
    for way in (node.attributes["then"], node.attributes["otherwise"]):
        assert "frames" in [node.op for node in way.nodes]
    for n in (1, 4, 5, 12, 30):
        x = torch.rand(2, n, width)
        (found,) = reference.run(graph, {"x": x.numpy()}).values()
        assert np.array_equal(found, module(x).numpy())


class Shown(nn.Module):
    """A view by strides of a tensor of any length."""

    def __init__(self, size: Any, stride: Any) -> None:
        super().__init__()
        self.size, self.stride = size, stride

    def forward(self, x: Any) -> Any:
        n = x.shape[0]
        return (x * 2).as_strided(self.size(n), self.stride(n))


@pytest.mark.parametrize(
    ("size", "stride", "op"),
    [
        (lambda n: (n - 1, 2, 6), lambda n: (6, 6, 1), "frames"),  # windows of rows
        (lambda n: (6, n - 1, 2), lambda n: (1, 6, 6), "frames"),  # in another order
        (lambda n: (n, 2, 4), lambda n: (6, 2, 1), "frames"),  # within rows
        (lambda n: (2 * n - 1, 6), lambda n: (3, 1), "frames"),  # across them
        (lambda n: (n, 4, 2), lambda n: (6, 1, 1), "frames"),
        (lambda n: (n, 3), lambda n: (6, 2), "gather"),
        (lambda n: (n, 3, 2), lambda n: (6, 0, 1), "gather"),
        (lambda n: (n, 6, 2), lambda n: (0, 1, 0), "gather"),
        (lambda n: (n - 1, 2, 5), lambda n: (6, 6, 1), "gather"),
    ],
)
def test_views_by_strides(size: Any, stride: Any, op: str) -> None:
    module = Shown(size, stride).eval()
    graph = import_module(module, (torch.rand(5, 6),), {"x": {0: ("n", 2, 8)}})
    assert op in [node.op for node in graph.nodes]
    for n in (2, 5, 8):
        x = torch.rand(n, 6)
        (found,) = reference.run(graph, {"x": x.numpy()}).values()
        assert np.array_equal(found, module(x).numpy())


@takes_truths
def test_the_condition_stands_in_the_graph() -> None:
    graph = import_module(Branches().eval(), (torch.rand(3, 4), torch.ones(3, dtype=torch.bool)))
    lines = dict.fromkeys(node.attributes["what"] for node in graph.nodes if node.op == "condition")
    assert ["if mask.all()" in line for line in lines] == [True, False]


class Bounds(nn.Module):
    """Conditions on numbers that may be negative, which PyTorch writes anew while it decomposes the program."""

    def forward(self, x: Any, k: Any) -> Any:
        least, most = k.min().item(), k.max().item()
        if least <= 3 and most != 4:
            x = x * 2
        if 2 * least + 1 < most:
            x = x - 1
        return x + least


def test_bounds_of_numbers_that_may_be_negative() -> None:
    x = torch.rand(3)
    engine = built(Bounds(), x, torch.tensor([2, 9]))
    for numbers in ([2, 9], [-5, 30], [-9, 3]):
        assert torch.equal(engine(x, torch.tensor(numbers)), Bounds()(x, torch.tensor(numbers)))
    for numbers, line in (([4, 10], "least <= 3"), ([1, 4], "most != 4"), ([3, 5], r"2 \* least \+ 1 < most")):
        with pytest.raises(InputError, match=line):
            engine(x, torch.tensor(numbers))


class Routed(nn.Module):
    """As JetMoe splits its tokens: the numbers follow from weights."""

    def __init__(self) -> None:
        super().__init__()
        self.router = nn.Linear(4, 3)

    def forward(self, x: Any) -> Any:
        counts = nn.functional.one_hot(self.router(x).argmax(-1), 3).sum(0).tolist()
        return torch.cat([part * (number + 2) for number, part in enumerate(x.split(counts)) if len(part)])


def test_ways_that_follow_from_weights() -> None:
    x, module = torch.rand(7, 4) - 0.5, Routed()
    graph = import_module(module.eval(), (x,))
    found = reference.run(graph, {"x": x.numpy()})["output"]
    np.testing.assert_allclose(found, module(x).detach().numpy(), rtol=1e-6)


class Kernel(nn.Module):
    """As Encodec keeps its kernel sizes and strides."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("kernel", torch.tensor(3), persistent=False)
        self.register_buffer("strides", torch.tensor([[2, 3], [1, 2]]))

    def forward(self, x: Any) -> Any:
        frames = torch.ceil((x.shape[-1] - self.kernel) / self.strides[0, 0]).long()
        x = nn.functional.pad(x, (int(self.kernel), 0))
        for height, width in self.strides.tolist():
            x = x + height * width
        return x[:, frames:] if self.kernel > 1 else x


class Places(nn.Module):
    """As ViLT expands its places, where the way depends on numbers too."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("places", torch.arange(4)[None])

    def forward(self, x: Any) -> Any:
        y = x + self.places.expand(2, -1)
        return y if x.min() > -1 else -y


class Position(nn.Module):
    """As a cache counts its calls."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("position", torch.tensor(2))

    def forward(self, x: Any) -> Any:
        y = x * self.position.item()
        self.position.add_(1)
        return y


@takes_truths
def test_numbers_in_buffers_are_known_unless_they_are_written() -> None:
    x = torch.rand(2, 8)
    engine = built(Kernel(), x)
    assert engine.outputs[0].shape == (2, 8) and not engine.remarks
    torch.testing.assert_close(engine(x), Kernel()(x))
    graph = import_module(Places().eval(), (x[:, :4],))
    np.testing.assert_allclose(reference.run(graph, {"x": x[:, :4].numpy()})["output"], Places()(x[:, :4]).numpy())
    graph = import_module(Position().eval(), (x,))
    assert [value.name for value in graph.inputs] == ["x", "position"]
    found = reference.run(graph, {"x": x.numpy(), "position": np.array(5)})
    np.testing.assert_allclose(found["output"], 5 * x.numpy())
    assert found["position"] == 6


class Experts(nn.Module):
    """As models of transformers that take their experts one after the other: the ones that any row has chosen."""

    def __init__(self, named: bool) -> None:
        super().__init__()
        self.named = named
        self.weights = nn.Parameter(torch.randn(3, 4, 4))
        self.layers = nn.ModuleDict({f"expert_{number}": nn.Linear(4, 4) for number in range(3)})

    def forward(self, x: Any, chosen: Any) -> Any:
        result = torch.zeros_like(x)
        mask = nn.functional.one_hot(chosen, 3).permute(2, 1, 0)
        for (number,) in mask.sum((-1, -2)).greater(0).nonzero():
            place, row = torch.where(mask[number])
            if self.named:
                found = self.layers[f"expert_{number}"](x[row])
            else:
                found = x[row] @ self.weights[number]
            result.index_add_(0, row, found * (place[:, None] + 1))
        return result


@takes_truths
@pytest.mark.parametrize("named", [False, True])
def test_experts_that_a_loop_takes(named: bool) -> None:
    module = Experts(named).eval().requires_grad_(False)
    x, chosen = torch.rand(7, 4), torch.arange(14).reshape(7, 2) % 3
    engine = built(module, x, chosen, axes={"x": {0: ("n", 2, 9)}, "chosen": {0: ("n", 2, 9)}})
    for choices in ([[0, 1], [2, 0]], [[1, 2]] * 4 + [[0, 0]] * 5):
        chosen = torch.tensor(choices)
        x = torch.rand(len(chosen), 4)
        torch.testing.assert_close(engine(x, chosen), module(x, chosen), rtol=1e-5, atol=1e-6)
    with pytest.raises(ShapeError, match=r"nonzero.*test_import_torch_data_conditions.py:\d+: .* needs 3"):
        engine(torch.rand(2, 4), torch.tensor([[1, 2], [2, 1]]))


class Pooled(nn.Module):
    """As layers of graphs count their graphs, and masks are made for the longest sequence: `int` of a number read."""

    def forward(self, x: Any, graph: Any) -> Any:
        count = int(graph.max()) + 1
        sums = x.new_zeros(count, x.shape[1]).index_add(0, graph, x)
        sizes = graph.new_zeros(count).index_add(0, graph, torch.ones_like(graph))
        return sums / sizes.clamp(min=1)[:, None], torch.arange(int(sizes.max())) < sizes[:, None]


def test_numbers_that_int_reads_are_the_runs() -> None:
    x, graph = torch.rand(7, 4), torch.tensor([0, 0, 1, 1, 1, 3, 3])
    axes = {"x": {0: ("n", 2, 9)}, "graph": {0: ("n", 2, 9)}}
    engine = built(Pooled(), x, graph, axes=axes)
    assert not [remark for remark in engine.remarks if "example" in remark]
    for numbers in ([0, 0, 1, 1, 1, 3, 3], [0, 0], [1, 5, 5, 5, 0, 2], list(range(9))):
        graph = torch.tensor(numbers)
        x = torch.rand(len(numbers), 4)
        for got, want in zip(engine(x, graph), Pooled()(x, graph), strict=True):
            assert got.dtype == want.dtype
            torch.testing.assert_close(got, want)


@takes_truths
def test_ways_that_failed_are_not_printed(capfd: pytest.CaptureFixture[str]) -> None:
    """PyTorch prints the graph that it had when an export fails; another way of the export goes on here."""

    def forward(x: torch.Tensor) -> torch.Tensor:
        most = int(x.max()) + 1
        return x + most if (x > 3).any() else x * 2

    engine = tilewright.compile(forward, (torch.arange(6),), target="cpu", effort=0)
    torch.testing.assert_close(engine(torch.arange(6)), torch.arange(6) + 6)
    assert "def forward" not in "".join(capfd.readouterr())


class OfSizes(nn.Module):
    """Asks what PyTorch answers without a condition."""

    def forward(self, x: Any, y: Any) -> Any:
        if x.shape[0] == y.shape[0]:
            return x.sum() * y.sum()
        return x.sum() - y.sum() if x.shape[0] > 1 else x.sum()


def test_what_torch_export_answers_without_a_condition_has_its_ways() -> None:
    engine = built(OfSizes(), torch.rand(5, 3), torch.rand(3, 3), axes={"x": {0: ("n", 1, 8)}, "y": {0: ("m", 1, 8)}})
    assert any("3 paths are in the engine" in remark for remark in engine.remarks)
    for n, m in ((4, 3), (3, 3), (1, 3), (3, 1), (1, 1), (8, 8)):
        x, y = torch.rand(n, 3), torch.rand(m, 3)
        torch.testing.assert_close(engine(x, y), OfSizes()(x, y))


def test_a_size_of_1_without_a_way_is_refused_with_the_line_that_asks() -> None:
    engine = tilewright.compile(refusing, (torch.rand(3, 4),), {"x": {0: ("n", 1, 8)}}, "cpu", effort=0)
    one = [remark for remark in engine.remarks if remark.startswith("a size of 1 is refused")]
    assert len(one) == 1 and "if x.shape[0] == 1:" in one[0]
    with pytest.raises(ShapeError, match=r"if x.shape\[0\] == 1: .*where n is 1"):
        engine(torch.rand(1, 4))


def same_at_one(x: Any) -> Any:
    return x.sum(0, keepdim=True) if x.shape[0] == 1 else x.cumsum(0)[-1:]


def another_rank(x: Any) -> Any:
    return x[0] if x.shape[0] == 1 else x


def out_of_the_examples_range(x: Any) -> Any:
    return x.clamp(-50, 50) if x.shape[0] == 1 else x + 0


def longer_than_the_example(x: Any) -> Any:
    return x * (torch.arange(x.shape[1]) < 20) if x.shape[0] == 1 else x * 1


def refusing(x: Any) -> Any:
    if x.shape[0] == 1:
        raise ValueError("one row")
    return x * 2


def traced(x: Any) -> Any:
    count = int(x.long().max()) + 1  # for which Dynamo runs the code
    return x.new_zeros(count).sum() + (x * 2 if x.shape[0] == 1 else x * 3)


def one_next_to_another(x: Any) -> Any:
    if x.shape[0] == 1:
        return x.exp() if x.shape[1] == 1 else x * 1
    return x + 0


def one_element(x: Any) -> Any:
    return x + 1 if x.shape[0] * x.shape[1] == 1 else x * 1


@pytest.mark.parametrize(
    ("function", "refused"),
    [
        (same_at_one, []),
        (out_of_the_examples_range, []),
        (longer_than_the_example, []),
        (refusing, [(1, 4), (1, 1)]),
        pytest.param(traced, [], marks=takes_truths),
        (one_next_to_another, []),
        (one_element, []),
    ],
    ids=lambda item: getattr(item, "__name__", ""),
)
def test_sizes_of_1_that_code_asks_about_have_their_way_or_are_refused(
    function: Any, refused: list[tuple[int, int]]
) -> None:
    axes = {"x": {0: ("n", 1, 8), 1: ("m", 1, 100)}}
    graph = import_function(function, (torch.rand(3, 4),), axes)
    assert bool(refused) == any("a size of 1 is refused" in remark for remark in graph.remarks)
    for shape in ((1, 4), (1, 1), (3, 1), (2, 5)):
        x = torch.rand(shape)
        if shape in refused:
            with pytest.raises(ShapeError):
                reference.run(graph, {"x": x.numpy()})
        else:
            np.testing.assert_allclose(reference.run(graph, {"x": x.numpy()})["output"], function(x), rtol=1e-5)


def test_ranges_from_2_are_not_compared(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch_size_one, "_further_questions", None)
    graph = import_function(another_rank, (torch.rand(3, 4),), {"x": {0: ("n", 2, 8)}})
    assert not graph.remarks


def _by_a_comparison(x: torch.Tensor) -> torch.Tensor:
    if torch.allclose(x, x.relu()) or torch.equal(x, -x.abs()):
        return (x * 2).data + 1
    return x.new_ones(3) * float(x.shape[0] > 2)


@takes_truths
def test_comparisons_of_tensors_as_a_whole() -> None:
    """A branch on one is the example's; so is a truth value as a float, which has a way for each size."""
    positive, mixed = torch.tensor([1.0, 2, 3]), torch.tensor([1.0, -2, 3])
    for x, other in ((positive, mixed), (mixed, positive)):
        engine = tilewright.compile(_by_a_comparison, (x,), {"x": {0: ("n", 1, 5)}}, effort=0)
        for given in (x, x.repeat(2)[:5], x[:2] * 1.5 if other is mixed else -x[:2].flip(0)):
            torch.testing.assert_close(engine(given), _by_a_comparison(given))
        with pytest.raises(InputError, match=r"test_import_torch_data_conditions.py:\d+: if torch.allclose"):
            engine(other)


def test_combinations_of_a_fixed_number_of_elements() -> None:
    x = torch.randn(5)
    pairs, triples = lambda x: torch.combinations(x), lambda x: torch.combinations(x, 3, True)
    for function in (pairs, triples, lambda x: pairs(x[:1])):
        engine = tilewright.compile(function, (x,), effort=0)
        torch.testing.assert_close(engine(x), function(x))
