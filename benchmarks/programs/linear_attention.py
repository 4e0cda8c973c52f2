"""flash-linear-attention (fla-core): recurrences by chunks, attention, norms, rotary embeddings, losses."""

# mypy: ignore-errors

from __future__ import annotations

import torch
import torch.nn.functional as F

from benchmarks.programs.case import Place, Program, case

_STATES = {"BK": 64, "BV": 64}  # the blocks of a state


def _gated_delta(q, k, v, g, beta):
    """The recurrence, a step at a time: [batch, steps, heads, size], states of [batch, heads, size, size]."""
    q, k, v = (x.transpose(1, 2) for x in (q, k, v))
    g, beta = g.transpose(1, 2).exp(), beta.transpose(1, 2)
    state, rows = q.new_zeros(*q.shape[:2], q.shape[-1], v.shape[-1]), []
    for step in range(q.shape[2]):
        key = k[:, :, step, :, None]
        state = state * g[:, :, step, None, None]
        value = (v[:, :, step] - (state * key).sum(-2)) * beta[:, :, step, None]
        state = state + key * value[..., None, :]
        rows.append((state * q[:, :, step, :, None]).sum(-2))
    return torch.stack(rows, 2).transpose(1, 2) * q.shape[-1] ** -0.5


@case("fla gated delta rule", cuda=[(2, 4096, 16, 128), (1, 8192, 32, 64)], multiples=(1, 64, 1, 0))
def gated_delta(place: Place, batch: int, steps: int, heads: int, size: int) -> Program:
    from fla.ops.gated_delta_rule import chunk_gated_delta_rule

    q, v = (place.normal(batch, steps, heads, size) for _ in range(2))
    k = F.normalize(place.normal(batch, steps, heads, size).float(), dim=-1).to(place.dtype)
    g = F.logsigmoid(place.normal(batch, steps, heads, dtype=torch.float32))
    beta = place.normal(batch, steps, heads).sigmoid()

    def call():
        with torch.no_grad():
            return chunk_gated_delta_rule(q, k, v, g, beta)[0]

    return Program(call, _gated_delta, (q, k, v, g, beta), tolerance=3e-2)


@case("fla gated linear attention", cuda=[(2, 4096, 8, 128)], multiples=(1, 64, 1, 0))
def gated_linear(place: Place, batch: int, steps: int, heads: int, size: int) -> Program:
    from fla.ops.gla import chunk_gla

    q, k, v = (place.normal(batch, steps, heads, size) for _ in range(3))
    g = F.logsigmoid(place.normal(batch, steps, heads, size)) / 16
    place.configs["chunk_fwd_kernel_h"] = _STATES

    def call():
        with torch.no_grad():
            return chunk_gla(q, k, v, g)[0]

    def function(q, k, v, g):
        q, k, v, g = (x.transpose(1, 2) for x in (q, k, v, g.exp()))
        state, rows = q.new_zeros(batch, heads, size, size), []
        for step in range(steps):
            state = state * g[:, :, step, :, None] + k[:, :, step, :, None] * v[:, :, step, None, :]
            rows.append((state * q[:, :, step, :, None]).sum(-2))
        return torch.stack(rows, 2).transpose(1, 2) * size**-0.5

    return Program(call, function, (q, k, v, g), tolerance=3e-2)


@case("fla retention", cpu=[(1, 1024, 4, 64)], cuda=[(2, 4096, 8, 128)], multiples=(1, 64, 1, 0))
def retention(place: Place, batch: int, steps: int, heads: int, size: int) -> Program:
    from fla.ops.retention import chunk_retention

    q, k, v = (place.normal(batch, steps, heads, size) for _ in range(3))
    place.configs["chunk_fwd_kernel_h"] = _STATES

    def call():
        with torch.no_grad():
            return chunk_retention(q, k, v)[0]

    def function(q, k, v):
        q, k, v = (x.transpose(1, 2) for x in (q, k, v))
        decay = (1 - 2.0 ** (-5.0 - torch.arange(heads, dtype=q.dtype, device=q.device))).log()
        position = torch.arange(steps, device=q.device)
        distance = position[:, None] - position[None, :]
        weights = torch.where(distance >= 0, (decay[:, None, None] * distance).exp(), 0)
        return ((q @ k.transpose(2, 3) * weights * size**-0.5) @ v).transpose(1, 2)

    return Program(call, function, (q, k, v), tolerance=3e-2)


@case("fla causal attention", cpu=[(1, 1024, 8, 64)], cuda=[(2, 4096, 16, 128)], multiples=(1, 64, 1, 0))
def attention(place: Place, batch: int, steps: int, heads: int, size: int) -> Program:
    from fla.ops.attn.parallel import parallel_attn

    q, k, v = (place.normal(batch, steps, heads, size) for _ in range(3))

    def call():
        with torch.no_grad():
            return parallel_attn(q, k, v)

    def function(q, k, v):
        q, k, v = (x.transpose(1, 2) for x in (q, k, v))
        return F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2)

    return Program(call, function, (q, k, v), tolerance=1e-2)


