"""Small language models for tests: settings of every family, checkpoints with numbers that follow from names alone,
and a stand-in for a model whose tokens follow from what its blocks hold."""

from __future__ import annotations

import contextlib
import functools
import hashlib
import json
import math
import threading
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
from safetensors.numpy import save_file

from tilewright.cli.serve import UVICORN_OPTIONS
from tilewright.graph.choices import choose
from tilewright.llm.model import Chunk
from tilewright.llm.sampling import Draw
from tilewright.llm.step_graph import Limits

TOKENS = 72  # of each reference
_SIZES = {
    "vocab_size": 96, "hidden_size": 48, "intermediate_size": 80, "num_hidden_layers": 2, "num_attention_heads": 4,
    "num_key_value_heads": 2, "max_position_embeddings": 128, "rms_norm_eps": 1e-5,
}  # fmt: skip


def _rope(kind: str, **values: Any) -> dict[str, Any]:
    return {"rope_parameters": {"rope_type": kind, "rope_theta": 10000.0, **values}}


# Settings of config.json by name of the case; those of transformers 5.
CASES: dict[str, dict[str, Any]] = {
    "llama": {"model_type": "llama", **_SIZES},
    "llama-biases-tied": {
        "model_type": "llama", **_SIZES, "attention_bias": True, "mlp_bias": True, "tie_word_embeddings": True,
        "num_key_value_heads": 4,
    },
    "llama-linear": {"model_type": "llama", **_SIZES, **_rope("linear", factor=3.0)},
    "llama-dynamic": {"model_type": "llama", **_SIZES, **_rope("dynamic", factor=3.0)},
    "llama-3.1": {
        "model_type": "llama", **_SIZES, "head_dim": 16,
        **_rope("llama3", factor=8.0, low_freq_factor=1.0, high_freq_factor=4.0, original_max_position_embeddings=32),
    },
    "llama-yarn": {
        "model_type": "llama", **_SIZES, "head_dim": 32,
        **_rope("yarn", factor=4.0, original_max_position_embeddings=32),
    },
    "mistral": {"model_type": "mistral", **_SIZES, "sliding_window": 9},
    "mixtral": {"model_type": "mixtral", **_SIZES, "num_local_experts": 4, "num_experts_per_tok": 2},
    "qwen2": {
        "model_type": "qwen2", **_SIZES, "use_sliding_window": True, "sliding_window": 7, "max_window_layers": 1,
    },
    "qwen2_moe": {
        "model_type": "qwen2_moe", **_SIZES, "num_experts": 6, "num_experts_per_tok": 2, "moe_intermediate_size": 40,
        "shared_expert_intermediate_size": 56,
    },
    "qwen3": {"model_type": "qwen3", **_SIZES, "head_dim": 24},
    "qwen3_moe": {
        "model_type": "qwen3_moe", **_SIZES, "head_dim": 16, "num_experts": 8, "num_experts_per_tok": 3,
        "moe_intermediate_size": 40, "norm_topk_prob": True, "mlp_only_layers": [1],
    },
    "gemma": {"model_type": "gemma", **_SIZES, "head_dim": 24},
    "granite": {
        "model_type": "granite", **_SIZES, "embedding_multiplier": 6.0, "attention_multiplier": 0.2,
        "residual_multiplier": 0.4, "logits_scaling": 4.0, "tie_word_embeddings": False,
    },
    "olmo2": {"model_type": "olmo2", **_SIZES, "tie_word_embeddings": False},
    "smollm3": {
        "model_type": "smollm3", **_SIZES, "no_rope_layers": [1, 0], "use_sliding_window": True, "sliding_window": 8,
        "tie_word_embeddings": True, "pad_token_id": 0,
    },
    "starcoder2": {
        "model_type": "starcoder2", **_SIZES, "use_bias": True, "sliding_window": 10, "norm_epsilon": 1e-5,
        "tie_word_embeddings": True,
    },
    "gemma2": {
        "model_type": "gemma2", **_SIZES, "head_dim": 24, "sliding_window": 6, "query_pre_attn_scalar": 30,
    },
    "gemma3_text": {
        "model_type": "gemma3_text", **_SIZES, "num_hidden_layers": 6, "head_dim": 24, "sliding_window": 6,
        "query_pre_attn_scalar": 30,
    },
    "phi3": {"model_type": "phi3", **_SIZES, "pad_token_id": 0, "eos_token_id": 1, "sliding_window": 11},
    "phi3-longrope": {
        "model_type": "phi3", **_SIZES, "pad_token_id": 0, "eos_token_id": 1,
        "max_position_embeddings": 128, "original_max_position_embeddings": 32,
        "rope_parameters": {
            "rope_type": "longrope", "rope_theta": 10000.0, "partial_rotary_factor": 0.5,
            "original_max_position_embeddings": 32,
            "short_factor": [1.0, 1.1, 1.2], "long_factor": [2.0, 3.0, 4.0],
        },
    },
    "gpt2": {
        "model_type": "gpt2", "vocab_size": 96, "n_positions": 128, "n_embd": 48, "n_layer": 2, "n_head": 4,
        "eos_token_id": 95, "bos_token_id": 95,
    },
}  # fmt: skip


