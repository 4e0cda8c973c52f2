"""`torch.compile(model, backend="tilewright")`: engines for inference graphs, PyTorch for the rest."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from torch import nn  # noqa: E402

from tests.host.compile_support import TOLERANCE, compiled, fresh  # noqa: E402, F401
from tests.host.model_support import specification  # noqa: E402
from tilewright.errors import TilewrightError  # noqa: E402
from tilewright.importers.torch_compile import _precision_on  # noqa: E402

pytestmark = pytest.mark.usefixtures("quick_engines")


class Network(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.norm, self.second = nn.Linear(6, 8), nn.LayerNorm(8), nn.Linear(8, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.second(torch.nn.functional.gelu(self.norm(self.first(x))))


def test_parameters_are_constants(built: list[Any]) -> None:
    module = Network().eval()
    run = compiled(module)
    x = torch.randn(4, 6)
    with torch.no_grad():
        torch.testing.assert_close(run(x), module(x), **TOLERANCE)
        run(x)
    (graph,) = built
    assert len(graph.inputs) == 1
    assert {value.shape for value in graph.constants if value.rank == 2} == {(8, 6), (3, 8)}


def test_changed_parameters_are_seen(built: list[Any], caplog: pytest.LogCaptureFixture) -> None:
    module = Network().eval()
    run = compiled(module)
    x = torch.randn(4, 6)
    with torch.no_grad():
        run(x)
        module.second.weight.mul_(2.0)
        with caplog.at_level(logging.WARNING, logger="tilewright"):
            torch.testing.assert_close(run(x), module(x), **TOLERANCE)
    assert len(built) == 2
    assert "parameters changed" in caplog.text


@pytest.mark.parametrize("way", ["data", "numpy", "inference"])
def test_changes_around_the_version_counter_are_seen(built: list[Any], way: str) -> None:
    module = Network().eval()
    run = compiled(module)
    x = torch.randn(4, 6)
    weight = module.second.weight
    with torch.inference_mode(way == "inference"), torch.no_grad():
        run(x)
        if way == "data":
            weight.data.mul_(2.0)
        elif way == "numpy":
            weight.detach().numpy()[:] *= 2.0
        else:
            weight.mul_(2.0)
        torch.testing.assert_close(run(x), module(x), **TOLERANCE)
    assert len(built) == 2


@pytest.mark.parametrize("way", ["row", "element"])
def test_changes_of_a_part_of_a_small_parameter_are_seen(built: list[Any], way: str) -> None:
    module = nn.Linear(64, 64).eval()
    run = compiled(module)
    x = torch.randn(3, 64)
    with torch.no_grad():
        for row in (7, 40, 41):
            run(x)
            module.weight.data[row, slice(3, 4) if way == "element" else slice(None)] = 5.0
            torch.testing.assert_close(run(x), module(x), **TOLERANCE)
    assert [len(graph.inputs) for graph in built] == [1, 1, 3]


def test_changes_of_a_part_of_a_large_parameter_are_seen_in_time() -> None:
    module = nn.Linear(256, 256).eval()  # 64 stretches
    run = compiled(module)
    x = torch.randn(3, 256)
    with torch.no_grad():
        before = run(x)
        module.weight.data[201, 3] = 5.0
        seen = [not torch.equal(run(x), before) for _ in range(65)]
        torch.testing.assert_close(run(x), module(x), **TOLERANCE)
        module.weight.data[30:90] *= 2.0  # a quarter
        for _ in range(8):
            run(x)
        torch.testing.assert_close(run(x), module(x), **TOLERANCE)
    assert sorted(seen) == seen and seen[-1]


def test_buffers_written_around_the_version_counter_become_inputs(built: list[Any]) -> None:
    module = nn.BatchNorm1d(64).eval()
    run = compiled(module)
    x = torch.randn(3, 64)
    with torch.no_grad():
        for place in (5, 33, 9):
            run(x)
            module.running_mean.data[place] = 4.0
            torch.testing.assert_close(run(x), module(x), **TOLERANCE)
    assert [len(graph.inputs) for graph in built] == [1, 2]


def test_parameters_that_change_again_are_inputs(built: list[Any], caplog: pytest.LogCaptureFixture) -> None:
    module = Network().eval()
    run = compiled(module)
    x = torch.randn(4, 6)
    with torch.no_grad(), caplog.at_level(logging.WARNING, logger="tilewright"):
        for _ in range(6):
            module.second.weight.mul_(1.25)
            torch.testing.assert_close(run(x), module(x), **TOLERANCE)
    assert len(built) == 3
    assert [len(graph.inputs) for graph in built] == [1, 1, 7]
    assert caplog.text.count("inputs of one engine for all") == 1


def test_layers_share_one_engine(built: list[Any], caplog: pytest.LogCaptureFixture) -> None:
    """Dynamo has one graph for equal layers between graph breaks."""

    class Layer(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear, self.norm = nn.Linear(6, 6), nn.LayerNorm(6)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            torch._dynamo.graph_break()
            return x + torch.relu(self.linear(self.norm(x)))

    module = nn.Sequential(*[Layer() for _ in range(6)]).eval()
    x = torch.randn(4, 6)
    with torch.no_grad(), caplog.at_level(logging.WARNING, logger="tilewright"):
        run = compiled(module)
        for _ in range(3):
            torch.testing.assert_close(run(x), module(x), **TOLERANCE)
    assert [len(graph.inputs) for graph in built] == [1, 5]
    assert "other parameters" in caplog.text


class Statistics(nn.Module):
    """A mean that moves: by the graph itself, or by code that Dynamo does not see."""

    def __init__(self, inside: bool) -> None:
        super().__init__()
        self.inside = inside
        self.scale = nn.Linear(6, 6)
        self.register_buffer("mean", torch.zeros(6))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if self.inside:
            self.mean.mul_(0.9).add_(x.mean(0), alpha=0.1)
        return self.scale(x) - self.mean


@pytest.mark.parametrize("inside", [True, False])
def test_buffers_that_change_are_inputs(inside: bool, built: list[Any], caplog: pytest.LogCaptureFixture) -> None:
    module = Statistics(inside).eval()
    expected = Statistics(inside).eval()
    expected.load_state_dict(module.state_dict())
    run = compiled(module)
    with torch.no_grad(), caplog.at_level(logging.WARNING, logger="tilewright"):
        for _ in range(6):
            x = torch.randn(4, 6)
            torch.testing.assert_close(run(x), expected(x), **TOLERANCE)
            torch.testing.assert_close(module.mean, expected.mean, **TOLERANCE)
            if not inside:
                module.mean.add_(1)
                expected.mean.add_(1)
    assert len(built) == (1 if inside else 2)
    assert len(built[-1].inputs) == 2
    assert ("buffers changed" in caplog.text) == (not inside)


def test_buffers_whose_values_a_rule_needs(caplog: pytest.LogCaptureFixture) -> None:
    """Bags of equal sizes are rows of a matrix; once the buffer is an input, their sizes are those of each call."""

    class Bags(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.bag = nn.EmbeddingBag(10, 4, mode="sum")
            self.register_buffer("offsets", torch.tensor([0, 3]))

        def forward(self, indices: torch.Tensor) -> torch.Tensor:
            result: torch.Tensor = self.bag(indices, self.offsets)
            return result

    module, indices = Bags().eval(), torch.arange(6)
    run = compiled(module)
    with torch.no_grad(), caplog.at_level(logging.WARNING, logger="tilewright"):
        torch.testing.assert_close(run(indices), module(indices), **TOLERANCE)
        module.offsets.copy_(torch.tensor([0, 1]))
        torch.testing.assert_close(run(indices), module(indices), **TOLERANCE)
    assert "buffers changed; they become inputs" in caplog.text


def test_numbers_that_change_are_inputs(built: list[Any], caplog: pytest.LogCaptureFixture) -> None:
    def function(x: torch.Tensor, scale: float) -> torch.Tensor:
        return torch.softmax(x * scale, -1)

    run, x = compiled(function), torch.randn(4, 6)
    with caplog.at_level(logging.WARNING, logger="tilewright"):
        for scale in (1.0, 0.5, 2.5, 3.25):
            torch.testing.assert_close(run(x, scale), function(x, scale), **TOLERANCE)
    assert len(built) == 2 and not caplog.records


def test_dynamic_shapes_need_one_engine(built: list[Any]) -> None:
    module = Network().eval()
    run = compiled(module, dynamic=True)
    with torch.no_grad():
        for rows in (5, 2, 7, 16):
            x = torch.randn(rows, 6)
            torch.testing.assert_close(run(x), module(x), **TOLERANCE)
    assert len(built) == 1


@pytest.mark.parametrize("dynamic", [None, True])
@pytest.mark.parametrize(
    "function",
    [
        lambda x, n: (x * n, n - x, x.int() * n, x / n),
        lambda x, n: x * (n * 0.5) + (n // 2) + n % 3 + x.shape[0] * n,
        lambda x, n: torch.lerp(x, x + 1, n * 0.1).clamp(max=n).roll(n, 1),
        lambda x, n: x + torch.arange(n, n + x.shape[0])[:, None],
    ],
    ids=["products", "arithmetic", "arguments", "places"],
)
def test_whole_numbers_that_change_are_inputs(function: Any, dynamic: bool | None, built: list[Any]) -> None:
    """Negative ones too: no size stands for them."""
    run, x = compiled(function, dynamic=dynamic, fullgraph=True), torch.randn(2, 3)
    for number in (2, 7, -24, 11):
        torch.testing.assert_close(run(x, number), function(x, number), **TOLERANCE)
    assert len(built) <= 2


_SIZES_OF_NUMBERS: dict[str, Callable[[torch.Tensor, int], Any]] = {
    "slice": lambda x, n: x[: max(n, 1)] * 2,
    "range": lambda x, n: torch.arange(abs(n) + 1) * n + x.sum(),
    "zeros": lambda x, n: x.new_zeros(n % 3 + 1).cos() + x[0],
    "joined": lambda x, n: torch.cat([x, x.new_ones(max(n, 0) + 2), x * n]),
    "product": lambda x, n: x.new_ones(max(n, 1), x.shape[0]).cumsum(0) * x,
    "quotient": lambda x, n: torch.arange((n * n + 3) // 2 + 1).float() * x.mean(),
}


@pytest.mark.parametrize("dynamic", [None, True])
@pytest.mark.parametrize("function", _SIZES_OF_NUMBERS.values(), ids=_SIZES_OF_NUMBERS.keys())
def test_sizes_of_whole_numbers_that_may_be_negative(function: Any, dynamic: bool | None) -> None:
    run = compiled(function, dynamic=dynamic, fullgraph=True)
    x = torch.randn(1 if function is _SIZES_OF_NUMBERS["zeros"] else 4)
    for number in (2, 7, -5, 3, -1, 0, 11):
        torch.testing.assert_close(run(x, number), function(x, number), **TOLERANCE)


def test_a_squeeze_of_sizes_that_vary(built: list[Any]) -> None:
    """A size of 1 has a graph of its own, in which the result has another rank."""
    run = compiled(lambda x: x.squeeze() * 2, dynamic=True, fullgraph=True)
    for batch in (4, 7, 1):
        x = torch.randn(batch, 1, 6)
        assert torch.equal(run(x), x.squeeze() * 2)
    assert len(built) == 2


def test_inputs_are_updated_in_place(built: list[Any]) -> None:
    spec = specification("decode")
    run = compiled(spec.module)
    inputs = spec.make_inputs(batch=2, past=9)
    expected = spec.run(inputs)
    with torch.no_grad():
        logits = run(*inputs.values())
    for found, want in zip([logits, *(inputs[name] for name in spec.mutated)], expected, strict=True):
        torch.testing.assert_close(found, want, **TOLERANCE)
    assert len(built) == 1


@pytest.mark.parametrize("view", [lambda x: x[:2], lambda x: x.t()], ids=["rows", "transposed"])
def test_arguments_that_share_memory(view: Callable[[torch.Tensor], torch.Tensor]) -> None:
    """PyTorch reads both from one tensor by strides; its sizes must not be compared with the example's."""
    compiled = torch.compile(_change_and_read, backend="tilewright")
    for rows in (3, 5, 8):
        x = torch.randn(rows, 4)
        again = x.clone()
        wanted, found = _change_and_read(x, view(x)), compiled(again, view(again))
        assert torch.equal(x, again) and torch.equal(wanted, found)
    torch._dynamo.reset()


