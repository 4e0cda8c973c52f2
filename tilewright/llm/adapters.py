"""Low-rank adapters (LoRA; Hu et al., 2021) in PEFT's folders, several at once in one step.

The factors of all adapters of a product lie side by side: `x A^T` [tokens, all ranks] is what each adapter would add
before its second factor, a mask by each token's adapter keeps its own part, scaled, and a product by the other factors
adds it.  So tokens of different adapters share the step, and a token without one gets what it gets without adapters.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from tilewright.errors import ImportModelError
from tilewright.importers.huggingface import read_safetensors, read_settings

MOST_RANKS = 512  # of an adapter
_PREFIXES = ("base_model.model.", "model.", "transformer.")
_PARTS = (".lora_A.weight", ".lora_B.weight")
# What changes the meaning of the factors, with the values that do not.
_PLAIN: dict[str, tuple[Any, ...]] = {
    "bias": (None, "none"), "use_dora": (None, False), "fan_in_fan_out": (None, False), "modules_to_save": (None, []),
    "lora_bias": (None, False), "use_qalora": (None, False), "alora_invocation_tokens": (None,),
    "init_lora_weights": (None, True, False, "gaussian", "eva", "orthogonal"),  # others change the weights below them
    "trainable_token_indices": (None,), "layer_replication": (None, []), "target_parameters": (None, []),
}  # fmt: skip


@dataclass(frozen=True)
class Factors:
    """What an adapter adds to a product by [rows, columns]: scale B A."""

    first: np.ndarray  # A [rank, columns]
    second: np.ndarray  # B [rows, rank]
    scale: float


def read_adapter(folder: str | Path) -> dict[str, Factors]:
    """The factors of an adapter by the path of their product.

    Raises `ImportModelError` for what is missing, cannot be read, or is no plain LoRA; it names the key or the tensor.
    """
    folder = Path(folder)
    config = _config(folder / "adapter_config.json")
    path = folder / "adapter_model.safetensors"
    if not path.is_file():
        raise ImportModelError(f"{path}: missing; an adapter is a folder with adapter_config.json and this file")
    tensors = read_safetensors(path)
    found: dict[str, Factors] = {}
    for name in tensors:
        part = next((part for part in _PARTS if name.endswith(part)), None)
        if part is None:
            raise ImportModelError(f"{path}: {name[:200]} is no factor of a LoRA adapter")
        target = name.removesuffix(part)
        if part == _PARTS[0]:
            found[_plain_path(target)] = _factors(path, target, tensors, config)
        elif target + _PARTS[0] not in tensors:
            raise ImportModelError(f"{path}: {name[:200]} has no {_PARTS[0][1:]} to go with it")
    if not found:
        raise ImportModelError(f"{path}: holds no factors")
    return found


def _factors(path: Path, target: str, tensors: Mapping[str, np.ndarray], config: Mapping[str, Any]) -> Factors:
    first, second = tensors[target + _PARTS[0]], tensors.get(target + _PARTS[1])
    if second is None:
        raise ImportModelError(f"{path}: {target[:200]}{_PARTS[0]} has no {_PARTS[1][1:]} to go with it")
    if first.ndim != 2 or second.ndim != 2 or first.shape[0] != second.shape[1]:
        raise ImportModelError(
            f"{path}: the factors of {target[:200]} have the shapes {first.shape} and {second.shape}"
        )
    if not 0 < first.shape[0] <= MOST_RANKS or any(one.dtype.kind not in "fV" for one in (first, second)):
        raise ImportModelError(f"{path}: the factors of {target[:200]} are no floats of a rank up to {MOST_RANKS}")
    rank, alpha = (_of_target(config, key, pattern, target) for key, pattern in
                   (("r", "rank_pattern"), ("lora_alpha", "alpha_pattern")))  # fmt: skip
    if rank != first.shape[0]:
        raise ImportModelError(
            f"{path}: {target[:200]} has the rank {first.shape[0]}, and adapter_config.json says {rank}"
        )
    scale = float(alpha) / (rank**0.5 if config.get("use_rslora") else rank)
    return Factors(first.astype(np.float32), second.astype(np.float32), scale)


def _of_target(config: Mapping[str, Any], key: str, pattern: str, target: str) -> Any:
    """A number of the configuration, or a target's own: its path, or the end of it."""
    own = config.get(pattern) or {}
    return next((value for name, value in own.items() if f".{target}".endswith(f".{name}")), config[key])


