"""A Llama-style decoder: RMSNorm, rotary positions, grouped-query attention, gated MLP.

`LlamaPrefill` runs a whole prompt with causal attention; `LlamaDecode` runs new tokens against a
static key/value cache that it updates in place.  Both share one stack of weights.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import nn
from torch.nn import functional

from .specification import ModelSpecification


@dataclass(frozen=True)
class LlamaSize:
    hidden: int = 1024
    layers: int = 8
    heads: int = 16
    key_heads: int = 4
    intermediate: int = 4096
    vocabulary: int = 1024
    cache: int = 512
    theta: float = 10000.0
    epsilon: float = 1e-5

    @property
    def head_width(self) -> int:
        return self.hidden // self.heads


TINY = LlamaSize(hidden=64, layers=2, heads=4, key_heads=2, intermediate=96, vocabulary=80, cache=48)


class RMSNorm(nn.Module):
    def __init__(self, width: int, epsilon: float) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))
        self.epsilon = epsilon

    def forward(self, hidden: torch.Tensor) -> torch.Tensor:
        variance = hidden.pow(2).mean(-1, keepdim=True)
        return self.weight * (hidden * torch.rsqrt(variance + self.epsilon))


def rotate_half(tensor: torch.Tensor) -> torch.Tensor:
    low, high = tensor.chunk(2, dim=-1)
    return torch.cat((-high, low), dim=-1)


class Rotary(nn.Module):
    """cos and sin [sequence, head_width] of the positions int64 [sequence], never narrower than float32.

    Angles grow with the positions: in 16 bits they would be wrong by whole turns.
    """

    def __init__(self, size: LlamaSize) -> None:
        super().__init__()
        exponents = torch.arange(0, size.head_width, 2, dtype=torch.float32) / size.head_width
        self.register_buffer("frequencies", size.theta**-exponents)

    def _apply(self, change: Callable[[torch.Tensor], torch.Tensor], recurse: bool = True) -> Rotary:
        exact = self.frequencies
        super()._apply(change, recurse)
        if self.frequencies.dtype.itemsize < 4:
            self.frequencies = exact.to(self.frequencies.device)
        return self

    def forward(self, positions: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        angles = positions[:, None].to(self.frequencies.dtype) * self.frequencies[None, :]
        angles = torch.cat((angles, angles), dim=-1)
        return angles.cos(), angles.sin()


class Attention(nn.Module):
    def __init__(self, size: LlamaSize) -> None:
        super().__init__()
        self.heads, self.key_heads, self.width = size.heads, size.key_heads, size.head_width
        self.q_proj = nn.Linear(size.hidden, self.heads * self.width, bias=False)
        self.k_proj = nn.Linear(size.hidden, self.key_heads * self.width, bias=False)
        self.v_proj = nn.Linear(size.hidden, self.key_heads * self.width, bias=False)
        self.o_proj = nn.Linear(self.heads * self.width, size.hidden, bias=False)

    def forward(
        self,
        hidden: torch.Tensor,
        rotary: tuple[torch.Tensor, torch.Tensor],
        cache: tuple[torch.Tensor, torch.Tensor] | None,
        positions: torch.Tensor,
        mask: torch.Tensor | None,
    ) -> torch.Tensor:
        batch, length, _ = hidden.shape

        def split(tensor: torch.Tensor, heads: int) -> torch.Tensor:
            return tensor.view(batch, length, heads, self.width).transpose(1, 2)

        query = split(self.q_proj(hidden), self.heads)
        key = split(self.k_proj(hidden), self.key_heads)
        value = split(self.v_proj(hidden), self.key_heads)
        cos, sin = (tensor.to(query.dtype) for tensor in rotary)
        query = query * cos + rotate_half(query) * sin
        key = key * cos + rotate_half(key) * sin
        if cache is not None:
            cache[0].index_copy_(2, positions, key)
            cache[1].index_copy_(2, positions, value)
            key, value = cache
        context = functional.scaled_dot_product_attention(
            query, key, value, attn_mask=mask, is_causal=mask is None, enable_gqa=True
        )
        return self.o_proj(context.transpose(1, 2).reshape(batch, length, self.heads * self.width))


class GatedMLP(nn.Module):
    def __init__(self, size: LlamaSize) -> None:
        super().__init__()
        self.gate_proj = nn.Linear(size.hidden, size.intermediate, bias=False)
        self.up_proj = nn.Linear(size.hidden, size.intermediate, bias=False)
        self.down_proj = nn.Linear(size.intermediate, size.hidden, bias=False)

    def forward(self, hidden: torch.Tensor) -> torch.Tensor:
        return self.down_proj(functional.silu(self.gate_proj(hidden)) * self.up_proj(hidden))


class DecoderLayer(nn.Module):
    def __init__(self, size: LlamaSize) -> None:
        super().__init__()
        self.input_layernorm = RMSNorm(size.hidden, size.epsilon)
        self.self_attn = Attention(size)
        self.post_attention_layernorm = RMSNorm(size.hidden, size.epsilon)
        self.mlp = GatedMLP(size)

    def forward(
        self,
        hidden: torch.Tensor,
        rotary: tuple[torch.Tensor, torch.Tensor],
        cache: tuple[torch.Tensor, torch.Tensor] | None,
        positions: torch.Tensor,
        mask: torch.Tensor | None,
    ) -> torch.Tensor:
        hidden = hidden + self.self_attn(self.input_layernorm(hidden), rotary, cache, positions, mask)
        return hidden + self.mlp(self.post_attention_layernorm(hidden))


class Llama(nn.Module):
    """The stack: token ids and positions to logits."""

    def __init__(self, size: LlamaSize) -> None:
        super().__init__()
        self.size = size
        self.embed_tokens = nn.Embedding(size.vocabulary, size.hidden)
        self.rotary = Rotary(size)
        self.layers = nn.ModuleList(DecoderLayer(size) for _ in range(size.layers))
        self.norm = RMSNorm(size.hidden, size.epsilon)
        self.lm_head = nn.Linear(size.hidden, size.vocabulary, bias=False)

    def forward(
        self,
        input_ids: torch.Tensor,
        positions: torch.Tensor,
        caches: list[tuple[torch.Tensor, torch.Tensor]] | None = None,
        mask: torch.Tensor | None = None,
    ) -> torch.Tensor:
        hidden = self.embed_tokens(input_ids)
        rotary = self.rotary(positions)
        for index, layer in enumerate(self.layers):
            hidden = layer(hidden, rotary, None if caches is None else caches[index], positions, mask)
        return self.lm_head(self.norm(hidden))


class LlamaPrefill(nn.Module):
    """input_ids int64 [batch, sequence] -> logits [batch, sequence, vocabulary]."""

    def __init__(self, model: Llama) -> None:
        super().__init__()
        self.model = model

    def forward(self, input_ids: torch.Tensor) -> torch.Tensor:
        return self.model(input_ids, torch.arange(input_ids.shape[1], device=input_ids.device))


class LlamaDecode(nn.Module):
    """One or more new tokens against the cache; key and value caches alternate, a pair a layer.

    input_ids int64 [batch, new], positions int64 [new], caches [batch, key_heads, cache, head_width].
    """

    def __init__(self, model: Llama) -> None:
        super().__init__()
        self.model = model

    def forward(self, input_ids: torch.Tensor, positions: torch.Tensor, *caches: torch.Tensor) -> torch.Tensor:
        slots = torch.arange(caches[0].shape[2], device=input_ids.device)
        mask = slots[None, :] <= positions[:, None]
        pairs = list(zip(caches[0::2], caches[1::2], strict=True))
        return self.model(input_ids, positions, pairs, mask)


def random_model(size: LlamaSize = TINY, seed: int = 0) -> Llama:
    """Random weights of ordinary scale."""
    torch.manual_seed(seed)
    module = Llama(size)
    for name, parameter in module.named_parameters():
        if name.endswith("norm.weight"):
            nn.init.uniform_(parameter, 0.5, 1.5)
        else:
            nn.init.normal_(parameter, 0.0, parameter.shape[-1] ** -0.5)
    return module.eval()


def prefill_specification(
    module: Llama, batch: int = 2, sequence: int = 12, max_batch: int = 16, max_sequence: int = 2048
) -> ModelSpecification:
    """Dynamic batch and sequence."""

    def make_inputs(batch: int = batch, sequence: int = sequence, seed: int = 0) -> dict[str, torch.Tensor]:
        generator = torch.Generator().manual_seed(seed)
        return {"input_ids": torch.randint(0, module.size.vocabulary, (batch, sequence), generator=generator)}

    return ModelSpecification(
        name="llama_prefill",
        module=LlamaPrefill(module).eval(),
        inputs=make_inputs(),
        dynamic_shapes={"input_ids": {0: ("batch", 1, max_batch), 1: ("sequence", 1, max_sequence)}},
        make_inputs=make_inputs,
        output_names=("logits",),
    )


def decode_specification(module: Llama, batch: int = 2, past: int = 20, max_batch: int = 16) -> ModelSpecification:
    """One new token after `past` tokens; dynamic batch; caches hold random past keys and values."""
    size = module.size
    names = [f"caches_{index}" for index in range(2 * size.layers)]  # as torch.export names the leaves of *caches

    def make_inputs(batch: int = batch, past: int = past, seed: int = 0) -> dict[str, torch.Tensor]:
        generator = torch.Generator().manual_seed(seed)
        inputs = {
            "input_ids": torch.randint(0, size.vocabulary, (batch, 1), generator=generator),
            "positions": torch.tensor([past]),
        }
        for name in names:
            cache = torch.zeros(batch, size.key_heads, size.cache, size.head_width)
            cache[:, :, :past] = torch.randn(batch, size.key_heads, past, size.head_width, generator=generator)
            inputs[name] = cache
        return inputs

    batch_axis = {0: ("batch", 1, max_batch)}
    return ModelSpecification(
        name="llama_decode",
        module=LlamaDecode(module).eval(),
        inputs=make_inputs(),
        dynamic_shapes={name: batch_axis for name in ("input_ids", *names)},
        make_inputs=make_inputs,
        output_names=("logits",),
        mutated=tuple(names),
    )
