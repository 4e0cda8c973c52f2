"""Train a small Llama on the text that ships with Python, and write it as a checkpoint folder.

python tools/train_small_model.py FOLDER [--seconds 600] [--device cpu]     # needs torch and tokenizers

The text: the documentation in `pydoc_data` and the docstrings of the standard library, about 3 MB.  The tokenizer is
byte-pair encoding with 2,048 tokens; the model has 1.3 million weights, stored in bfloat16 (2.6 MB).  Training stops
after the seconds that are given, whatever the machine; the loss of text that was held back is printed.
"""

from __future__ import annotations

import argparse
import ast
import json
import sysconfig
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.torch import save_file
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from torch import nn
from torch.nn import functional

VOCABULARY, WIDTH, INNER, LAYERS, HEADS, KEY_HEADS, LENGTH = 2048, 160, 448, 4, 5, 1, 256
HEAD = WIDTH // HEADS
END = "<|end|>"
CONFIG: dict[str, Any] = {
    "model_type": "llama", "vocab_size": VOCABULARY, "hidden_size": WIDTH, "intermediate_size": INNER,
    "num_hidden_layers": LAYERS, "num_attention_heads": HEADS, "num_key_value_heads": KEY_HEADS,
    "max_position_embeddings": 2 * LENGTH, "rms_norm_eps": 1e-5, "rope_theta": 10000.0, "tie_word_embeddings": True,
    "hidden_act": "silu", "dtype": "bfloat16", "eos_token_id": 0, "bos_token_id": 0,
}  # fmt: skip


def texts() -> list[str]:
    """The documents: topics of pydoc, and docstrings of the standard library, in one order everywhere."""
    from pydoc_data.topics import topics

    found = [topics[name] for name in sorted(topics)]
    library = Path(sysconfig.get_paths()["stdlib"])
    for path in sorted(library.glob("*.py")) + sorted(library.glob("[a-z]*/*.py")):
        if {"test", "site-packages", "idlelib", "lib2to3"} & set(path.parts) or "test" in path.name:
            continue
        try:
            tree = ast.parse(path.read_text(encoding="utf-8"))
        except (SyntaxError, ValueError):
            continue
        kinds = (ast.Module, ast.ClassDef, ast.FunctionDef)
        strings = [ast.get_docstring(node) for node in ast.walk(tree) if isinstance(node, kinds)]
        found.append("\n\n".join(text for text in strings if text))
    return [text for text in found if len(text) > 200]


