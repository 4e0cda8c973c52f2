"""Models of transformers and torchvision, small and with random weights: they compile without fallback and are right.

Skipped where the package is not installed; `benchmarks/models/unseen.py` has their true sizes.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from tests.rounding import graph_bounds  # noqa: E402
from tilewright.build.builder import build  # noqa: E402
from tilewright.graph import reference  # noqa: E402
from tilewright.importers import import_model  # noqa: E402

Inputs = dict[str, Any]
TEXT = {"num_hidden_layers": 2, "hidden_size": 64, "num_attention_heads": 4, "intermediate_size": 96, "vocab_size": 100}


def _ids(padded: bool = False) -> Inputs:
    ids = {"input_ids": torch.randint(0, 100, (2, 17))}
    if padded:
        kept = torch.ones(2, 17, dtype=torch.long)
        kept[1, 11:] = 0
        ids["attention_mask"] = kept
    return ids


def _gpt2(t: Any) -> tuple[Any, Inputs]:
    config = t.GPT2Config(
        n_embd=64, n_layer=2, n_head=4, vocab_size=100, n_positions=64, use_cache=False, bos_token_id=1, eos_token_id=1
    )
    return t.GPT2Model(config), _ids()


def _t5(t: Any) -> tuple[Any, Inputs]:
    config = t.T5Config(
        d_model=64,
        d_ff=128,
        d_kv=16,
        num_layers=2,
        num_heads=4,
        vocab_size=100,
        feed_forward_proj="gated-gelu",
        # Of 128, a distance of 16 lies where one bucket of positions ends: float32 and float64 choose different ones.
        relative_attention_max_distance=100,
    )
    return t.T5EncoderModel(config), _ids(True)


def _whisper(t: Any) -> tuple[Any, Inputs]:
    config = t.WhisperConfig(
        d_model=64, encoder_layers=2, encoder_attention_heads=4, encoder_ffn_dim=128, max_source_positions=40
    )
    return t.models.whisper.modeling_whisper.WhisperEncoder(config), {"input_features": torch.randn(2, 80, 80)}


def _decoder(name: str, **more: Any) -> Callable[[Any], tuple[Any, Inputs]]:
    def make(t: Any) -> tuple[Any, Inputs]:
        config = getattr(t, f"{name}Config")(**TEXT, num_key_value_heads=2, use_cache=False, **more)
        return getattr(t, f"{name}Model")(config), _ids()

    return make


def _encoder(name: str, **more: Any) -> Callable[[Any], tuple[Any, Inputs]]:
    def make(t: Any) -> tuple[Any, Inputs]:
        return getattr(t, f"{name}Model")(getattr(t, f"{name}Config")(**TEXT, **more)), _ids(True)

    return make


TRANSFORMERS = {
    "gpt2": _gpt2,
    "t5": _t5,
    "whisper": _whisper,
    "llama": _decoder("Llama"),
    "qwen3": _decoder("Qwen3", head_dim=16),
    "gemma2": _decoder("Gemma2", head_dim=16),
    "mixtral": _decoder("Mixtral", num_local_experts=4),
    "bert": _encoder("Bert", max_position_embeddings=64),
    "deberta": _encoder(
        "DebertaV2",
        max_position_embeddings=64,
        relative_attention=True,
        pos_att_type=["c2p", "p2c"],
        position_buckets=16,
        share_att_key=True,
        type_vocab_size=0,
    ),
}


class First(torch.nn.Module):
    """The first output of a model, for inputs by position."""

    def __init__(self, model: Any, names: tuple[str, ...]) -> None:
        super().__init__()
        self.model, self.names = model, names

    def forward(self, *tensors: Any) -> Any:
        return self.model(**dict(zip(self.names, tensors, strict=True)), return_dict=False)[0]


def check(module: Any, inputs: tuple[Any, ...]) -> None:
    """Import against PyTorch in float64 (in float32 where it has no more), the engine within what float32 allows."""
    module = module.eval().requires_grad_(False)
    graph = import_model(module, inputs)
    given = {value.name: item.numpy() for value, item in zip(graph.inputs, inputs, strict=True)}
    exact = reference.run(graph, given)
    bounds = graph_bounds(graph, given, exact)
    (name,) = graph.output_names
    scale = np.abs(exact[name]).max()
    try:
        wide = tuple(x.double() if x.is_floating_point() else x for x in inputs)
        # float32 constants of the model (a third, an epsilon) enter as such
        assert np.abs(copy.deepcopy(module).double()(*wide).numpy() - exact[name]).max() <= 1e-6 * scale
    except RuntimeError:  # products of groups of rows
        assert np.abs(module(*inputs).numpy() - exact[name]).max() <= bounds[name]
    engine = build(graph, "cpu")
    assert not engine.remarks
    error = np.abs(np.asarray(engine(*inputs), np.float64) - exact[name]).max()
    assert error <= bounds[name], (error, bounds[name])


@pytest.mark.parametrize("name", TRANSFORMERS)
def test_transformers(name: str) -> None:
    transformers = pytest.importorskip("transformers")
    torch.manual_seed(0)
    model, inputs = TRANSFORMERS[name](transformers)
    check(First(model, tuple(inputs)), tuple(inputs.values()))


@pytest.mark.parametrize("name", ["swin", "convnext", "efficientnet_b0", "mobilenet_v3_small", "densenet"])
def test_torchvision(name: str) -> None:
    vision = pytest.importorskip("torchvision").models
    torch.manual_seed(0)
    if name == "swin":
        module = vision.swin_transformer.SwinTransformer([4, 4], 32, [2, 2], [2, 4], [7, 7], num_classes=10)
    elif name == "convnext":
        block = vision.convnext.CNBlockConfig
        module = vision.convnext.ConvNeXt([block(32, 64, 1), block(64, None, 1)], num_classes=10)
    elif name == "densenet":
        module = vision.DenseNet(8, (2, 2), 16, num_classes=10)
    else:
        module = getattr(vision, name)(weights=None, num_classes=10)
    check(module, (torch.randn(2, 3, 64, 64),))
