"""Rotary positions: the frequencies of a head's pairs, for every kind of scaling.

A pair (a, b) of a head at position p is turned by the angle p f; `frequencies` are the f of all pairs, `factor` scales
sines and cosines.  The ways, by `rope_type`:

    default    f_i = theta^(-2 i / width)           Su et al., "RoFormer", 2021
    linear     f / factor                           Chen et al., "Extending Context Window of LLMs", 2023
    dynamic    theta for the longest sequence       "NTK-aware scaling", as published with transformers
    llama3     low frequencies / factor, smoothly   Llama 3.1
    yarn       by parts, with a factor              Peng et al., "YaRN", 2023
    longrope   a factor for each pair               Ding et al., "LongRoPE", 2024

Keys are kept as they were turned once, so frequencies cannot depend on how long a sequence has become: `dynamic` and
`longrope` take those of `length`, the longest sequence that the engine is made for.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np

from tilewright.llm.configuration import Configuration

ROTARY_KINDS = ("default", "linear", "dynamic", "llama3", "yarn", "longrope")
_SYNONYMS = {"su": "longrope"}


@dataclass(frozen=True)
class Rotary:
    """`frequencies` float32 [width / 2] in radians a token; sines and cosines are multiplied by `factor`."""

    frequencies: np.ndarray
    factor: float

    @property
    def width(self) -> int:
        """How many of a head's elements are turned; the others stay."""
        return 2 * len(self.frequencies)


@dataclass(frozen=True)
class _Setting:
    """The parameters of one kind of layer, where they stand in config.json, and what they apply to."""

    configuration: Configuration
    key: str
    values: dict[str, Any]
    theta: float
    width: int
    positions: int  # that the model was trained with
    length: int

    def real(self, name: str, default: float | None = None) -> float:
        value = self.values.get(name)
        value = default if value is None else value
        if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 < value < 1e30:
            self.configuration.refuse(f"{self.key}.{name}", "expected a number above 0")
        return float(value)

    def plain(self) -> np.ndarray:
        return self._of(self.theta)

    def _of(self, theta: float) -> np.ndarray:
        exponents = np.arange(0, self.width, 2, dtype=np.float32) / np.float32(self.width)
        return (1.0 / np.float32(theta) ** exponents).astype(np.float32)

    def dynamic(self) -> np.ndarray:
        if self.length <= self.positions:
            return self.plain()
        factor = self.real("factor")
        growth = factor * self.length / self.positions - (factor - 1)
        return self._of(self.theta * growth ** (self.width / (self.width - 2)))


def read_rotary(
    configuration: Configuration,
    head_width: int,
    length: int,
    layer_type: str | None = None,
    theta: float = 10000.0,
) -> Rotary:
    """The rotary positions of a checkpoint for heads of `head_width` and sequences of up to `length` tokens.

    `layer_type` picks the parameters where layers have their own, `theta` is the family's default.  Raises
    `ImportModelError`, which names the key, for what is unknown or missing.
    """
    setting = _setting(configuration, head_width, length, layer_type, theta)
    kind = setting.values.get("rope_type", setting.values.get("type", "default"))
    kind = _SYNONYMS.get(kind, kind) if isinstance(kind, str) else kind
    if kind not in ROTARY_KINDS:
        name = "rope_type" if "rope_type" in setting.values else "type"
        configuration.refuse(f"{setting.key}.{name}", f"known are {', '.join(ROTARY_KINDS)}")
    if kind == "linear":
        return Rotary(setting.plain() / np.float32(setting.real("factor")), 1.0)
    if kind == "dynamic":
        return Rotary(setting.dynamic(), 1.0)
    if kind == "llama3":
        return Rotary(_llama3(setting), 1.0)
    if kind == "yarn":
        return _yarn(setting)
    if kind == "longrope":
        return _longrope(setting)
    return Rotary(setting.plain(), 1.0)