def numbers(name: str, shape: tuple[int, ...]) -> np.ndarray:
    """float32 numbers that follow from a weight's name: the same on every machine and with every NumPy."""
    key = np.frombuffer(hashlib.sha256(name.encode()).digest()[:16], np.uint64)
    uniform = (np.random.Philox(key=key).random_raw(math.prod(shape)) >> 11) * 2.0**-53 - 0.5
    if len(shape) == 1:
        data = 1.0 + uniform if "norm" in name or "ln_" in name else 0.4 * uniform
    else:
        data = uniform * 4.0 * shape[-1] ** -0.5
    return data.astype(np.float32).reshape(shape)


def tokens_of(name: str, vocabulary: int = 96) -> list[int]:
    """The tokens of a case's reference."""
    key = np.frombuffer(hashlib.sha256(f"tokens of {name}".encode()).digest()[:16], np.uint64)
    return (np.random.Philox(key=key).random_raw(TOKENS) % vocabulary).astype(int).tolist()


def write_checkpoint(
    folder: Path,
    settings: dict[str, Any],
    shapes: dict[str, tuple[int, ...]],
    shards: int = 1,
    dtype: Any = np.float32,
) -> Path:
    """A checkpoint folder with weights of these shapes."""
    folder.mkdir(parents=True, exist_ok=True)
    name = np.dtype(dtype).name
    (folder / "config.json").write_text(json.dumps({**settings, "dtype": name}))
    weights = {key: numbers(key, shape).astype(dtype) for key, shape in shapes.items()}
    if shards == 1:
        save_file(weights, folder / "model.safetensors")
        return folder
    places = {key: f"model-{number % shards + 1:05}-of-{shards:05}.safetensors" for number, key in enumerate(weights)}
    for file in sorted(set(places.values())):
        save_file({key: weights[key] for key in weights if places[key] == file}, folder / file)
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": places}))
    return folder


def checkpoint_of(name: str, folder: Path, shards: int = 1, dtype: Any = np.float32) -> Path:
    """The checkpoint of a case."""
    return write_checkpoint(folder / name, CASES[name], reference(name)[0], shards, dtype)


@functools.cache
def reference(name: str) -> tuple[dict[str, tuple[int, ...]], np.ndarray]:
    """A case's shapes of weights, and the logits of its tokens, float64 [tokens, vocabulary]."""
    from tests.host.llm_reference import Reference

    model = Reference(CASES[name])
    logits = model.logits(tokens_of(name))
    return model.shapes, logits


