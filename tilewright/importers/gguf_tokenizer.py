"""Converts the tokenizer of a GGUF file to the contents of tokenizer.json and tokenizer_config.json.

There are two kinds.  `gpt2` files have a vocabulary and a list of byte pair merges.  `llama` files have pieces of text
with scores and no merges, so the merges are computed: two pieces merge where the result is a piece too, and those
with the highest score merge first.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tilewright.errors import ImportModelError

_KEY = "tokenizer.ggml"
_CONTROL, _UNKNOWN_TOKEN, _BYTE = 3, 2, 6  # kinds of tokens
_MOST_LETTERS = 1024  # of a token: finding the merges of llama takes time by their square
_SPACE = "\u2581"
_LLAMA3 = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+"
    r"|\s+(?!\S)|\s+"
)
# Patterns of words by the name of the pre-tokenizer; None: that of GPT-2.
_WORDS: dict[str, str | None] = {
    "gpt-2": None, "default": None, "llama-bpe": _LLAMA3, "llama3": _LLAMA3, "qwen2": _LLAMA3.replace("{1,3}", "")
}  # fmt: skip


def tokenizer_of(metadata: Mapping[str, Any], path: Path) -> tuple[str, dict[str, Any]]:
    """The text of tokenizer.json, and the settings of tokenizer_config.json.

    Raises `ImportModelError` where the file holds no tokenizer, or one of another kind.
    """
    tokens, model = metadata.get(f"{_KEY}.tokens"), metadata.get(f"{_KEY}.model")
    if not tokens or model not in ("gpt2", "llama"):
        raise ImportModelError(
            f"{path}: {_KEY}.model is {str(model)[:40]!r}; tokenizers of gpt2 and llama can be read; prompts can be "
            "given as lists of tokens"
        )
    _check(metadata, tokens, path)
    kinds = list(metadata.get(f"{_KEY}.token_type") or [1] * len(tokens))
    content = (_bytes_of_gpt2 if model == "gpt2" else _pieces_of_llama)(metadata, list(tokens), kinds, path)
    special = [(number, tokens[number]) for number, kind in enumerate(kinds) if kind in (_CONTROL, _UNKNOWN_TOKEN)]
    content["added_tokens"] = [
        {"id": number, "content": text, "single_word": False, "lstrip": False, "rstrip": False, "normalized": False,
         "special": True}
        for number, text in special
    ]  # fmt: skip
    begin = metadata.get(f"{_KEY}.bos_token_id")
    if metadata.get(f"{_KEY}.add_bos_token", model == "llama") and begin is not None:
        content["post_processor"] = _with_begin(tokens[begin], int(begin))
    settings = {
        f"{name}_token": tokens[metadata[f"{_KEY}.{name}_token_id"]]
        for name in ("bos", "eos", "unk") if f"{_KEY}.{name}_token_id" in metadata
    }  # fmt: skip
    if "tokenizer.chat_template" in metadata:
        settings["chat_template"] = metadata["tokenizer.chat_template"]
    return json.dumps({"version": "1.0", "truncation": None, "padding": None, **content}), settings


def _check(metadata: Mapping[str, Any], tokens: Any, path: Path) -> None:
    """Raise `ImportModelError` for tokens that are no list of short texts, for accompanying lists of another length,
    and for the number of a token that there is not."""
    if not isinstance(tokens, list) or not all(isinstance(text, str) for text in tokens):
        raise ImportModelError(f"{path}: {_KEY}.tokens is no list of texts")
    longest = max(map(len, tokens))
    if longest > _MOST_LETTERS:
        raise ImportModelError(f"{path}: {_KEY}.tokens has a token of {longest} letters, at most {_MOST_LETTERS}")
    for name in ("token_type", "scores"):
        found = metadata.get(f"{_KEY}.{name}")
        if found is not None and (not isinstance(found, list) or len(found) not in (0, len(tokens))):
            count = len(found) if isinstance(found, list) else repr(found)[:40]
            raise ImportModelError(f"{path}: {_KEY}.{name} is {count}, for {len(tokens)} tokens")
    for name in ("bos", "eos", "unknown", "unk"):
        number = metadata.get(f"{_KEY}.{name}_token_id")
        if number is not None and (type(number) is not int or not 0 <= number < len(tokens)):
            raise ImportModelError(
                f"{path}: {_KEY}.{name}_token_id is {repr(number)[:40]}, and there are {len(tokens)} tokens"
            )


def _bytes_of_gpt2(metadata: Mapping[str, Any], tokens: list[str], kinds: list[int], path: Path) -> dict[str, Any]:
    name = metadata.get(f"{_KEY}.pre", "default")
    if name not in _WORDS:
        raise ImportModelError(f"{path}: {_KEY}.pre is {str(name)[:40]!r}; known are {', '.join(_WORDS)}")
    whole: dict[str, Any] = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True}
    words = _WORDS[name]
    before = {**whole, "use_regex": True}
    if words is not None:
        split = {"type": "Split", "pattern": {"Regex": words}, "behavior": "Isolated", "invert": False}
        before = {"type": "Sequence", "pretokenizers": [split, {**whole, "use_regex": False}]}
    merges = [list(merge.split(" ", 1)) for merge in metadata.get(f"{_KEY}.merges") or ()]
    vocabulary = {text: number for number, text in enumerate(tokens)}
    return {
        "normalizer": None, "pre_tokenizer": before, "decoder": {**whole, "use_regex": True}, "post_processor": None,
        "model": {"type": "BPE", "dropout": None, "unk_token": None, "continuing_subword_prefix": None,
                  "end_of_word_suffix": None, "fuse_unk": False, "byte_fallback": False, "vocab": vocabulary,
                  "merges": merges},
    }  # fmt: skip


def _pieces_of_llama(metadata: Mapping[str, Any], tokens: list[str], kinds: list[int], path: Path) -> dict[str, Any]:
    scores = list(metadata.get(f"{_KEY}.scores") or [0.0] * len(tokens))
    vocabulary = {text: number for number, text in enumerate(tokens)}
    found = []
    for text, number in vocabulary.items():
        if kinds[number] in (_CONTROL, _UNKNOWN_TOKEN, _BYTE):
            continue
        for cut in range(1, len(text)):
            left, right = vocabulary.get(text[:cut]), vocabulary.get(text[cut:])
            if left is not None and right is not None:
                found.append((-scores[number], left, right))
    found.sort()
    prefix = bool(metadata.get(f"{_KEY}.add_space_prefix", True))
    replace = {"type": "Replace", "pattern": {"String": " "}, "content": _SPACE}
    before = [{"type": "Prepend", "prepend": _SPACE}] if prefix else []
    after = [{"type": "Replace", "pattern": {"String": _SPACE}, "content": " "}, {"type": "ByteFallback"},
             {"type": "Fuse"}]  # fmt: skip
    after += [{"type": "Strip", "content": " ", "start": 1, "stop": 0}] if prefix else []
    unknown = metadata.get(f"{_KEY}.unknown_token_id")
    return {
        "normalizer": {"type": "Sequence", "normalizers": [*before, replace]}, "pre_tokenizer": None,
        "decoder": {"type": "Sequence", "decoders": after}, "post_processor": None,
        "model": {"type": "BPE", "dropout": None, "unk_token": None if unknown is None else tokens[unknown],
                  "continuing_subword_prefix": None, "end_of_word_suffix": None, "fuse_unk": True,
                  "byte_fallback": True, "vocab": vocabulary,
                  "merges": [[tokens[left], tokens[right]] for _, left, right in found]},
    }  # fmt: skip


def _with_begin(text: str, number: int) -> dict[str, Any]:
    """The post-processor that puts a token in front."""
    first = {"SpecialToken": {"id": text, "type_id": 0}}
    own, other = ({"Sequence": {"id": name, "type_id": kind}} for name, kind in (("A", 0), ("B", 1)))
    return {
        "type": "TemplateProcessing", "single": [first, own], "pair": [first, own, first, other],
        "special_tokens": {text: {"id": text, "ids": [number], "tokens": [text]}},
    }  # fmt: skip
