"""`flex_attention`: scores that a function changes, and masks of blocks."""

from __future__ import annotations

from typing import Any

import pytest

torch = pytest.importorskip("torch")
flex = pytest.importorskip("torch.nn.attention.flex_attention")

from torch import nn  # noqa: E402

import tilewright  # noqa: E402
from tests.host.compile_support import compiled, fresh  # noqa: E402, F401

pytestmark = [pytest.mark.usefixtures("quick_engines"), pytest.mark.filterwarnings("ignore")]


class Attention(nn.Module):
    """Two heads of keys for four of queries, a learned slope for each, and only what came before."""

    def __init__(self) -> None:
        super().__init__()
        self.slope = nn.Parameter(torch.tensor([0.1, 0.2, 0.3, 0.4]))

    def forward(self, q: Any, k: Any, v: Any) -> Any:
        def lowered(score: Any, batch: Any, head: Any, query: Any, key: Any) -> Any:
            return score - self.slope[head] * (query - key)

        length = q.shape[2]
        mask = flex.create_block_mask(
            lambda batch, head, query, key: query >= key, None, None, length, length, device="cpu", BLOCK_SIZE=16
        )
        return flex.flex_attention(q, k, v, score_mod=lowered, block_mask=mask, enable_gqa=True)


def inputs(batch: int) -> tuple[Any, ...]:
    return torch.randn(batch, 4, 32, 16), torch.randn(batch, 2, 32, 16), torch.randn(batch, 2, 32, 16)


def test_exported() -> None:
    module = Attention().eval().requires_grad_(False)
    shapes = {name: {0: ("batch", 1, 4)} for name in "qkv"}
    engine = tilewright.compile(module, inputs(2), shapes, target="cpu", effort=0)
    for batch in (1, 2, 4):
        given = inputs(batch)
        torch.testing.assert_close(engine(*given), module(*given), rtol=1e-4, atol=1e-5)


def test_compiled(caplog: pytest.LogCaptureFixture) -> None:
    module = Attention().eval().requires_grad_(False)
    given = inputs(2)
    with torch.no_grad():
        torch.testing.assert_close(compiled(module)(*given), module(*given), rtol=1e-4, atol=1e-5)
    assert "stays with PyTorch" not in caplog.text
