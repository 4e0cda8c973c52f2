"""The demo's sentences and what surrounds the model: tokens in, one unit vector a sentence out."""

from __future__ import annotations

from pathlib import Path

import numpy as np

SENTENCES = [  # pairs of one meaning: 0-1, 2-3, 4-5, 6-7
    "A man is playing a guitar on the street.",
    "Someone performs music outdoors with a guitar.",
    "The stock market fell sharply on Monday.",
    "Shares dropped a lot at the start of the week.",
    "My cat sleeps on the sofa all day.",
    "The kitten spends its days napping on the couch.",
    "How do I reset my password?",
    "I forgot my login credentials and cannot sign in.",
]


def encode(folder: Path, sentences: list[str]) -> dict[str, np.ndarray]:
    """Token ids, attention mask and token types, each int64 [sentences, longest]."""
    from tokenizers import Tokenizer

    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    tokenizer.no_padding()
    encoded = tokenizer.encode_batch(sentences)
    longest = max(len(entry.ids) for entry in encoded)

    def padded(rows: list[list[int]]) -> np.ndarray:
        return np.array([row + [0] * (longest - len(row)) for row in rows], np.int64)

    return {
        "input_ids": padded([entry.ids for entry in encoded]),
        "attention_mask": padded([entry.attention_mask for entry in encoded]),
        "token_type_ids": padded([entry.type_ids for entry in encoded]),
    }


def pool(hidden: np.ndarray, attention_mask: np.ndarray) -> np.ndarray:
    """Mean over the real tokens, then unit length: [sentences, hidden size]."""
    weights = attention_mask[..., None].astype(hidden.dtype)
    mean = (hidden * weights).sum(axis=1) / weights.sum(axis=1)
    return mean / np.linalg.norm(mean, axis=1, keepdims=True)