def train_tokenizer(documents: list[str]) -> Tokenizer:
    """Byte-pair encoding."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCABULARY, special_tokens=[END], initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )  # fmt: skip
    tokenizer.train_from_iterator(documents, trainer)
    return tokenizer


class Layer(nn.Module):
    """Attention and a gated MLP, under the names of a checkpoint."""

    def __init__(self) -> None:
        super().__init__()
        self.input_layernorm, self.post_attention_layernorm = nn.RMSNorm(WIDTH, 1e-5), nn.RMSNorm(WIDTH, 1e-5)
        rows = {"q_proj": HEADS * HEAD, "k_proj": KEY_HEADS * HEAD, "v_proj": KEY_HEADS * HEAD, "o_proj": WIDTH}
        self.self_attn = nn.ModuleDict({name: nn.Linear(WIDTH, count, bias=False) for name, count in rows.items()})
        self.mlp = nn.ModuleDict({
            "gate_proj": nn.Linear(WIDTH, INNER, bias=False), "up_proj": nn.Linear(WIDTH, INNER, bias=False),
            "down_proj": nn.Linear(INNER, WIDTH, bias=False),
        })  # fmt: skip

    def forward(self, x: torch.Tensor, cosine: torch.Tensor, sine: torch.Tensor) -> torch.Tensor:
        normed, part = self.input_layernorm(x), self.self_attn
        query, key, value = (
            part[name](normed).unflatten(-1, (count, HEAD)).transpose(1, 2)
            for name, count in (("q_proj", HEADS), ("k_proj", KEY_HEADS), ("v_proj", KEY_HEADS))
        )
        mixed = functional.scaled_dot_product_attention(
            _turned(query, cosine, sine), _turned(key, cosine, sine), value, is_causal=True, enable_gqa=True
        )
        x = x + part["o_proj"](mixed.transpose(1, 2).flatten(2))
        normed, part = self.post_attention_layernorm(x), self.mlp
        return x + part["down_proj"](functional.silu(part["gate_proj"](normed)) * part["up_proj"](normed))


class Model(nn.Module):
    """The whole decoder."""

    def __init__(self) -> None:
        super().__init__()
        self.embed_tokens = nn.Embedding(VOCABULARY, WIDTH)
        self.layers = nn.ModuleList(Layer() for _ in range(LAYERS))
        self.norm = nn.RMSNorm(WIDTH, 1e-5)
        for parameter in self.parameters():
            if parameter.ndim == 2:
                nn.init.normal_(parameter, std=0.05)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        frequencies = 10000.0 ** (-torch.arange(0, HEAD, 2) / HEAD)
        angles = torch.arange(tokens.shape[1])[:, None] * frequencies
        x = self.embed_tokens(tokens)
        for layer in self.layers:
            x = layer(x, angles.cos(), angles.sin())
        return self.norm(x) @ self.embed_tokens.weight.T


def _turned(x: torch.Tensor, cosine: torch.Tensor, sine: torch.Tensor) -> torch.Tensor:
    low, high = x.chunk(2, dim=-1)
    return torch.cat([low * cosine - high * sine, high * cosine + low * sine], dim=-1)


def train(tokens: np.ndarray, held: np.ndarray, seconds: float) -> Model:
    """AdamW with a rate that falls with the time that is left."""
    torch.manual_seed(0)
    rng, model = np.random.default_rng(0), Model()
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3, betas=(0.9, 0.95), weight_decay=0.1)
    began, step = time.monotonic(), 0
    while (share := (time.monotonic() - began) / seconds) < 1:
        for group in optimizer.param_groups:
            group["lr"] = 4e-3 * min(1.0, (step + 1) / 50) * max(0.02, 0.5 * (1 + np.cos(np.pi * share)))
        loss = _loss(
            model,
            tokens,
            rng.integers(0, len(tokens) - 129, 64 if torch.get_default_device().type == "cuda" else 16),
            128,
        )
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        if step % 50 == 0:
            print(f"{time.monotonic() - began:5.0f} s, step {step}: loss {loss.item():.3f}", flush=True)
        step += 1
    with torch.no_grad():
        places = np.arange(0, min(len(held) - LENGTH - 1, 60 * LENGTH), LENGTH)
        print(f"after {step} steps: loss {_loss(model, held, places, LENGTH).item():.3f} of text that was held back")
    return model


def _loss(model: Model, tokens: np.ndarray, places: np.ndarray, length: int) -> torch.Tensor:
    rows = torch.tensor(np.stack([tokens[place : place + length + 1] for place in places]).astype(np.int64))
    return functional.cross_entropy(model(rows[:, :-1]).flatten(0, 1), rows[:, 1:].flatten())


def main() -> None:
    """Train, and write the folder."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--seconds", type=float, default=600)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--device", default="cpu", help="cuda trains further in the same time")
    given = parser.parse_args()
    torch.set_num_threads(given.threads)
    torch.set_default_device(given.device)
    documents = texts()
    tokenizer = train_tokenizer(documents)
    end = tokenizer.token_to_id(END)
    numbers = [np.array([*encoding.ids, end], np.uint16) for encoding in tokenizer.encode_batch(documents)]
    held = [number % 20 == 7 for number in range(len(numbers))]
    parts = [np.concatenate([one for one, is_held in zip(numbers, held, strict=True) if is_held is which])
             for which in (False, True)]  # fmt: skip
    print(f"{len(documents)} documents, {sum(map(len, documents)) / 1e6:.1f} MB, {len(parts[0])} tokens")
    model = train(parts[0], parts[1], given.seconds)
    given.folder.mkdir(parents=True, exist_ok=True)
    weights = {
        f"model.{name}": tensor.to("cpu", torch.bfloat16).contiguous() for name, tensor in model.state_dict().items()
    }
    save_file(weights, given.folder / "model.safetensors")
    tokenizer.save(str(given.folder / "tokenizer.json"), pretty=False)
    (given.folder / "config.json").write_text(json.dumps(CONFIG, indent=1) + "\n")
    (given.folder / "tokenizer_config.json").write_text(json.dumps({"eos_token": END}) + "\n")
    size = sum(path.stat().st_size for path in given.folder.iterdir())
    print(
        f"{given.folder}: {size / 1e6:.2f} MB, {sum(item.numel() for item in model.parameters()) / 1e6:.2f} M weights"
    )


if __name__ == "__main__":
    main()
