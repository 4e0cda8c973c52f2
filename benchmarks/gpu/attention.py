"""Attention of the library's Hopper kernel beside cuDNN, FlashAttention-2 and FlexAttention, as PyTorch has them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.functional import scaled_dot_product_attention

from benchmarks.gpu.harness import OURS, Case, family, fastest, on_hopper
from tilewright.kernels.hopper.forms import AttentionForm
from tilewright.kernels.hopper.launch import Run, prepare_attention

CASES = (
    # batches, heads, key heads, sequence, head dimension, causal
    (4, 32, 32, 4096, 128, False),
    (4, 32, 32, 4096, 128, True),
    (2, 32, 8, 8192, 128, True),
    (1, 32, 8, 16384, 128, True),
    (4, 32, 32, 4096, 64, True),
    (16, 32, 32, 1024, 64, False),
)
FORMS = {
    128: ({"BN": 80, "CONSUMERS": 3}, {"BN": 128, "CONSUMERS": 2}),
    64: ({"BN": 96, "CONSUMERS": 3}, {"BN": 128, "CONSUMERS": 2}, {"BN": 192, "CONSUMERS": 2}),
}
BACKENDS = {"cuDNN": SDPBackend.CUDNN_ATTENTION, "FlashAttention-2": SDPBackend.FLASH_ATTENTION}


@family("attention", floor=1.05)
def attention(quick: bool) -> Iterator[Case]:
    """softmax(Q K^T / sqrt(d)) V in bf16; a causal score counts half."""
    for case in (CASES[:2] if quick else CASES) if on_hopper() else ():
        yield compare(*case, with_flex=not quick)


def compare(
    batches: int, heads: int, key_heads: int, length: int, dimension: int, causal: bool, with_flex: bool
) -> Case:
    q = torch.randn(batches, heads, length, dimension, device="cuda").bfloat16()
    k, v = (torch.randn(batches, key_heads, length, dimension, device="cuda").bfloat16() for _ in range(2))
    grouped = f"{heads}/{key_heads}" if heads != key_heads else f"{heads}"
    name = f"b{batches} h{grouped} s{length} d{dimension} {'causal' if causal else 'full'}"
    scores = batches * heads * length * length * (0.5 if causal else 1)
    case = Case(name, gflop=4e-9 * scores * dimension)
    ours = torch.empty_like(q)
    form, run = chosen(dimension, causal, q, k, v, ours)
    case.notes["form"] = str(form)
    case.add(OURS, lambda copy: run(), lambda: ours[:1, :1])
    for label, compute in peers(q, k, v, causal, with_flex).items():
        case.add(label, lambda copy, compute=compute: compute())
    case.check(reference(q[:1, :1], k[:1, :1], v[:1, :1], causal), 5e-3)
    return case


def chosen(dimension: int, causal: bool, q: Any, k: Any, v: Any, out: Any) -> tuple[AttentionForm, Run]:
    """The faster of the forms for a head dimension."""
    forms = [AttentionForm(D=dimension, CAUSAL=causal, **given) for given in FORMS[dimension]]
    place = lambda values: torch.from_numpy(values).cuda()  # noqa: E731
    runs = {form: prepare_attention(form, q, k, v, out, place=place) for form in forms}
    best: AttentionForm = fastest(forms, runs.__getitem__)
    return best, runs[best]


def peers(q: Any, k: Any, v: Any, causal: bool, with_flex: bool) -> dict[str, Callable[[], Any]]:
    """Those of the peers that take the case here."""
    found: dict[str, Callable[[], Any]] = {}
    grouped = q.shape[1] != k.shape[1]
    for label, backend in BACKENDS.items():

        def run(backend: Any = backend) -> Any:
            with sdpa_kernel(backend):
                return scaled_dot_product_attention(q, k, v, is_causal=causal, enable_gqa=grouped)

        found[label] = run
    if with_flex:
        found["FlexAttention"] = flex(q, k, v, causal, grouped)
    return {label: run for label, run in found.items() if works(label, run)}


def flex(q: Any, k: Any, v: Any, causal: bool, grouped: bool) -> Callable[[], Any]:
    from torch.nn.attention.flex_attention import create_block_mask, flex_attention

    compiled = torch.compile(flex_attention)
    length = q.shape[2]
    mask = create_block_mask(lambda b, h, i, j: i >= j, None, None, length, length) if causal else None
    return lambda: compiled(q, k, v, block_mask=mask, enable_gqa=grouped)


def works(label: str, run: Callable[[], Any]) -> bool:
    try:
        run()
        torch.cuda.synchronize()
    except Exception as error:  # a peer that refuses the case is none, and the output says so
        print(f"  {label} does not take this case: {type(error).__name__}: {str(error).splitlines()[0]}", flush=True)
        return False
    return True


def reference(q: Any, k: Any, v: Any, causal: bool) -> Any:
    """In float64."""
    q, k, v = q.double(), k.double(), v.double()
    scores = q @ k.transpose(-1, -2) / q.shape[-1] ** 0.5
    if causal:
        unseen = torch.ones(scores.shape[-2:], dtype=torch.bool, device=scores.device).triu(1)
        scores.masked_fill_(unseen, float("-inf"))
    return scores.softmax(-1) @ v
