"""Control flow of PyTorch that depends on data: branches, loops and scans as graphs inside the graph."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from torch import nn  # noqa: E402
from torch._higher_order_ops import scan, while_loop  # noqa: E402
from torch._higher_order_ops.associative_scan import associative_scan_op  # noqa: E402
from torch._higher_order_ops.map import map as map_rows  # noqa: E402

from tests.host.test_import_torch_data import BATCH, check, rows  # noqa: E402
from tilewright.importers import import_model  # noqa: E402

Function = Callable[[Any, torch.Tensor], Any]


class Model(nn.Module):
    """A function of two layers and x."""

    def __init__(self, function: Function) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.function = function
        self.a, self.b = nn.Linear(3, 3), nn.Linear(3, 3)

    def forward(self, x: torch.Tensor) -> Any:
        return self.function(self, x)


def control_nodes(function: Function, x: torch.Tensor) -> list[str]:
    """The nodes with graphs inside that a function becomes."""
    graph = import_model(Model(function).eval(), (x,))
    return [node.op for node in graph.nodes if node.op in ("if", "loop")]


def layers(m: Any, x: torch.Tensor) -> Any:
    return torch.cond(x.sum() > 0, lambda x: m.a(x), lambda x: m.b(x).relu(), (x,))


def chosen_by_shape(m: Any, x: torch.Tensor) -> Any:
    return torch.cond(x.shape[0] > 4, lambda x: m.a(x), lambda x: x - 1, (x,))


def sizes_inside(m: Any, x: torch.Tensor) -> Any:
    return torch.cond(x.sum() > 0, lambda x: x[x > 0].sum(), lambda x: x.sum(), (x,)) + 1


def nested(m: Any, x: torch.Tensor) -> Any:
    def inner(x: torch.Tensor) -> Any:
        return torch.cond(x.max() > 2, lambda x: x @ x.t(), lambda x: (m.a(x) @ x.t()).exp(), (x,))

    return torch.cond(x.sum() > 0, inner, lambda x: x @ x.t() * 2, (x,))


@pytest.mark.parametrize("function", [layers, chosen_by_shape, sizes_inside, nested])
def test_branches(function: Function) -> None:
    check(Model(function).eval(), rows(5, 1, 2, 9), BATCH)


def test_small_branches_are_both_computed() -> None:
    def small(m: Any, x: torch.Tensor) -> Any:
        return torch.cond(x.sum() > 0, lambda x: x.sin(), lambda x: x.log().neg(), (x,))

    check(Model(small).eval(), rows(5, 1), BATCH)
    assert control_nodes(small, torch.ones(2, 3)) == []
    assert control_nodes(layers, torch.ones(2, 3)) == ["if"]


def counted(m: Any, x: torch.Tensor) -> Any:
    """Trips that the data tells; the number of the round is a tensor."""
    count = x[:, 0].gt(0).sum()
    start = torch.zeros((), dtype=torch.int64)
    return while_loop(lambda i, x: i < count, lambda i, x: (i + 1, m.a(x)), (start, x))


def numbered(m: Any, x: torch.Tensor) -> Any:
    """The number of the round is a Python number."""
    return while_loop(lambda i, x: i < 4, lambda i, x: (i + 1, x * 1.5), (0, x))


def until_large(m: Any, x: torch.Tensor) -> Any:
    def body(i: Any, x: torch.Tensor) -> Any:
        return i + 1, torch.cond(i % 2 == 0, lambda x: m.a(x) + 2, lambda x: x + 1.0, (x,))

    start = torch.zeros((), dtype=torch.int64)
    return while_loop(lambda i, x: (x.abs().max() < 10) & (i < 9), body, (start, x))


@pytest.mark.parametrize("function", [counted, numbered, until_large])
def test_loops(function: Function) -> None:
    check(Model(function).eval(), rows(5, 1, 2, 9), BATCH)


def forwards(m: Any, x: torch.Tensor) -> Any:
    return scan(lambda c, row: (m.a(c) + row, c * row), torch.zeros(3), x, dim=0)


def backwards(m: Any, x: torch.Tensor) -> Any:
    return scan(lambda c, row: (c + row, c * row), torch.zeros(3), x, dim=0, reverse=True)


def each_row(m: Any, x: torch.Tensor) -> Any:
    return map_rows(lambda row, scale: m.a(row) * scale, x, torch.full((3,), 2.0))


def combined(m: Any, x: torch.Tensor) -> Any:
    return associative_scan_op(lambda a, b, c, d: (a * c, b * c + d), [x * 0.1, x], ())


@pytest.mark.parametrize("function", [forwards, backwards, each_row, combined])
def test_rows_one_after_the_other(function: Function) -> None:
    check(Model(function).eval(), rows(5, 1, 2, 9), BATCH)


def test_few_rounds_are_unrolled() -> None:
    x = torch.randn(5, 3)
    check(Model(forwards).eval(), [(x,), (-x,)])
    assert control_nodes(forwards, x) == []
    assert control_nodes(forwards, torch.randn(20, 3)) == ["loop"]


class Decoder(nn.Module):
    """Greedy decoding until the token 0, at most six."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.hidden, self.tokens, self.logits = nn.Linear(8, 8), nn.Embedding(8, 8), nn.Linear(8, 8)

    def forward(self, token: torch.Tensor, state: torch.Tensor) -> Any:
        def going(i: Any, token: Any, state: Any, found: Any) -> Any:
            return (i < 6) & (token != 0)

        def step(i: Any, token: Any, state: Any, found: Any) -> Any:
            state = torch.tanh(self.hidden(state) + self.tokens(token))
            token = self.logits(state).argmax(-1)
            return i + 1, token, state, found.index_put((i,), token)

        first = torch.zeros((), dtype=torch.int64), token, state, torch.zeros(6, dtype=torch.int64)
        return while_loop(going, step, first)


def test_a_decoder() -> None:
    torch.manual_seed(1)
    check(Decoder().eval(), [(torch.tensor(token), torch.randn(8)) for token in (1, 2, 0, 5)])