@case("fla layer norm", cpu=[(2048, 4096)], cuda=[(16384, 2048)])
def layer_norm(place: Place, rows: int, columns: int) -> Program:
    from fla.modules.norm.layernorm import layer_norm_fwd

    x, weight, bias = place.normal(rows, columns), place.normal(columns), place.normal(columns)
    function = lambda x, weight, bias: F.layer_norm(x, x.shape[-1:], weight, bias, 1e-5)  # noqa: E731
    return Program(lambda: layer_norm_fwd(x, weight, bias)[0], function, (x, weight, bias))


@case("fla RMS norm, gated", cpu=[(8192, 128), (2048, 2048)], cuda=[(131072, 128), (16384, 2048)])
def gated_norm(place: Place, rows: int, columns: int) -> Program:
    from fla.modules.norm.fused_norm_gate import layer_norm_gated_fwd

    x, gate, weight = place.normal(rows, columns), place.normal(rows, columns), place.normal(columns)
    call = lambda: layer_norm_gated_fwd(x, gate, weight, None, is_rms_norm=True)[0]  # noqa: E731
    function = lambda x, gate, weight: F.rms_norm(x, x.shape[-1:], weight, 1e-5) * F.silu(gate)  # noqa: E731
    return Program(call, function, (x, gate, weight))


@case("fla L2 norm", cpu=[(32768, 128)], cuda=[(262144, 128)])
def l2_norm(place: Place, rows: int, columns: int) -> Program:
    from fla.modules.norm.l2norm import l2norm_fwd

    x = place.normal(rows, columns)
    function = lambda x: x * torch.rsqrt((x * x).sum(-1, keepdim=True) + 1e-6)  # noqa: E731
    return Program(lambda: l2norm_fwd(x)[0], function, (x,))


@case("fla rotary embedding", cpu=[(1, 2048, 32, 128)], cuda=[(4, 4096, 32, 128)], multiples=(1, 1, 1, 0))
def rotary(place: Place, batch: int, steps: int, heads: int, size: int) -> Program:
    from fla.modules.rotary.ops import rotary_embedding_fwdbwd

    x = place.normal(batch, steps, heads, size)
    angles = place.normal(steps, size // 2, dtype=torch.float32)
    cos, sin = angles.cos().to(place.dtype), angles.sin().to(place.dtype)

    def function(x, cos, sin):
        left, right = x.chunk(2, -1)
        cos, sin = cos[:, None], sin[:, None]
        return torch.cat((left * cos - right * sin, right * cos + left * sin), -1)

    return Program(lambda: rotary_embedding_fwdbwd(x, cos, sin), function, (x, cos, sin))


@case("fla cross-entropy", cpu=[(512, 32000)], cuda=[(8192, 32000)])
def cross_entropy(place: Place, rows: int, columns: int) -> Program:
    """The losses alone."""
    from fla.modules.fused_cross_entropy.ops import cross_entropy_fwd

    logits, target = place.normal(rows, columns), place.integers(0, columns, rows)
    function = lambda logits, target: F.cross_entropy(logits.float(), target, reduction="none")  # noqa: E731
    program = Program(lambda: cross_entropy_fwd(logits, target)[0], function, (logits, target))
    program.expected = lambda: [F.cross_entropy(logits.double(), target, reduction="none")]
    return program


@case("fla SwiGLU", cpu=[(1024, 5632)], cuda=[(8192, 11008)])
def swiglu(place: Place, rows: int, columns: int) -> Program:
    from fla.modules.activations.ops import swiglu_fwd

    x, y = (place.normal(rows, columns) for _ in range(2))
    place.configs["swiglu_fwd_kernel"] = {"B": 2048}
    return Program(lambda: swiglu_fwd(x, y), lambda x, y: F.silu(x) * y, (x, y))


@case("fla short convolution", cpu=[(1, 2048, 2048)], cuda=[(4, 4096, 4096)], multiples=(1, 1, 16))
def convolution(place: Place, batch: int, steps: int, channels: int) -> Program:
    from fla.modules.causal_conv1d.ops import causal_conv1d_fwd

    x, weight = place.normal(batch, steps, channels), place.normal(channels, 4)
    place.configs["causal_conv1d_fwd_kernel"] = {"BD": 64}

    def call():
        return causal_conv1d_fwd(x, weight, None, None, activation="silu")[0]

    def function(x, weight):
        channelled = F.conv1d(x.transpose(1, 2), weight[:, None], padding=3, groups=channels)[..., :steps]
        return F.silu(channelled).transpose(1, 2)

    return Program(call, function, (x, weight))


@case("fla sums inside chunks", cpu=[(4, 2048, 16)], cuda=[(8, 8192, 32)], multiples=(1, 64, 1))
def chunk_sums(place: Place, batch: int, steps: int, heads: int) -> Program:
    from fla.ops.utils import chunk_local_cumsum

    g = place.normal(batch, steps, heads, dtype=torch.float32)
    function = lambda g: g.view(batch, steps // 64, 64, heads).cumsum(2).view_as(g)  # noqa: E731
    return Program(lambda: chunk_local_cumsum(g, chunk_size=64), function, (g,))