def test_arguments_whose_places_in_shared_memory_move() -> None:
    """PyTorch has no guard on the places; what is built for the first call's must not be run for others."""
    compiled = torch.compile(_change_and_read, backend="tilewright")
    for start in (0, 2, 4):
        memory, again = torch.arange(8.0), torch.arange(8.0)
        wanted = _change_and_read(memory[:6], memory[start : start + 4])
        found = compiled(again[:6], again[start : start + 4])
        assert torch.equal(memory, again) and torch.equal(wanted, found)
    torch._dynamo.reset()


def test_parts_of_one_memory_that_do_not_overlap_are_compiled(built: list[Any]) -> None:
    memory = torch.arange(40.0)
    again = memory.clone()
    run = compiled(lambda x, y: (x.add_(1), (y.exp() @ x.t()).relu())[1])
    wanted = (memory[20:].view(4, 5).exp() @ (memory[:20].view(4, 5) + 1).t()).relu()
    torch.testing.assert_close(run(again[:20].view(4, 5), again[20:].view(4, 5)), wanted)
    assert torch.equal(again[:20], memory[:20] + 1) and len(built) == 1


def _change_and_read(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    x.add_(1)
    return y * 2


def test_parameters_of_several_tensors_are_constants_and_inputs_are_not(built: list[Any]) -> None:
    """AOT takes a parameter of such a class apart, so that the places of all later arguments change."""
    from torch.testing._internal.two_tensor import TwoTensor

    module = nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 4)).eval().requires_grad_(False)
    weights = [TwoTensor(torch.randn(4, 4), torch.randn(4, 4)) for _ in range(2)]
    module[0].weight, module[2].weight = (nn.Parameter(weight, requires_grad=False) for weight in weights)
    run = compiled(module)
    for rows in (2, 2, 3, 5):
        x = torch.randn(rows, 4)
        with torch.no_grad():
            found, wanted = run(x), module(x)
        torch.testing.assert_close(found.a, wanted.a, **TOLERANCE)
        torch.testing.assert_close(found.b, wanted.b, **TOLERANCE)
    assert len(built) == 2  # one for the first size, one for all