def _setting(
    configuration: Configuration, head_width: int, length: int, layer_type: str | None, theta: float
) -> _Setting:
    values = configuration.values
    key = "rope_parameters" if "rope_parameters" in values else "rope_scaling"
    found = values.get(key, {})
    if isinstance(found, dict) and layer_type is not None and layer_type in found:
        key, found = f"{key}.{layer_type}", found[layer_type]
    if not isinstance(found, dict):
        configuration.refuse(key, "expected an object")
    base = found.get("rope_theta")
    base = configuration.real("rope_theta", theta, 1.0) if base is None else base
    if isinstance(base, bool) or not isinstance(base, (int, float)) or not 1 <= base < 1e30:
        configuration.refuse(f"{key}.rope_theta", "expected a number from 1")
    part = found.get("partial_rotary_factor", values.get("partial_rotary_factor", 1.0))
    if isinstance(part, bool) or not isinstance(part, (int, float)) or not 0 < part <= 1:
        configuration.refuse("partial_rotary_factor", "expected a number above 0, at most 1")
    width = int(head_width * part)
    if width < 4 or width % 2:
        configuration.refuse("partial_rotary_factor", f"{width} of {head_width} elements cannot be turned in pairs")
    positions = configuration.number("max_position_embeddings", length)
    return _Setting(configuration, key, found, float(base), width, positions, length)


def _original(setting: _Setting) -> float:
    """Positions before they were stretched."""
    top = setting.configuration.values.get("original_max_position_embeddings", setting.positions)
    return setting.real("original_max_position_embeddings", top)


def _llama3(setting: _Setting) -> np.ndarray:
    frequencies = setting.plain()
    factor, low, high = (setting.real(name) for name in ("factor", "low_freq_factor", "high_freq_factor"))
    if high <= low:
        setting.configuration.refuse(f"{setting.key}.high_freq_factor", "expected more than low_freq_factor")
    rotations = np.float32(_original(setting)) * frequencies / np.float32(2 * math.pi)  # within the trained positions
    smooth = (rotations - np.float32(low)) / np.float32(high - low)
    mixed = (1 - smooth) * frequencies / np.float32(factor) + smooth * frequencies
    result = np.where(rotations < low, frequencies / np.float32(factor), np.where(rotations > high, frequencies, mixed))
    return result.astype(np.float32)


def _yarn(setting: _Setting) -> Rotary:
    original = _original(setting)
    factor = setting.real("factor", setting.positions / original)
    width, theta = setting.width, setting.theta

    def pair(rotations: float) -> float:
        """Which pair turns so often within the original positions, as a real number."""
        return width * math.log(original / (rotations * 2 * math.pi)) / (2 * math.log(theta))

    low, high = pair(setting.real("beta_fast", 32)), pair(setting.real("beta_slow", 1))
    if setting.values.get("truncate", True):
        low, high = math.floor(low), math.ceil(high)
    low, high = max(low, 0), min(high, width - 1)
    high = high + 0.001 if low == high else high
    ramp = np.clip((np.arange(width // 2, dtype=np.float32) - np.float32(low)) / np.float32(high - low), 0, 1)
    plain = setting.plain()
    frequencies = plain / np.float32(factor) * ramp + plain * (1 - ramp)
    return Rotary(frequencies.astype(np.float32), _yarn_factor(setting, factor))


def _yarn_factor(setting: _Setting, factor: float) -> float:
    if setting.values.get("attention_factor") is not None:
        return setting.real("attention_factor")

    def scale(multiple: float) -> float:
        return 1.0 if factor <= 1 else 0.1 * multiple * math.log(factor) + 1.0

    if setting.values.get("mscale") and setting.values.get("mscale_all_dim"):
        return scale(setting.real("mscale")) / scale(setting.real("mscale_all_dim"))
    return scale(1.0)


def _longrope(setting: _Setting) -> Rotary:
    original = _original(setting)
    name = "long_factor" if setting.length > original else "short_factor"
    factors = setting.values.get(name)
    wanted = isinstance(factors, list) and len(factors) == setting.width // 2
    if not wanted or not all(isinstance(item, (int, float)) and item > 0 for item in factors or ()):
        setting.configuration.refuse(f"{setting.key}.{name}", f"expected {setting.width // 2} numbers above 0")
    stretched = setting.real("factor", setting.positions / original)
    if setting.values.get("attention_factor") is not None:
        scale = setting.real("attention_factor")
    else:
        scale = 1.0 if stretched <= 1 else math.sqrt(1 + math.log(stretched) / math.log(original))
    return Rotary(setting.plain() / np.asarray(factors, np.float32), scale)
