"""Graphs of `torch.compile` of which some operations stay with PyTorch, and graphs whose gradients are asked."""

from __future__ import annotations

import logging
import operator
from collections.abc import Iterator
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from torch import nn  # noqa: E402
from torch._higher_order_ops import scan, while_loop  # noqa: E402
from torch.nn import functional as F  # noqa: E402

from tests.host.compile_support import Module, check, compiled, fresh  # noqa: E402, F401
from tilewright.errors import TilewrightError, UnsupportedOperationError  # noqa: E402
from tilewright.importers import torch_part  # noqa: E402

pytestmark = pytest.mark.usefixtures("quick_engines")


@pytest.fixture
def sizes_from_data() -> Iterator[None]:
    """Dynamo breaks the graph at sizes that depend on data unless it is told otherwise."""
    with torch._dynamo.config.patch(capture_dynamic_output_shape_ops=True, capture_scalar_outputs=True):
        yield


def rows(*shape: int) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(sum(shape)))


def layers(**sizes: tuple[int, int]) -> dict[str, nn.Module]:
    torch.manual_seed(0)
    return {name: nn.Linear(*size) for name, size in sizes.items()}


def second(x: torch.Tensor) -> torch.Tensor:
    """An operation without a rule."""
    return torch.linalg.householder_product(x[..., :1], x[..., 0, :1])


def in_the_middle(m: Any, x: torch.Tensor) -> torch.Tensor:
    h = m.a(x).relu()
    return m.b(h * 2 + second(h)).tanh()


@pytest.mark.parametrize("dynamic", [False, True])
def test_what_has_no_rule_stays_with_pytorch(built: list[Any], caplog: pytest.LogCaptureFixture, dynamic: bool) -> None:
    module = Module(in_the_middle, **layers(a=(6, 8), b=(8, 3))).eval()
    with caplog.at_level(logging.WARNING, logger="tilewright"):
        check(module, [(rows(4, 6),), *([(rows(7, 6),), (rows(2, 6),)] if dynamic else [])], dynamic=dynamic)
    assert len(built) == 2
    assert [len(graph.inputs) for graph in built] == [1, 2]  # parameters are constants of the part that reads them
    assert caplog.text.count("stays with PyTorch") == 1
    for text in (
        "11 operations in 2 engines",
        "1 operation",
        "aten.linalg_householder_product",
        "test_torch_compile_partition.py:",
    ):
        assert text in caplog.text


@pytest.mark.parametrize("dynamic", [None, True])
def test_branches_and_loops_that_depend_on_data(built: list[Any], dynamic: bool | None) -> None:
    def body(m: Any, x: torch.Tensor) -> Any:
        h = m.a(x) * 2 + x.sum()
        y = torch.cond(h.sum() > 0, lambda h: m.a(m.b(h)), lambda h: h.cos() - 1, (h,))
        _, z = while_loop(lambda i, z: i < 3, lambda i, z: (i + 1, m.a(m.b(z)).tanh()), (torch.tensor(0), y))
        return z, scan(lambda total, row: (total + row, total * row), torch.zeros(8), h)

    x = rows(4, 6).abs()
    module = Module(body, **layers(a=(6, 8), b=(8, 6)))
    check(module, [(x,), (-9 * x,), (rows(11, 6) - 9,)], dynamic=dynamic)
    assert {node.op for graph in built for node in graph.nodes} >= {"if", "loop"}


def test_a_branch_with_an_operation_without_a_rule(built: list[Any], caplog: pytest.LogCaptureFixture) -> None:
    def body(m: Any, x: torch.Tensor) -> torch.Tensor:
        h = m.a(x) * 2
        y = torch.cond(h.sum() > 0, lambda h: second(h) + h, lambda h: h.cos() - 1, (h,))
        return m.b(torch.tanh(y * 3) + h)

    x = rows(4, 6).abs()
    with caplog.at_level(logging.WARNING, logger="tilewright"):
        check(Module(body, **layers(a=(6, 8), b=(8, 3))), [(x,), (-9 * x,)])
    assert len(built) == 2
    assert "cond (node 'cond')" in caplog.text
    assert "aten.linalg_householder_product.default inside: no import rule" in caplog.text