def test_results_have_pytorchs_strides() -> None:
    run = compiled(lambda x: (x.relu().transpose(0, 1), x.shape[0], None, x + 1))
    x = torch.randn(3, 4)
    found, want = run(x), (x.relu().transpose(0, 1), 3, None, x + 1)
    assert found[0].stride() == want[0].stride()
    assert found[1:3] == want[1:3]
    torch.testing.assert_close(found[3], want[3])


_VIEWS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "every second": lambda y: y.view(-1)[::2],
    "a column": lambda y: y[:, 1],
    "columns of rows in reverse": lambda y: y.t()[1:3].flip(0)[:, ::2],
    "expanded columns": lambda y: y[:, :2].unsqueeze(1).expand(-1, 3, -1)[..., 0],
    "a diagonal": lambda y: (y @ y.t()).diagonal(1),
    "windows": lambda y: y.unfold(1, 2, 1)[:, ::2],
}


@pytest.mark.parametrize("view", _VIEWS.values(), ids=_VIEWS.keys())
def test_results_that_look_at_a_part_of_a_tensor_have_pytorchs_strides(view: Callable[..., torch.Tensor]) -> None:
    def forward(x: torch.Tensor) -> torch.Tensor:
        return view(x.exp())

    run = compiled(forward, options={"effort": 0, "fallback": "error"}, dynamic=True)
    for rows in (5, 3):
        x = torch.randn(rows, 4)
        found, want = run(x), forward(x)
        torch.testing.assert_close(found, want, check_stride=True)


