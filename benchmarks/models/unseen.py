"""Architectures that nothing was tuned for, from the configurations of transformers and torchvision."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from benchmarks.models.timed import Model


class FirstOutput(nn.Module):
    """A model of transformers as a function of tensors: positional inputs by name, its first output."""

    def __init__(self, model: nn.Module, names: tuple[str, ...]) -> None:
        super().__init__()
        self.model, self.names = model, names

    def forward(self, *tensors: torch.Tensor) -> torch.Tensor:
        arguments: dict[str, Any] = dict(zip(self.names, tensors, strict=True))
        return self.model(**arguments, return_dict=False)[0]


def _transformer(make: Callable[[Any], tuple[nn.Module, dict[str, torch.Tensor]]]) -> Model:
    import transformers

    torch.manual_seed(0)
    module, inputs = make(transformers)
    module = module.half().cuda().eval().requires_grad_(False)
    tensors = tuple(t.half().cuda() if t.is_floating_point() else t.cuda() for t in inputs.values())
    return Model(FirstOutput(module, tuple(inputs)), tensors, torch.float16)


def _vision(name: str, batch: int) -> Model:
    import torchvision

    torch.manual_seed(0)
    module = getattr(torchvision.models, name)(weights=None).cuda().requires_grad_(False)
    images = torch.randn(batch, 3, 224, 224, device="cuda")
    norms = [child for child in module.modules() if isinstance(child, nn.BatchNorm2d)]
    for norm in norms:
        norm.momentum = None  # statistics of these images, in place of those that training would leave
    if norms:
        module.train()(images)
    return Model(module.half().eval(), (images.half(),), torch.float16)


def _ids(vocabulary: int, batch: int, sequence: int) -> torch.Tensor:
    return torch.randint(0, vocabulary, (batch, sequence))


def _gpt2(t: Any) -> tuple[nn.Module, dict[str, torch.Tensor]]:
    config = t.GPT2Config(use_cache=False)
    return t.GPT2Model(config), {"input_ids": _ids(config.vocab_size, 4, 512)}


def _t5(t: Any) -> tuple[nn.Module, dict[str, torch.Tensor]]:
    config = t.T5Config(d_model=512, d_ff=2048, num_layers=6, num_heads=8)
    return t.T5EncoderModel(config), {"input_ids": _ids(config.vocab_size, 8, 256)}


def _whisper(t: Any) -> tuple[nn.Module, dict[str, torch.Tensor]]:
    config = t.WhisperConfig(d_model=512, encoder_layers=6, encoder_attention_heads=8, encoder_ffn_dim=2048)
    module = t.models.whisper.modeling_whisper.WhisperEncoder(config)
    return module, {"input_features": torch.randn(4, config.num_mel_bins, 3000)}


def _mixtral(t: Any) -> tuple[nn.Module, dict[str, torch.Tensor]]:
    config = t.MixtralConfig(
        hidden_size=1024,
        intermediate_size=3584,
        num_hidden_layers=2,
        num_attention_heads=16,
        num_key_value_heads=4,
        vocab_size=32000,
        use_cache=False,
    )
    return t.MixtralModel(config), {"input_ids": _ids(config.vocab_size, 2, 512)}


CASES: dict[str, Callable[[], Model]] = {
    "GPT-2 fp16 b4 s512": lambda: _transformer(_gpt2),
    "T5-small encoder fp16 b8 s256": lambda: _transformer(_t5),
    "Whisper-base encoder fp16 b4": lambda: _transformer(_whisper),
    "Mixtral 2 layers fp16 b2 s512": lambda: _transformer(_mixtral),
    "EfficientNet-B0 fp16 b32": lambda: _vision("efficientnet_b0", 32),
    "Swin-T fp16 b32": lambda: _vision("swin_t", 32),
    "ConvNeXt-T fp16 b32": lambda: _vision("convnext_tiny", 32),
    "MobileNet-V3 fp16 b32": lambda: _vision("mobilenet_v3_large", 32),
}
