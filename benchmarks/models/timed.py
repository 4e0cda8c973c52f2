"""The models whose speed on a GPU is promised: ResNet-50, BERT-base, ViT-B/16 and a Llama of 8B's shapes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import nn

from tests.models import bert, llama, resnet, vit

BERT_BASE = bert.BertSize(hidden=768, layers=12, heads=12, intermediate=3072)
VIT_BASE = vit.VitSize()
CONTEXT = 2048
LLAMA_8B = llama.LlamaSize(
    hidden=4096, layers=4, heads=32, key_heads=8, intermediate=14336, vocabulary=32768, cache=CONTEXT, theta=5e5
)


@dataclass
class Model:
    """A module with the inputs of one measurement, in the precision that is to be measured, on the GPU.

    `floor` is what peer / ours must reach; `bytes` what a call must read at least, where memory bounds it.
    `mutated` tells which inputs are updated in place.  `build` makes our engine, where it is not that of the module;
    then `others` are modules of PyTorch that do the same, and `in_floats` asks for the module's own engine as well.
    """

    module: nn.Module
    inputs: tuple[torch.Tensor, ...]
    dtype: torch.dtype
    floor: float | None = None
    bytes: int | None = None
    mutated: tuple[int, ...] = ()
    notes: dict[str, Any] = field(default_factory=dict)
    build: Callable[[], Any] | None = None
    others: dict[str, nn.Module] = field(default_factory=dict)
    in_floats: bool = False


class LastToken(nn.Module):
    """A prompt in one pass: the logits of its last token."""

    def __init__(self, model: llama.Llama) -> None:
        super().__init__()
        self.model = model

    def forward(self, input_ids: torch.Tensor) -> torch.Tensor:
        model = self.model
        positions = torch.arange(input_ids.shape[1], device=input_ids.device)
        hidden, rotary = model.embed_tokens(input_ids), model.rotary(positions)
        for layer in model.layers:
            hidden = layer(hidden, rotary, None, positions, None)
        return model.lm_head(model.norm(hidden[:, -1:]))


def _on_gpu(module: nn.Module, dtype: torch.dtype) -> nn.Module:
    return module.to(dtype).cuda().eval().requires_grad_(False)


def resnet_model(batch: int, dtype: torch.dtype = torch.float16, floor: float | None = 1.0) -> Model:
    image = torch.randn(batch, 3, 224, 224, dtype=dtype, device="cuda")
    return Model(_on_gpu(resnet.random_model(), dtype), (image,), dtype, floor)


def bert_model(batch: int, sequence: int, dtype: torch.dtype = torch.float16, floor: float | None = 1.0) -> Model:
    spec = bert.specification(bert.random_model(BERT_BASE))
    inputs = tuple(tensor.cuda() for tensor in spec.make_inputs(batch=batch, sequence=sequence).values())
    return Model(_on_gpu(spec.module, dtype), inputs, dtype, floor)


def _vit(batch: int) -> Model:
    image = torch.randn(batch, 3, 224, 224, dtype=torch.float16, device="cuda")
    return Model(_on_gpu(vit.random_model(VIT_BASE), torch.float16), (image,), torch.float16, 1.0)


def _llama() -> llama.Llama:
    with torch.device("cuda"):
        return llama.random_model(LLAMA_8B)


def _prefill(batch: int, sequence: int) -> Model:
    ids = torch.randint(0, LLAMA_8B.vocabulary, (batch, sequence), device="cuda")
    return Model(_on_gpu(LastToken(_llama()), torch.bfloat16), (ids,), torch.bfloat16, 1.0)


def decoder() -> nn.Module:
    """The layers of a Llama of 8B's shapes that add a token to their caches."""
    return _on_gpu(llama.LlamaDecode(_llama()), torch.bfloat16)


def decode_model(batch: int, module: nn.Module | None = None) -> Model:
    """One token at the last place of a full cache, by a `decoder` of its own or a given one."""
    module = module or decoder()
    ids = torch.randint(0, LLAMA_8B.vocabulary, (batch, 1), device="cuda")
    shape = (batch, LLAMA_8B.key_heads, CONTEXT, LLAMA_8B.head_width)
    caches = [torch.randn(shape, dtype=torch.bfloat16, device="cuda") for _ in range(2 * LLAMA_8B.layers)]
    weights = sum(p.numel() * 2 for name, p in module.named_parameters() if "embed" not in name)
    total = weights + sum(cache.numel() * 2 for cache in caches)
    inputs = (ids, torch.tensor([CONTEXT - 1], device="cuda"), *caches)
    return Model(module, inputs, torch.bfloat16, 1.1, total, tuple(range(2, len(inputs))))


CASES: dict[str, Callable[[], Model]] = {
    "ResNet-50 fp16 b1": lambda: resnet_model(1),
    "ResNet-50 fp16 b8": lambda: resnet_model(8),
    "ResNet-50 fp16 b128": lambda: resnet_model(128),
    "BERT-base fp16 b1 s128": lambda: bert_model(1, 128),
    "BERT-base fp16 b64 s128": lambda: bert_model(64, 128),
    "BERT-base fp16 b8 s384": lambda: bert_model(8, 384),
    "ViT-B/16 fp16 b64": lambda: _vit(64),
    "Llama-8B x4 bf16 prefill 1x2048": lambda: _prefill(1, 2048),
    "Llama-8B x4 bf16 prefill 1x8192": lambda: _prefill(1, 8192),
    "Llama-8B x4 bf16 prefill 4x2048": lambda: _prefill(4, 2048),
    "Llama-8B x4 bf16 decode b1": lambda: decode_model(1),
    "Llama-8B x4 bf16 decode b32": lambda: decode_model(32),
}
FLOAT32: dict[str, Callable[[], Model]] = {
    "ResNet-50 fp32 b1": lambda: resnet_model(1, torch.float32, None),
    "ResNet-50 fp32 b8": lambda: resnet_model(8, torch.float32, None),
    "BERT-base fp32 b1 s128": lambda: bert_model(1, 128, torch.float32, None),
    "BERT-base fp32 b8 s128": lambda: bert_model(8, 128, torch.float32, None),
}
