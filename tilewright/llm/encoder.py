"""`TextEncoder`: texts to vectors by an encoder of the BERT family.

encoder = TextEncoder("models/minilm")
vectors = encoder.encode(["A cat sits.", "A dog runs."])  # float32 [2, hidden], of length 1
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np

from tilewright.build.builder import build
from tilewright.errors import ImportModelError, InputError
from tilewright.importers.families import import_checkpoint
from tilewright.importers.huggingface import Checkpoint
from tilewright.llm.requests import tokens_of
from tilewright.llm.tokenizer import Tokenizer, read_json

_TOKENS, _SEQUENCES = 4096, 32  # of a batch
_POOLINGS = ("pooling_mode_mean_tokens", "pooling_mode_cls_token")


class TextEncoder:
    """An encoder that is ready to run; threads may share it.

    A text's vector is the mean of its tokens' last hidden states, or the first token's where the checkpoint says so
    (`1_Pooling/config.json` of sentence-transformers), divided by its length.  Raises `ImportModelError` for
    checkpoints that cannot be used.
    """

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)
        checkpoint = Checkpoint(self.path)
        if checkpoint.config.get("model_type") != "bert":
            raise ImportModelError(f"{self.path}: encoders of the model_type bert can be run")
        self.vocabulary = checkpoint.number("vocab_size")
        self.longest = checkpoint.number("max_position_embeddings")
        self.width = checkpoint.number("hidden_size")
        modes = read_json(self.path / "1_Pooling" / "config.json")
        chosen = [name for name, value in modes.items() if name.startswith("pooling_mode_") and value is True]
        if modes and (len(chosen) != 1 or chosen[0] not in _POOLINGS):
            raise ImportModelError(f"{self.path}/1_Pooling: one of {', '.join(_POOLINGS)} is supported")
        self._takes_first = chosen == ["pooling_mode_cls_token"]
        self.tokenizer = Tokenizer(self.path)
        self.engine = build(import_checkpoint(self.path))
        self.name = self.path.resolve().name
        self._lock = threading.Lock()

    def encode(self, texts: Sequence[str | Sequence[int]]) -> np.ndarray:
        """The vectors of texts, or of lists of tokens: float32 [texts, width].

        Raises `InputError` for a text that is empty or too long.
        """
        return self.encode_tokens([self.tokens(text) for text in texts])

    def tokens(self, text: str | Sequence[int]) -> list[int]:
        """The tokens of a text, with those around it that the model wants."""
        tokens = self.tokenizer.encode(text) if isinstance(text, str) else list(text)
        if len(tokens) > self.longest:
            raise InputError(f"a text has {len(tokens)} tokens; at most {self.longest} fit")
        return tokens_of(tokens, self.vocabulary)

    def encode_tokens(
        self, prompts: Sequence[Sequence[int]], is_over: Callable[[], bool] = lambda: False
    ) -> np.ndarray:
        """The vectors of lists of tokens, which run in batches of like lengths; zeros for what `is_over` leaves out."""
        vectors = np.zeros((len(prompts), self.width), np.float32)
        order = sorted(range(len(prompts)), key=lambda number: len(prompts[number]))
        while order and not is_over():
            most = min(_SEQUENCES, max(1, _TOKENS // len(prompts[order[-1]])))
            batch, order = order[-most:], order[:-most]
            vectors[batch] = self._run([prompts[number] for number in batch])
        return vectors

    def _run(self, prompts: Sequence[Sequence[int]]) -> np.ndarray:
        mask = np.zeros((len(prompts), max(map(len, prompts))), np.int64)
        ids = np.zeros_like(mask)
        for row, prompt in enumerate(prompts):
            ids[row, : len(prompt)], mask[row, : len(prompt)] = prompt, 1
        with self._lock:
            outputs = self.engine.run({"input_ids": ids, "attention_mask": mask, "token_type_ids": np.zeros_like(ids)})
            hidden = outputs["last_hidden_state"].astype(np.float32)
        if self._takes_first:
            pooled = hidden[:, 0]
        else:
            pooled = (hidden * mask[:, :, None]).sum(axis=1) / mask.sum(axis=1, keepdims=True)
        norms = np.linalg.norm(pooled, axis=1, keepdims=True)
        vectors: np.ndarray = pooled / np.maximum(norms, 1e-12)
        return vectors
