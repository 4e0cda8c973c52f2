"""conch-triton-kernels: what servers of language models need, vLLM's unified attention among it."""

# mypy: ignore-errors

from __future__ import annotations

import torch
import torch.nn.functional as F

from benchmarks.programs.case import Place, Program, case

_PAGE = 16


def _paged(place: Place, batch: int, length: int, pairs: int, size: int):
    """Keys and values in pages of a pool, in random order, and the table of each sequence's pages."""
    pages = -(-length // _PAGE)
    pool = batch * pages
    keys, values = (place.normal(pool, _PAGE, pairs, size) for _ in range(2))
    table = torch.randperm(pool, device=place.device).to(torch.int32).view(batch, pages)
    return keys, values, table


def _decoded(length: int):
    """One query a sequence over its pages, in PyTorch."""

    def function(q, keys, values, table):
        k, v = (cache[table.long()].flatten(1, 2)[:, :length].transpose(1, 2) for cache in (keys, values))
        repeats = q.shape[1] // k.shape[1]
        k, v = (x.repeat_interleave(repeats, 1) for x in (k, v))
        return F.scaled_dot_product_attention(q[:, :, None], k, v)[:, :, 0]

    return function


@case("vLLM unified attention, decoding", cuda=[(64, 2048, 32, 8, 128)], multiples=(1, 16, 0, 0, 0))
def unified_decoding(place: Place, batch: int, length: int, heads: int, pairs: int, size: int) -> Program:
    from conch.third_party.vllm.unified_attention import unified_attention

    q = place.normal(batch, heads, size)
    keys, values, table = _paged(place, batch, length, pairs, size)
    out = torch.empty_like(q)
    starts = torch.arange(batch + 1, device=place.device, dtype=torch.int32)
    lengths = torch.full((batch,), length, device=place.device, dtype=torch.int32)

    def call():
        unified_attention(
            q=q, k=keys, v=values, out=out, cu_seqlens_q=starts, max_seqlen_q=1, seqused_k=lengths,
            max_seqlen_k=length, softmax_scale=size**-0.5, causal=True, window_size=(-1, -1), block_table=table,
            softcap=0.0, q_descale=None, k_descale=None, v_descale=None,
        )  # fmt: skip
        return out

    return Program(call, _decoded(length), (q, keys, values, table), tolerance=1e-2)


@case("vLLM unified attention, prompts", cuda=[(4, 2048, 32, 8, 128)], multiples=(1, 16, 0, 0, 0))
def unified_prompts(place: Place, batch: int, length: int, heads: int, pairs: int, size: int) -> Program:
    from conch.third_party.vllm.unified_attention import unified_attention

    q = place.normal(batch * length, heads, size)
    keys, values, table = _paged(place, batch, length, pairs, size)
    out = torch.empty_like(q)
    starts = torch.arange(batch + 1, device=place.device, dtype=torch.int32) * length
    lengths = torch.full((batch,), length, device=place.device, dtype=torch.int32)

    def call():
        unified_attention(
            q=q, k=keys, v=values, out=out, cu_seqlens_q=starts, max_seqlen_q=length, seqused_k=lengths,
            max_seqlen_k=length, softmax_scale=size**-0.5, causal=True, window_size=(-1, -1), block_table=table,
            softcap=0.0, q_descale=None, k_descale=None, v_descale=None,
        )  # fmt: skip
        return out

    def function(q, keys, values, table):
        k, v = (cache[table.long()].flatten(1, 2)[:, :length].transpose(1, 2) for cache in (keys, values))
        k, v = (x.repeat_interleave(heads // pairs, 1) for x in (k, v))
        q = q.view(batch, length, heads, size).transpose(1, 2)
        return F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).reshape(-1, heads, size)

    return Program(call, function, (q, keys, values, table), tolerance=1e-2)


@case("conch paged attention", cpu=[(8, 1024, 16, 8, 128)], cuda=[(64, 2048, 32, 8, 128)], multiples=(1, 16, 0, 0, 0))
def paged_decoding(place: Place, batch: int, length: int, heads: int, pairs: int, size: int) -> Program:
    from conch.ops.attention.paged_attention import paged_attention

    q = place.normal(batch, heads, size)
    keys, values, table = _paged(place, batch, length, pairs, size)
    lengths = torch.full((batch,), length, device=place.device, dtype=torch.int32)
    call = lambda: paged_attention(q, keys, values, table, lengths)  # noqa: E731
    return Program(call, _decoded(length), (q, keys, values, table), tolerance=None if place.on_cpu else 2e-2)


@case("conch int8 product", cpu=[(512, 1024, 1024)], cuda=[(4096, 4096, 4096)], multiples=(128, 64, 64))
def int8_product(place: Place, rows: int, columns: int, depth: int) -> Program:
    from conch.ops.quantization.gemm import scaled_gemm

    a = place.integers(-127, 128, rows, depth, dtype=torch.int8)
    b = place.integers(-127, 128, depth, columns, dtype=torch.int8)
    scales = [place.normal(count, 1, dtype=torch.float32).abs() * 1e-3 for count in (rows, columns)]
    dtype = place.dtype

    def function(a, b, left, right):
        product = torch._int_mm(a, b) if a.device.type == "cpu" else a.float() @ b.float()
        return (product * left * right.T).to(dtype)

    program = Program(lambda: scaled_gemm(a, b, *scales, dtype), function, (a, b, *scales))
    program.expected = lambda: [(a.double() @ b.double()) * scales[0].double() * scales[1].double().T]
    return program


@case("conch rotary embedding", cpu=[(2048, 32, 8, 128)], cuda=[(16384, 32, 8, 128)], multiples=(1, 0, 0, 0))
def rotary(place: Place, tokens: int, heads: int, pairs: int, size: int) -> Program:
    from conch.ops.embedding.rotary_embedding import rotary_embedding

    q, k = (place.normal(tokens, count * size) for count in (heads, pairs))
    angles = place.normal(tokens, size // 2, dtype=torch.float32)
    table = torch.cat((angles.cos(), angles.sin()), -1).to(place.dtype)
    positions = place.integers(0, tokens, tokens)
    own = q.clone(), k.clone()

    def function(q, k, positions, table):
        cos, sin = table[positions][:, None].chunk(2, -1)
        results = []
        for x in (q, k):
            left, right = x.view(x.shape[0], -1, size).chunk(2, -1)
            results.append(torch.cat((left * cos - right * sin, right * cos + left * sin), -1).flatten(1))
        return results

    call = lambda: rotary_embedding(positions, *own, size, table)  # noqa: E731
    return Program(call, function, (q, k, positions, table), restored=own)


@case("conch SiLU and product", cpu=[(1024, 11264)], cuda=[(8192, 22016)], multiples=(1, 2))
def silu_and_product(place: Place, rows: int, columns: int) -> Program:
    from conch.kernels.activation.silu_and_mul import silu_and_mul_launcher

    x = place.normal(rows, columns)
    out = x.new_empty(rows, columns // 2)

    def call():
        silu_and_mul_launcher(out, x)
        return out

    def function(x):
        left, right = x.chunk(2, -1)
        return F.silu(left) * right

    return Program(call, function, (x,))


@case("conch RMS norm", cpu=[(2048, 4096)], cuda=[(16384, 4096)])
def rms_norm(place: Place, rows: int, columns: int) -> Program:
    from conch.kernels.normalization.rms_norm import rms_norm_launcher

    x, weight = place.normal(rows, columns), place.normal(columns)
    out = torch.empty_like(x)

    def call():
        rms_norm_launcher(out, x, weight, 1e-6)
        return out

    return Program(call, lambda x, weight: F.rms_norm(x, x.shape[-1:], weight, 1e-6), (x, weight))


@case("conch int8 quantization", cpu=[(2048, 4096)], cuda=[(16384, 4096)])
def quantization(place: Place, rows: int, columns: int) -> Program:
    from conch.kernels.quantization.int8 import static_scaled_int8_quant_launcher

    x, scale = place.normal(rows, columns), place.normal(1, dtype=torch.float32).abs() + 0.02
    out = torch.empty(rows, columns, device=place.device, dtype=torch.int8)

    def call():
        static_scaled_int8_quant_launcher(out, x, scale)
        return out

    def function(x, scale):
        return (x * (1 / scale)).clamp(-128, 127).to(torch.int8)

    program = Program(call, function, (x, scale), tolerance=1e-2)
    program.expected = lambda: [function(x.float(), scale).double()]
    return program
