"""Train a small Llama on the text that ships with Python, and write it as a checkpoint folder.

python tools/train_small_model.py FOLDER [--seconds 600] [--epochs 12] [--device cpu]     # needs torch and tokenizers

The text: the documentation in `pydoc_data` and the docstrings of the standard library, about 3 MB.  The tokenizer is
byte-pair encoding with 2,048 tokens; the model has 1.4 million weights, stored in bfloat16 (2.9 MB).  Training stops
after the epochs or the seconds that are given, or when the loss of text that is held back has not fallen for a while;
the weights that are written are those of its lowest loss.
"""

from __future__ import annotations

import argparse
import ast
import copy
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
RATE, DROPOUT, DECAY = 4e-3, 0.1, 0.1
ROWS = {"cuda": 64, "cpu": 16}  # sequences of a step
CHUNK = 128  # tokens of each
EVERY, PATIENCE = 100_000, 6  # tokens between two looks at held-out text, and looks without a lower loss at the end
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
        x = x + self._dropped(part["o_proj"](mixed.transpose(1, 2).flatten(2)))
        normed, part = self.post_attention_layernorm(x), self.mlp
        gated = functional.silu(part["gate_proj"](normed)) * part["up_proj"](normed)
        return x + self._dropped(part["down_proj"](gated))

    def _dropped(self, x: torch.Tensor) -> torch.Tensor:
        return functional.dropout(x, DROPOUT, self.training)


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


def train(tokens: np.ndarray, held_out: np.ndarray, seconds: float, epochs: float) -> Model:
    """AdamW with a rate that falls to the end; the weights with the lowest loss of `held`."""
    torch.manual_seed(0)
    rng, model = np.random.default_rng(0), Model()
    matrices = [parameter for parameter in model.parameters() if parameter.ndim == 2]
    others = [parameter for parameter in model.parameters() if parameter.ndim != 2]
    optimizer = torch.optim.AdamW(
        [{"params": matrices, "weight_decay": DECAY}, {"params": others, "weight_decay": 0.0}], betas=(0.9, 0.95)
    )
    rows = ROWS[torch.get_default_device().type]
    steps, every = int(epochs * len(tokens) / (rows * CHUNK)), max(1, EVERY // (rows * CHUNK))
    began, step, since, best, best_model = time.monotonic(), 0, 0, np.inf, model
    while since < PATIENCE:
        share = max(step / steps, (time.monotonic() - began) / seconds)
        for group in optimizer.param_groups:
            group["lr"] = RATE * min(1.0, (step + 1) / 50) * max(0.01, 0.5 * (1 + np.cos(np.pi * min(share, 1.0))))
        if step % every == 0 or share >= 1:
            loss = held_out_loss(model, held_out)
            print(f"{time.monotonic() - began:5.0f} s, step {step} of {steps}: held-out loss {loss:.3f}", flush=True)
            since += 1
            if loss < best:
                best, best_model, since = loss, copy.deepcopy(model), 0
        if share >= 1:
            break
        places = rng.integers(0, len(tokens) - CHUNK - 1, rows)
        optimizer.zero_grad()
        _loss(model, tokens, places, CHUNK).backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        step += 1
    print(f"the lowest loss of text that was held back: {best:.3f}")
    return best_model


def held_out_loss(model: Model, held_out: np.ndarray) -> float:
    """The mean loss of text that is not trained with."""
    model.eval()
    with torch.no_grad():
        places = np.arange(0, len(held_out) - LENGTH - 1, LENGTH)[:128]
        losses = [
            _loss(model, held_out, places[first : first + 16], LENGTH).item() for first in range(0, len(places), 16)
        ]
    model.train()
    return float(np.mean(losses))


def _loss(model: Model, tokens: np.ndarray, places: np.ndarray, length: int) -> torch.Tensor:
    rows = torch.tensor(np.stack([tokens[place : place + length + 1] for place in places]).astype(np.int64))
    return functional.cross_entropy(model(rows[:, :-1]).flatten(0, 1), rows[:, 1:].flatten())


def main() -> None:
    """Train, and write the folder."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--seconds", type=float, default=600)
    parser.add_argument("--epochs", type=float, default=12, help="times that the text is read at most")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--device", default="cpu", choices=list(ROWS), help="cuda trains further in the same time")
    given = parser.parse_args()
    torch.set_num_threads(given.threads)
    torch.set_default_device(given.device)
    documents = texts()
    tokenizer = train_tokenizer(documents)
    end = tokenizer.token_to_id(END)
    numbers = [np.array([*encoding.ids, end], np.uint16) for encoding in tokenizer.encode_batch(documents)]
    held_out = [number % 20 == 7 for number in range(len(numbers))]
    parts = [np.concatenate([one for one, is_held_out in zip(numbers, held_out, strict=True) if is_held_out is which])
             for which in (False, True)]  # fmt: skip
    print(f"{len(documents)} documents, {sum(map(len, documents)) / 1e6:.1f} MB, {len(parts[0])} tokens")
    model = train(parts[0], parts[1], given.seconds, given.epochs)
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