def test_updates_and_indices_whose_numbers_are_distinguished() -> None:
    """PyTorch allows more updates than indices, and has no condition that they are as many."""

    def forward(x: torch.Tensor, i: torch.Tensor) -> tuple[torch.Tensor, ...]:
        zeros = x.new_zeros(5, 4)
        places = i[:, None].expand(-1, 4)
        return zeros.scatter_add(0, places, x), zeros.scatter_reduce(0, places, x, "amax"), zeros.index_copy(0, i, x)

    run = compiled(forward, options={"effort": 0, "fallback": "error"}, dynamic=True)
    for count in (5, 3):
        x, i = torch.randn(count, 4), torch.randperm(5)[:count]
        for found, want in zip(run(x, i), forward(x, i), strict=True):
            torch.testing.assert_close(found, want)


def test_graph_breaks_stay_with_pytorch(built: list[Any]) -> None:
    def function(x: torch.Tensor) -> torch.Tensor:
        y = (x.relu() + 1).softmax(1)
        torch._dynamo.graph_break()
        return (y * 2).cumsum(0)

    x = torch.randn(3, 4)
    torch.testing.assert_close(compiled(function)(x), function(x))
    assert len(built) == 2


def test_results_on_another_device_are_copied_by_pytorch(built: list[Any]) -> None:
    found, value = compiled(lambda x: ((x.relu() * 2 + 1).to("meta"), (x + 1).tanh() * 3))(torch.ones(3))
    assert found.device.type == "meta" and value.device.type == "cpu"
    assert len(built) == 1


def test_other_classes_of_tensors_stay_with_pytorch(built: list[Any], caplog: pytest.LogCaptureFixture) -> None:
    class Image(torch.Tensor):
        pass

    x = torch.randn(3).as_subclass(Image)
    with caplog.at_level(logging.WARNING, logger="tilewright"):
        torch.testing.assert_close(compiled(torch.relu)(x), x.relu())
    assert not built
    assert "of the class Image" in caplog.text