def test_several_results_and_views_across_borders(built: list[Any]) -> None:
    def body(m: Any, x: torch.Tensor) -> tuple[Any, ...]:
        h = m.a(x)
        values, indices = h.cummax(1)
        v = h.view(2, 2, 8).permute(1, 0, 2)
        strided = torch.as_strided(h, (2, 3), (1, 2))
        complex_view = torch.view_as_complex(h.view(4, 4, 2)).abs()
        return (
            m.b(values) + 1,
            indices,
            h.transpose(0, 1),
            h[:, :2],
            x.shape[0],
            None,
            v.cummin(0)[0] + v,
            strided * 2,
            complex_view,
        )

    check(Module(body, **layers(a=(6, 8), b=(8, 3))), [(rows(4, 6),)])
    assert built


def test_constants_computed_from_parameters_belong_to_each_part(built: list[Any]) -> None:
    def body(m: Any, x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        with torch.autocast("cpu", dtype=torch.bfloat16):
            h = m.a(x).relu()
        scale = torch.arange(8) * 0.25
        k = second(h.float() * scale)
        with torch.autocast("cpu", dtype=torch.bfloat16):
            return m.a(m.b(h * k)).float(), m.a.weight * 2, m.a.weight.t()

    check(Module(body, **layers(a=(6, 8), b=(8, 6))), [(rows(4, 6),)], tolerance={"rtol": 3e-2, "atol": 3e-2})
    assert [len(graph.inputs) for graph in built] == [1, 2]


def test_changed_buffers_and_arguments() -> None:
    class Cache(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear = nn.Linear(6, 6)
            self.register_buffer("cache", torch.zeros(4, 6))
            self.register_buffer("position", torch.zeros((), dtype=torch.int64))

        def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
            h = self.linear(x)
            k = second(h)
            self.cache[:2] = h[:2] * k[:2]
            self.position += 1
            x.add_(1)
            return (self.cache * 2 + k).relu().sum(-1), self.position * 2

    check(Cache().eval(), [(rows(4, 6),), (rows(4, 6) * 2,)])


@pytest.mark.parametrize("dynamic", [None, True])
def test_sizes_that_depend_on_data(sizes_from_data: None, built: list[Any], dynamic: bool | None) -> None:
    def body(m: Any, x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        h = m.a(x).relu() * 2 + 1
        chosen = torch.nonzero(x[:, 0] > 0)[:, 0]
        part = m.b(h[chosen]).tanh()
        return part, part.sum(0), torch.zeros_like(x).index_add(0, chosen, part), chosen

    calls = [(rows(14, 6),), (-rows(14, 6).abs(),), (rows(14, 6).abs(),), (rows(14, 6) * -1,)]  # one has none at all
    check(Module(body, **layers(a=(6, 8), b=(8, 6))), calls, dynamic=dynamic)
    assert len(built) == 2


def test_numbers_read_from_tensors(sizes_from_data: None, built: list[Any]) -> None:
    def body(m: Any, x: torch.Tensor) -> torch.Tensor:
        return m.a(x).relu() * x.sum().item() + m.b(x)

    check(Module(body, **layers(a=(6, 8), b=(6, 8))), [(rows(4, 6),), (rows(4, 6) + 1,)])
    assert built


def test_a_number_read_from_a_tensor_as_the_size_of_a_view(sizes_from_data: None, built: list[Any]) -> None:
    def body(m: Any, x: torch.Tensor) -> torch.Tensor:
        h = m.a(x).relu() * 2
        count = (h > 1).sum().item()
        torch._check(count >= 0)
        torch._check(count <= h.numel())
        return h.flatten()[:count] * 2

    check(Module(body, **layers(a=(6, 8))), [(rows(4, 6),), (rows(7, 6),)], dynamic=True)
    assert built


def test_assertions_are_pytorchs(built: list[Any]) -> None:
    def body(m: Any, x: torch.Tensor) -> torch.Tensor:
        h = m.a(x)
        torch._assert(h.sum() < 1e6, "too large")
        return h.relu() * 2

    module = Module(body, **layers(a=(6, 8)))
    check(module, [(rows(4, 6),)])
    assert built
    with torch.no_grad(), pytest.raises((RuntimeError, AssertionError), match="too large"):
        compiled(module)(torch.full((4, 6), 1e9) * torch.sign(module.a.weight.sum(0)))


RANDOM = {
    "dropout": lambda x: F.dropout(x, 0.4, True),
    "dropout of channels": lambda x: F.dropout1d(x, 0.4, True),
    "alpha dropout": lambda x: F.alpha_dropout(x, 0.3, True),
    "like": lambda x: torch.rand_like(x) + torch.randn_like(x),
    "new": lambda x: x + torch.randn(8) * torch.rand(8),
    "integers": lambda x: x[torch.randperm(5)] + torch.randint(0, 9, (5, 8)),
    "bernoulli": lambda x: torch.bernoulli(x.sigmoid()),
    "normal": lambda x: torch.normal(x, x.abs()) + torch.empty_like(x).normal_(1, 2),
    "samples": lambda x: torch.multinomial(x.softmax(-1), 8) + x,
    "gumbel": lambda x: F.gumbel_softmax(x),
    "rrelu": lambda x: F.rrelu(x, training=True),
    "distributions": lambda x: torch.empty_like(x).exponential_() + torch.empty_like(x).uniform_(1, 2),
}


@pytest.mark.parametrize("name", RANDOM)
def test_random_numbers_are_pytorchs(name: str, built: list[Any]) -> None:
    def body(m: Any, x: torch.Tensor) -> torch.Tensor:
        return m.b(torch.relu(RANDOM[name](m.a(x)) + m.a(x)))

    check(Module(body, **layers(a=(6, 8), b=(8, 3))), [(rows(5, 6),), (rows(5, 6),)])
    assert built


@pytest.mark.parametrize("gradients", [False, True])
def test_batch_norm_in_training(built: list[Any], gradients: bool) -> None:
    def body(m: Any, x: torch.Tensor) -> torch.Tensor:
        return m.linear(m.norm(m.convolution(x)).relu().mean((2, 3)))

    members = {"convolution": nn.Conv2d(3, 4, 3), "norm": nn.BatchNorm2d(4), "linear": nn.Linear(4, 2)}
    check(Module(body, **members).train(), [(rows(2, 3, 8, 8),), (rows(2, 3, 8, 8) * 2,)], gradients)
    assert built


def attention(m: Any, x: torch.Tensor) -> torch.Tensor:
    q, k, v = (part.view(2, 5, 2, 4).transpose(1, 2) for part in m.a(x).chunk(3, -1))
    mixed = F.scaled_dot_product_attention(q, k, v, is_causal=True)
    return m.b(mixed.transpose(1, 2).reshape(2, 5, 8))


def test_attention_is_one_operation(built: list[Any]) -> None:
    check(Module(attention, **layers(a=(8, 24), b=(8, 8))), [(rows(2, 5, 8),)])
    (graph,) = built
    assert "attention" in {node.op for node in graph.nodes}


GRADIENTS = {
    "linear": lambda m, x: m.b(F.gelu(m.a(x))),
    "foreign": in_the_middle,
    "norm": lambda m, x: F.layer_norm(m.b(m.a(x).softmax(-1)), (3,)),
    "views": lambda m, x: (m.a(x).view(2, 2, 8).transpose(0, 1) * m.b(m.a(x)).sum(), x.exp()),
    "dropout": lambda m, x: m.b(F.dropout(m.a(x), 0.5, True)),
    "indices": lambda m, x: m.b(m.a(x)[torch.tensor([0, 2, 2])]).logsumexp(0),
}


@pytest.mark.parametrize("name", GRADIENTS)
def test_gradients(name: str, built: list[Any], caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING, logger="tilewright"):
        check(Module(GRADIENTS[name], **layers(a=(6, 8), b=(8, 3))), [(rows(4, 6),), (rows(4, 6) + 1,)], gradients=True)
    assert built
    assert caplog.text.count("gradients are enabled") == 1 and "torch.no_grad()" in caplog.text


def test_gradients_of_attention(built: list[Any]) -> None:
    check(Module(attention, **layers(a=(8, 24), b=(8, 8))), [(rows(2, 5, 8),)], gradients=True)
    assert built


def test_training_steps(built: list[Any]) -> None:
    """Parameters of graphs with gradients are inputs: a step of an optimiser builds nothing."""
    losses = []
    for run in (lambda module: module, compiled):
        module = Module(lambda m, x: m.b(torch.tanh(m.a(x))), **layers(a=(6, 8), b=(8, 1)))
        optimiser, step = torch.optim.SGD(module.parameters(), lr=0.1), run(module)
        losses.append([])
        for _ in range(4):
            optimiser.zero_grad()
            loss = (step(rows(4, 6)) - 1).square().mean()
            loss.backward()
            optimiser.step()
            losses[-1].append(float(loss.detach()))
    assert losses[1] == pytest.approx(losses[0], rel=1e-4)
    assert len(built) == 1


def test_graphs_whose_gradients_cannot_be_traced_stay(caplog: pytest.LogCaptureFixture) -> None:
    def body(m: Any, x: torch.Tensor) -> torch.Tensor:
        y = m.a(x)
        x.add_(1)  # the product's gradient needs what it was
        return y

    x, module = rows(4, 6), Module(body, **layers(a=(6, 8)))
    with caplog.at_level(logging.WARNING, logger="tilewright"):
        torch.testing.assert_close(compiled(module)(x.clone()), module.a(x))
    assert "stays with PyTorch: RuntimeError" in caplog.text


@pytest.mark.parametrize("options", [{"fullgraph": True}, {"options": {"fallback": "error"}}])
def test_fallbacks_that_are_errors(options: dict[str, Any], built: list[Any]) -> None:
    module = Module(in_the_middle, **layers(a=(6, 8), b=(8, 3)))
    run = compiled(module, **options)
    for _ in range(2):
        with (
            torch.no_grad(),
            pytest.raises(UnsupportedOperationError, match=r"(?s)aten\.linalg_householder_product.*no import rule"),
        ):
            run(rows(4, 6))
    assert not built


def _masked(m: Any, x: torch.Tensor) -> tuple[torch.Tensor, ...]:
    chosen = x.relu().sum(1) > 1
    y = m.a(x).relu()
    y[chosen] = y[chosen].flip(0) * 2
    return m.b(y).tanh(), m.b(y[chosen]).sum(0), y.repeat_interleave(chosen.long() + 1, 0).exp(), chosen.nonzero() + 1


def _drawn(m: Any, x: torch.Tensor) -> torch.Tensor:
    return m.b(F.dropout(m.a(x).relu(), 0.5, True)).tanh()


@pytest.mark.parametrize("body", [_masked, _drawn])
def test_fullgraph_with_what_is_always_pytorchs(body: Any, built: list[Any]) -> None:
    """Sizes that depend on data, and random numbers, are no fallback."""
    module = Module(body, **layers(a=(6, 8), b=(8, 3)))
    check(module, [(rows(4, 6),), (rows(7, 6),), (-rows(5, 6).abs(),)], fullgraph=True)
    assert built


def test_places_from_data_are_left_to_pytorch(caplog: pytest.LogCaptureFixture) -> None:
    def body(m: Any, x: torch.Tensor) -> torch.Tensor:
        times = (x[:, 0] > 0) + 1
        return m.a(x).exp().repeat_interleave(torch.cat([times[:-1], 9 - times[:-1].sum(0, True)]), 0, output_size=9)

    with caplog.at_level(logging.INFO, logger="tilewright"):
        check(Module(body, **layers(a=(6, 8))), [(rows(4, 6),)], fullgraph=True)
    assert "positions that depend on the data" in caplog.text and "add a rule" not in caplog.text


@pytest.mark.parametrize("dynamic", [False, True])
def test_fixed_numbers_of_places(dynamic: bool, built: list[Any]) -> None:
    def body(m: Any, x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        places = torch.nonzero_static(x > 0, size=7, fill_value=-2)
        return m.a(x).exp()[places[:, 0].clamp(min=0)], places

    given = [(rows(4, 6),), *([(rows(7, 6),), (-rows(2, 6).abs(),)] if dynamic else [])]
    check(Module(body, **layers(a=(6, 8))), given, fullgraph=True, dynamic=dynamic)
    assert len(built) == 1


def _heads(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    split = [each.reshape(each.shape[0], each.shape[1], 4, -1).transpose(1, 2) for each in (q, k, v)]
    return F.scaled_dot_product_attention(*split).transpose(1, 2).flatten(2)


def _named(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    return F.scaled_dot_product_attention(value=v, query=q, key=k)


@pytest.mark.parametrize("attend", [F.scaled_dot_product_attention, _named, _heads])
def test_attention_of_all_sizes_has_a_head_width(attend: Any, built: list[Any]) -> None:
    run = torch.compile(attend, backend="tilewright", fullgraph=True, dynamic=True)
    for rows_q, rows_k, width, width_v in ((5, 7, 8, 12), (6, 3, 8, 12), (6, 3, 16, 16)):
        given = torch.randn(2, rows_q, width), torch.randn(2, rows_k, width), torch.randn(2, rows_k, width_v)
        torch.testing.assert_close(run(*given), attend(*given))
    assert len(built) == 2


def test_an_element_of_an_order_of_unknown_length(built: list[Any]) -> None:
    run = torch.compile(lambda x: x.kthvalue(3, 1), backend="tilewright", fullgraph=True, dynamic=True)
    for shape in ((4, 5), (3, 9), (2, 3)):
        x = torch.randn(shape)
        assert all(map(torch.equal, run(x), x.kthvalue(3, 1)))
    assert len(built) == 1


def test_fullgraph_with_a_fallback_that_is_wanted() -> None:
    module = Module(in_the_middle, **layers(a=(6, 8), b=(8, 3)))
    check(module, [(rows(4, 6),)], fullgraph=False)
    run = compiled(module, fullgraph=True, options={"fallback": "torch"})
    with torch.no_grad():
        torch.testing.assert_close(run(rows(4, 6)), module(rows(4, 6)))


def test_operations_without_tensors_are_computed_at_once(built: list[Any]) -> None:
    """Windows and frequencies: Dynamo imports its graphs inside its fake mode, where they would have no numbers."""

    def body(m: Any, x: torch.Tensor) -> torch.Tensor:
        return m.a(x * torch.kaiser_window(6) * torch.fft.fftfreq(6, 0.5) + torch.hamming_window(6, periodic=False))

    module = Module(body, **layers(a=(6, 8)))
    with torch.no_grad():
        torch.testing.assert_close(compiled(module, fullgraph=True)(rows(4, 6)), module(rows(4, 6)))
    assert len(built) == 1


def test_an_unknown_fallback() -> None:
    from tilewright.importers.torch_compile import backend

    with pytest.raises(TilewrightError, match="unknown fallback 'never'"):
        backend(torch.fx.symbolic_trace(nn.Identity()), [torch.randn(2)], options={"fallback": "never"})


def test_parts_that_are_too_small_stay(built: list[Any], caplog: pytest.LogCaptureFixture) -> None:
    def body(m: Any, x: torch.Tensor) -> torch.Tensor:
        for _ in range(3):
            x = second(x.relu()) * x
        return m.a(x)

    with caplog.at_level(logging.WARNING, logger="tilewright"):
        check(Module(body, **layers(a=(6, 8))), [(rows(4, 6),)])
    assert len(built) == 1
    assert "parts too small" in caplog.text and "3 times, first: aten.linalg_householder_product" in caplog.text


@pytest.mark.parametrize(
    ("body", "shape", "engines"),
    [
        (lambda m, x: (x > 0).nonzero(), (4, 6), 0),
        (lambda m, x: torch.masked_select(x.exp(), x > 0), (4, 6), 0),
        (lambda m, x: torch.unique((x[:, 0] * 10).long()), (4, 6), 0),
        (lambda m, x: torch.unique(x.relu()) * 2, (4, 6), 0),  # after the break too
        (lambda m, x: (x > 0).nonzero(), (80, 90), 1),  # enough elements
        (lambda m, x: (x * 2 + x.exp() > 0).nonzero(), (4, 6), 1),  # enough operations
        (lambda m, x: torch.unique(x.cumsum(1)), (4, 6), 1),  # not elementwise
        (lambda m, x: torch.unique(m.a(x)), (4, 6), 1),
    ],
)
def test_pieces_between_graph_breaks_that_are_too_small_stay(
    built: list[Any], caplog: pytest.LogCaptureFixture, body: Any, shape: tuple[int, ...], engines: int
) -> None:
    module = Module(body, **layers(a=(6, 8)))
    with caplog.at_level(logging.INFO, logger="tilewright"), torch.no_grad():
        torch.testing.assert_close(compiled(module)(rows(*shape)), module(rows(*shape)))
    assert len(built) == engines
    assert ("between graph breaks stay with PyTorch" in caplog.text) == (not engines)
    assert not [record for record in caplog.records if record.levelno > logging.INFO]


def test_operations_without_which_an_engine_can_be_built(
    monkeypatch: pytest.MonkeyPatch, built: list[Any], caplog: pytest.LogCaptureFixture
) -> None:
    build = torch_part.build

    def refuse(graph: Any, *arguments: Any, **options: Any) -> Any:
        if any(node.op == "tanh" for node in graph.nodes):
            raise TilewrightError("no kernel for tanh")
        return build(graph, *arguments, **options)

    monkeypatch.setattr(torch_part, "build", refuse)
    module = Module(lambda m, x: m.b(torch.tanh(m.a(x).exp() * 2)).sigmoid() + 1, **layers(a=(6, 8), b=(8, 3)))
    with caplog.at_level(logging.WARNING, logger="tilewright"):
        check(module, [(rows(4, 6),), (rows(4, 6),)])
    assert {node.op for graph in built for node in graph.nodes} >= {"matmul", "exp", "sigmoid"}
    assert "aten.tanh.default of" in caplog.text and "no kernel for tanh" in caplog.text


def test_engines_that_do_not_run_leave_the_call_to_pytorch(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    from tilewright.engine.engine import Engine

    def fail(*arguments: Any, **named: Any) -> Any:
        raise TilewrightError("out of memory")

    monkeypatch.setattr(Engine, "run", fail)
    with caplog.at_level(logging.WARNING, logger="tilewright"):
        check(Module(in_the_middle, **layers(a=(6, 8), b=(8, 3))), [(rows(4, 6),), (rows(4, 6),)])
    assert caplog.text.count("out of memory") == 2  # once for each part


def test_numbers_that_may_be_negative(built: list[Any]) -> None:
    run = compiled(lambda x, n: (torch.relu(x) * 2 + 1).tanh() * n, dynamic=True)
    x = rows(4, 6)
    for number in (3, 7, 0, -2, 1):
        torch.testing.assert_close(run(x, number), (torch.relu(x) * 2 + 1).tanh() * number)
    assert built


def test_sizes_through_floats(built: list[Any], caplog: pytest.LogCaptureFixture) -> None:
    def enlarged(x: torch.Tensor) -> torch.Tensor:
        return F.interpolate(x, scale_factor=1.7, mode="bilinear") + 1

    run = compiled(enlarged, dynamic=True)
    for size in (5, 4, 7):
        x = rows(1, 2, size, size + 1)
        torch.testing.assert_close(run(x), enlarged(x), rtol=1e-4, atol=1e-5)
    assert len(built) == 1 and "stays with PyTorch" not in caplog.text


def test_floats_of_sizes_are_operands(built: list[Any], caplog: pytest.LogCaptureFixture) -> None:
    def scaled(x: torch.Tensor) -> torch.Tensor:
        wide = torch.relu(x) * (x.shape[0] / x.shape[1]) + max(x.shape[0] / 3, x.shape[1] / 2)
        return torch.where(wide > x.shape[1] / 4, wide, 1 - x.shape[0] / 7).softmax(-1)

    run = compiled(scaled, dynamic=True)
    for shape in ((4, 6), (7, 3), (5, 5)):
        x = rows(*shape)
        torch.testing.assert_close(run(x), scaled(x), rtol=1e-4, atol=1e-5)
    assert len(built) == 1 and "stays with PyTorch" not in caplog.text

    needed = compiled(lambda x: F.elu(torch.relu(x) + 1, x.shape[0] / 3), dynamic=True)
    torch.testing.assert_close(needed(x), F.elu(torch.relu(x) + 1, x.shape[0] / 3))
    assert "a float that the run computes" in caplog.text


@pytest.mark.parametrize("name", ["flash", "efficient", "cudnn"])
def test_attention_of_gpus_is_one_operation(name: str) -> None:
    """As in a graph traced on a GPU; where results for the backward pass are read, it stays with PyTorch."""
    from torch._subclasses.fake_tensor import FakeTensorMode

    from tilewright.importers.torch_survey import Survey

    operation = getattr(torch.ops.aten, f"_scaled_dot_product_{name}_attention").default
    for read in (0, 1):
        graph = torch.fx.Graph()
        with FakeTensorMode():
            tensors = [graph.placeholder(letter) for letter in "qkv"]
            for node in tensors:
                node.meta["val"] = torch.empty(2, 4, 8, 16, dtype=torch.float16)
            call = graph.call_function(operation, (*tensors, *([] if name == "flash" else [None, False])))
            call.meta["val"] = (tensors[0].meta["val"], *[torch.empty(2, 4, 8) for _ in operation._schema.returns[1:]])
        result = graph.call_function(operator.getitem, (call, read))
        result.meta["val"] = call.meta["val"][read]
        graph.output((result,))
        survey = Survey(torch.fx.GraphModule({}, graph), set(), "cpu", {})
        assert (call in survey.stays) == bool(read)