def _config(path: Path) -> dict[str, Any]:
    if not os.path.lexists(path):
        raise ImportModelError(f"{path}: missing; an adapter is a folder with this file and adapter_model.safetensors")
    config = read_settings(path)
    if config.get("peft_type") != "LORA":
        raise ImportModelError(f"{path}: 'peft_type' is not LORA, the only kind of adapter that is supported")
    for key, values in _PLAIN.items():
        if config.get(key) not in values:
            raise ImportModelError(f"{path}: {key!r} is {str(config[key])[:100]}, which is not supported")
    numbers = [("r", config.get("r")), ("lora_alpha", config.get("lora_alpha"))]
    for pattern in ("rank_pattern", "alpha_pattern"):
        own = config.get(pattern) or {}
        if not isinstance(own, dict):
            raise ImportModelError(f"{path}: {pattern!r} is no object")
        numbers += [(pattern, value) for value in own.values()]
    for key, value in numbers:
        if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 < value <= 1e6:
            raise ImportModelError(f"{path}: {key!r} is {str(value)[:50]}, expected a number above 0")
    return config


def _plain_path(target: str) -> str:
    """A target's path as families write it."""
    for prefix in _PREFIXES:
        target = target.removeprefix(prefix)
    return target


class Adapters:
    """Adapters by name, for one step; number 0 is none of them."""

    def __init__(self, folders: Mapping[str, str | Path]) -> None:
        self._each = {name: read_adapter(folder) for name, folder in folders.items()}
        self._left = {name: set(factors) for name, factors in self._each.items()}
        self.folders = dict(folders)

    def __bool__(self) -> bool:
        return bool(self._each)

    def take(self, path: str, rows: int, columns: int) -> tuple[np.ndarray, np.ndarray, np.ndarray] | None:
        """All factors of a product: [ranks, columns], [rows, ranks], and the scale of each rank for each adapter's
        number [adapters + 1, ranks]; None where no adapter has some."""
        having = [(number, name) for number, name in enumerate(self._each, 1) if path in self._each[name]]
        if not having:
            return None
        firsts, seconds, widths = [], [], []
        for _, name in having:
            factors = self._each[name][path]
            self._left[name].discard(path)
            if factors.first.shape[1] != columns or factors.second.shape[0] != rows:
                raise ImportModelError(
                    f"the adapter {name!r} ({self.folders[name]}) is for another model: {path} is {rows} by {columns} "
                    f"there, and its factors {factors.second.shape[0]} by {factors.first.shape[1]}"
                )
            firsts.append(factors.first)
            seconds.append(factors.second)
            widths.append(len(factors.first))
        scales = np.zeros((len(self._each) + 1, sum(widths)), np.float32)
        for (number, name), width, end in zip(having, widths, np.cumsum(widths), strict=True):
            scales[number, end - width : end] = self._each[name][path].scale
        return np.concatenate(firsts), np.concatenate(seconds, axis=1), scales

    def finish(self) -> None:
        """Raises `ImportModelError` for targets that the model does not have, or that cannot be adapted."""
        for name, paths in self._left.items():
            if paths:
                raise ImportModelError(
                    f"the adapter {name!r} ({self.folders[name]}) has {len(paths)} targets that the model lacks "
                    f"or that cannot be adapted, such as {min(paths)[:200]}"
                )