def test_a_failure_without_a_message_is_named(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def fail(*arguments: Any, **named: Any) -> Any:
        raise AssertionError

    monkeypatch.setattr("tilewright.importers.torch_part.build", fail)
    x = torch.randn(3, 4)
    with caplog.at_level(logging.WARNING, logger="tilewright"):
        torch.testing.assert_close(compiled(torch.relu)(x), x.relu())
    assert "AssertionError" in caplog.text


def test_unknown_options() -> None:
    from tilewright.importers.torch_compile import backend

    with pytest.raises(TilewrightError, match="unknown options"):
        backend(torch.fx.symbolic_trace(nn.Identity()), [torch.randn(2)], options={"novel": 1})


@pytest.mark.parametrize("options", [{"effort": 7}, {"target": "gpu"}])
def test_options_without_meaning(options: dict[str, Any]) -> None:
    from tilewright.importers.torch_compile import backend

    with pytest.raises(TilewrightError, match=r"effort 7|unknown target 'gpu'"):
        backend(torch.fx.symbolic_trace(nn.Identity()), [torch.randn(2)], options=options)


@pytest.mark.parametrize("precision", ["highest", "high", "medium"])
def test_pytorchs_choice_of_tf32_holds_on_gpus(monkeypatch: pytest.MonkeyPatch, precision: str) -> None:
    monkeypatch.setattr(torch, "get_float32_matmul_precision", lambda: precision)
    assert _precision_on("cuda") == ("ieee" if precision == "highest" else "tf32")
    assert _precision_on("cpu") == "ieee"


def test_checks_that_pytorch_keeps_in_order_by_tokens() -> None:
    """PyTorch passes None for the tokens."""

    def forward(a: torch.Tensor) -> torch.Tensor:
        return torch.linalg.inv(torch.linalg.cholesky(a @ a.mT + torch.eye(3)))

    a = torch.randn(2, 3, 3, generator=torch.Generator().manual_seed(0))
    found = torch.compile(forward, backend="tilewright", fullgraph=True)(a)
    torch.testing.assert_close(found, forward(a), rtol=1e-4, atol=1e-5)


_contiguous = torch.Tensor.contiguous


def uncopied(tensor: torch.Tensor) -> torch.Tensor:
    """In the place of `torch.Tensor.contiguous`: no copy is wanted."""
    assert tensor.is_contiguous()
    return _contiguous(tensor)


@pytest.mark.parametrize("dynamic", [False, True])
def test_tensors_are_not_copied_for_their_order_in_memory(monkeypatch: pytest.MonkeyPatch, dynamic: bool) -> None:
    """Dense arguments and results whose dimensions lie in another order are permuted views of row-major ones."""
    images = torch.randn(2, 3, 9, 8).to(memory_format=torch.channels_last)
    convolution = nn.Conv2d(3, 4, 3).to(memory_format=torch.channels_last).eval()
    cases: list[tuple[Callable[..., Any], tuple[torch.Tensor, ...]]] = [
        (convolution, (images,)),
        (lambda x, y: x + y, (torch.randn(3, 5, 7), torch.randn(3, 7, 5).mT)),
        (lambda x: (x * 2).transpose(0, 1), (torch.randn(3, 5, 7),)),
    ]
    for function, arguments in cases:
        run = compiled(function, dynamic=dynamic)
        with torch.no_grad():
            run(*arguments)
            expected = function(*arguments)
            monkeypatch.setattr(torch.Tensor, "contiguous", uncopied)
            found = run(*arguments)
            monkeypatch.undo()
        torch.testing.assert_close(found, expected, **TOLERANCE)
        assert found.stride() == expected.stride()


def test_expanded_arguments_are_read_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """They are inputs of one element along the dimensions in which their memory is repeated."""
    draw = torch.Generator().manual_seed(0)
    index = torch.randint(5, (3, 1), generator=draw).expand(-1, 7)
    rows = torch.randn(4, 6, 1, generator=draw).transpose(0, 1).expand(2, 6, 4, 9)
    x, y = torch.randn(5, 7, generator=draw), torch.randn(6, 4, 9, generator=draw)

    def forward(x: torch.Tensor, y: torch.Tensor, index: torch.Tensor, rows: torch.Tensor) -> Any:
        return x.take_along_dim(index, 0), rows * y, rows.sum(0)

    run = compiled(forward, dynamic=False)
    with torch.no_grad():
        run(x, y, index, rows)
        monkeypatch.setattr(torch.Tensor, "contiguous", uncopied)
        found = run(x, y, index, rows)
        monkeypatch.undo()
    for result, expected in zip(found, forward(x, y, index, rows), strict=True):
        torch.testing.assert_close(result, expected, **TOLERANCE)