class StandIn:
    """A model without arithmetic: logits follow from all tokens that a sequence's blocks hold, so that a block that is
    lost, shared wrongly or not written changes what is generated."""

    def __init__(self, limits: Limits, pages: int, vocabulary: int = 17) -> None:
        self.limits, self.pages, self.vocabulary = limits, pages, vocabulary
        self.held = np.full(pages * limits.page, -1)
        self.steps = 0

    def run(self, chunks: Any) -> np.ndarray:
        self.steps += 1
        page = self.limits.page
        assert 0 < sum(len(chunk.tokens) for chunk in chunks) <= self.limits.tokens
        assert len(chunks) <= self.limits.sequences
        written: set[int] = set()
        for chunk in chunks:
            for number, token in enumerate(chunk.tokens):
                place = chunk.begin + number
                slot = chunk.pages[place // page] * page + place % page
                assert slot not in written, "two sequences write to one place"
                written.add(slot)
                self.held[slot] = token
        rows = []
        for chunk in chunks:
            places = range(chunk.begin + len(chunk.tokens))
            seen = [int(self.held[chunk.pages[place // page] * page + place % page]) for place in places]
            rows += [self.logits(seen[: chunk.begin + wanted + 1]) for wanted in chunk.wanted]
        return np.array(rows, np.float32).reshape(len(rows), self.vocabulary)

    def logits(self, tokens: list[int]) -> np.ndarray:
        digest = hashlib.sha256(repr(tokens).encode()).digest()
        key = np.frombuffer(digest[:16], np.uint64)
        return ((np.random.Philox(key=key).random_raw(self.vocabulary) >> 11) * 2.0**-53 * 4).astype(np.float32)


class Overlapping(StandIn):
    """A stand-in whose steps are computed as late as a GPU may: when somebody waits, in the order of their start."""

    def __init__(self, limits: Limits, pages: int, vocabulary: int = 17) -> None:
        super().__init__(limits, pages, vocabulary)
        # Steps that were not computed yet, with room for their rows, and tables of their texts.
        self.started: list[tuple[list[Chunk], list[Any], dict[Any, Any]]] = []
        self.tables: dict[Any, Any] = {}  # of the last step's texts
        self.previous: list[int] = []  # tokens that the last step chose
        self.most_ahead = 0

    def start(self, chunks: Any) -> Any:
        copied = [chunk._replace(tokens=list(chunk.tokens), pages=list(chunk.pages)) for chunk in chunks]
        rows: list[Any] = []
        texts = [draw.history for chunk in chunks for draw in chunk.draws if draw is not None and draw.history]
        known = {text: self.tables.get(text) or text.tables(self.vocabulary) for text in texts}
        self.tables = known  # those of other texts are lost
        if len(self.started) == 2:  # nobody waited for the first one
            self._compute()
        self.started.append((copied, rows, known))
        self.most_ahead = max(self.most_ahead, len(self.started))
        return lambda: self.finish(rows)

    def finish(self, rows: list[Any]) -> list[Any]:
        while any(rows is waiting for _, waiting, _ in self.started):
            self._compute()
        return rows

    def _compute(self) -> None:
        chunks, found, tables = self.started.pop(0)
        known = [
            chunk._replace(tokens=[token if token >= 0 else max(0, self.previous[-1 - token])
                                   for token in chunk.tokens])
            for chunk in chunks
        ]  # fmt: skip
        draws = [draw for chunk in chunks for draw in chunk.draws or [None] * len(chunk.wanted)]
        found += [self._chosen(row, draw, tables) for row, draw in zip(self.run(known), draws, strict=True)]
        self.previous = [row if isinstance(row, int) else 0 for row in found]

    def _chosen(self, logits: np.ndarray, draw: Draw | None, tables: dict[Any, Any]) -> Any:
        if draw is None:
            return logits
        nothing = np.zeros(self.vocabulary, np.int32)
        seen, biases = tables.get(draw.history, (nothing, nothing))
        both = [np.concatenate([nothing, table]) for table in (seen, biases)]
        penalties = draw.history.penalties if draw.history else (0.0, 0.0, 1.0)
        numbers = [np.array([value]) for value in (*draw[:5], int(draw.history is not None), *penalties)]
        (token,) = choose([logits[None], *numbers, *both], {})
        seen[max(token, 0)] += 1
        return int(token)


@contextlib.contextmanager
def served(application: Any) -> Iterator[str]:
    """A server of an application in a thread of this process, with the options of the command; gives its address."""
    import uvicorn

    options = UVICORN_OPTIONS | {"log_level": "error", "lifespan": "off"}
    server = uvicorn.Server(uvicorn.Config(application, port=0, **options))
    thread = threading.Thread(target=server.run, daemon=True)
    thread.start()
    end = time.monotonic() + 60
    while not server.started and time.monotonic() < end:
        time.sleep(0.01)
    try:
        yield f"http://127.0.0.1:{server.servers[0].sockets[0].getsockname()[1]}"
    finally:
        server.should_exit = True
        thread.join(30)


def shown(output: Any) -> list[tuple[list[int], str, str | None]]:
    """What of an output does not depend on what else runs."""
    return [(one.tokens, one.text, one.finish_reason) for one in output.completions]


def check_together(engine: Any, requests: Sequence[Any], finish: Any, alone: Any) -> dict[str, Any]:
    """Requests (prompt, parameters, salt, steps before it comes) that run together give what each gives alone.

    `finish` runs an engine to its end and gives the outputs by name, as this does.
    """
    names, done = [], {}
    for prompt, parameters, salt, wait in requests:
        for _ in range(wait):
            done |= {output.request: output for output in engine.step() if output.is_finished}
        names.append(engine.add(prompt, parameters, salt=salt))
    done |= finish(engine)
    for name, (prompt, parameters, _, _) in zip(names, requests, strict=True):
        assert shown(done[name]) == shown(alone(prompt, parameters))
    return done


BFLOAT16 = ml_dtypes.bfloat16

CHAT = """{% for message in messages %}<|{{ message.role }}|>{{ message.content }}</s>{% endfor %}\
{% if add_generation_prompt %}<|assistant|>{% endif %}"""


def text_checkpoint(folder: Path, template: str | None = CHAT, **changes: Any) -> Path:
    """A Llama whose tokens are bytes, with the files that texts and chats need, in the formats of real checkpoints."""
    import tokenizers
    from tokenizers import decoders, models, pre_tokenizers

    from tests.host.llm_reference import Reference

    special = ["<s>", "</s>", "<|system|>", "<|user|>", "<|assistant|>"]
    letters = sorted(pre_tokenizers.ByteLevel.alphabet())
    vocabulary = {letter: number for number, letter in enumerate(letters)}
    tokenizer = tokenizers.Tokenizer(models.BPE(vocab=vocabulary, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens(special)
    settings = {**CASES["llama"], "vocab_size": tokenizer.get_vocab_size(), "eos_token_id": 257, **changes}
    model = Reference(settings)
    model.logits([0])
    write_checkpoint(folder, settings, model.shapes)
    tokenizer.save(str(folder / "tokenizer.json"))
    named = {"bos_token": "<s>", "eos_token": {"content": "</s>"}}
    (folder / "tokenizer_config.json").write_text(json.dumps(named | ({} if template is None else
                                                                      {"chat_template": template})))  # fmt: skip
    return folder
