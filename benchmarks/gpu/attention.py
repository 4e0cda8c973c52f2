"""Attention forward against what PyTorch offers, and what its options cost."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.functional import scaled_dot_product_attention

from benchmarks.gpu.harness import OURS, Case, family, on_hopper
from benchmarks.gpu.products import verify
from tilewright import ops

# batches, heads, key heads, rows, head size, causal
SHAPES = [
    (4, 32, 32, 4096, 128, False), (4, 32, 32, 4096, 128, True), (2, 32, 8, 8192, 128, True),
    (1, 32, 8, 16384, 128, True), (4, 32, 32, 4096, 64, True), (16, 32, 32, 1024, 64, False),
]  # fmt: skip


def tensors(shape: tuple[Any, ...]) -> tuple[Any, Any, Any]:
    """Random q, k and v."""
    batches, heads, key_heads, rows, size, _ = shape
    return tuple(  # type: ignore[return-value]
        torch.randn(batches, count, rows, size, device="cuda", dtype=torch.bfloat16)
        for count in (heads, key_heads, key_heads)
    )


def reference(q: Any, k: Any, v: Any, causal: bool) -> Any:
    """In float64, head by head; when causal the last query sees the last key."""
    result = torch.empty(q.shape, device="cuda", dtype=torch.float32)
    group, (queries, keys) = q.shape[1] // k.shape[1], (q.shape[2], k.shape[2])
    hidden = torch.ones(queries, keys, device="cuda", dtype=torch.bool).triu(1 + keys - queries) if causal else None
    for batch in range(q.shape[0]):
        for head in range(q.shape[1]):
            scores = q[batch, head].double() @ k[batch, head // group].double().T / q.shape[3] ** 0.5
            if hidden is not None:
                scores.masked_fill_(hidden, float("-inf"))
            result[batch, head] = torch.softmax(scores, -1) @ v[batch, head // group].double()
    return result


def add_peers(case: Case, q: Any, k: Any, v: Any, causal: bool, flex: bool) -> None:
    """cuDNN, FlashAttention-2 and, when wanted, FlexAttention."""
    for name, backend in (("cuDNN", SDPBackend.CUDNN_ATTENTION), ("FlashAttention-2", SDPBackend.FLASH_ATTENTION)):
        results: dict[int, Any] = {}

        def peer(copy: int, backend: Any = backend, results: dict[int, Any] = results) -> None:
            with sdpa_kernel(backend):
                results[0] = scaled_dot_product_attention(
                    q, k, v, is_causal=causal, enable_gqa=q.shape[1] != k.shape[1]
                )

        try:
            peer(0)
        except RuntimeError as error:
            case.notes[name] = f"not offered: {error}"
            continue
        case.add(name, peer, lambda results=results: results[0])
    if flex:
        _add_flex(case, q, k, v, causal)


def _add_flex(case: Case, q: Any, k: Any, v: Any, causal: bool) -> None:
    from torch.nn.attention.flex_attention import create_block_mask, flex_attention

    mask = None
    if causal:
        rows, keys = q.shape[2], k.shape[2]
        mask = create_block_mask(lambda b, h, row, key: row >= key, None, None, rows, keys, device="cuda")
    compiled = torch.compile(flex_attention, dynamic=False)
    results: dict[int, Any] = {}

    def peer(copy: int) -> None:
        results[0] = compiled(q, k, v, block_mask=mask, enable_gqa=q.shape[1] != k.shape[1])

    peer(0)
    case.add("FlexAttention", peer, lambda: results[0])


def work(shape: tuple[Any, ...]) -> float:
    """GFLOP of one call: two products, half of them when causal."""
    batches, heads, _, rows, size, causal = shape
    return 4.0 * batches * heads * rows * rows * size * (0.5 if causal else 1.0) / 1e9


def title(shape: tuple[Any, ...]) -> str:
    """A shape in words."""
    batches, heads, key_heads, rows, size, causal = shape
    group = f"/{key_heads}" if heads != key_heads else ""
    return f"b{batches} h{heads}{group} s{rows} d{size} {'causal' if causal else 'full'}"


@family("attention", floor=1.05)
def attention(quick: bool) -> Iterator[Case]:
    """bfloat16 forward against the best of three peers."""
    for shape in (SHAPES[:2] if quick else SHAPES) if on_hopper() else ():
        q, k, v = tensors(shape)
        causal = shape[-1]
        out = torch.empty_like(q)
        case = Case(title(shape), gflop=work(shape))
        case.add(OURS, _ours(q, k, v, out, causal), lambda out=out: out)
        add_peers(case, q, k, v, causal, flex=not quick)
        verify(case, reference(q, k, v, causal), 5e-3)
        yield case


def _flash(q: Any, k: Any, v: Any, causal: bool) -> Any:
    with sdpa_kernel(SDPBackend.FLASH_ATTENTION):
        return scaled_dot_product_attention(q, k, v, is_causal=causal)


def _ours(q: Any, k: Any, v: Any, out: Any, causal: bool, **options: Any) -> Any:
    return lambda copy: ops.attention(q, k, v, causal=causal, out=out, **options)


@family("attention options", floor=0.98)
def options(quick: bool) -> Iterator[Case]:
    """Log-sum-exp, lengths and fewer queries than keys against the plain call: what they cost."""
    for shape in SHAPES[:2] if on_hopper() else ():
        q, k, v = tensors(shape)
        causal, rows = shape[-1], shape[3]
        lengths = torch.tensor([[rows, rows]] * shape[0], dtype=torch.int32, device="cuda")
        out, plain = torch.empty_like(q), torch.empty_like(q)
        for name, chosen in (("log-sum-exp", {"return_lse": True}), ("lengths", {"lengths": lengths})):
            case = Case(f"{title(shape)}, {name}", gflop=work(shape))
            case.add(OURS, _ours(q, k, v, out, causal, **chosen), lambda out=out: out)
            case.add("plain", _ours(q, k, v, plain, causal), lambda plain=plain: plain)
            case.vendors["FlashAttention-2"] = lambda q=q, k=k, v=v, causal=causal: _flash(q, k, v, causal)
            case.check(reference(q, k, v, causal), 5e-3)
            yield case
        yield fewer_queries(causal)


def fewer_queries(causal: bool) -> Case:
    """2048 queries of 4096 keys, against a square call with as much to do: other batches, the same products."""
    batches, square = (16, 12) if causal else (8, 4)
    whole = (square, 32, 32, 4096, 128, causal)
    q, k, v = tensors((batches, *whole[1:]))
    q = q[:, :, :2048].contiguous()
    out = torch.empty_like(q)
    case = Case(f"b{batches} h32 s2048/4096 d128 {'causal' if causal else 'full'}, fewer queries", gflop=work(whole))
    case.add(OURS, _ours(q, k, v, out, causal), lambda: out)
    others = tensors(whole)
    case.add("plain", _ours(*others, torch.empty_like(others[0]), causal))
    case.check(reference(q, k, v, causal), 5e-3)
    return case
