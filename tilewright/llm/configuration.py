"""Reads config.json of a language model; every error names the key."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NoReturn

from tilewright.errors import ImportModelError
from tilewright.importers.huggingface import Checkpoint


class Configuration:
    """The settings of a checkpoint, by type and with the family's defaults, which null stands for as well where a
    setting must have a value."""

    def __init__(self, checkpoint: Checkpoint) -> None:
        self.nulls = {key for key, value in checkpoint.config.items() if value is None}
        checkpoint.config = {key: value for key, value in checkpoint.config.items() if value is not None}
        self.checkpoint = checkpoint
        self.values: dict[str, Any] = checkpoint.config

    def refuse(self, key: str, why: str) -> NoReturn:
        """Raise `ImportModelError` that names a key and shows its value."""
        value: Any = self.values
        for part in key.split("."):
            value = value.get(part) if isinstance(value, dict) else None
        raise ImportModelError(f"{self.checkpoint.folder / 'config.json'}: {key!r} is {repr(value)[:200]}: {why}")

    def number(self, key: str, default: int | None = None, low: int = 1, high: int = 2**31 - 1) -> int:
        """A whole number from `low` to `high`."""
        return self.checkpoint.number(key, default, low, high)

    def optional(self, key: str, default: int | None = None) -> int | None:
        """A whole number from 1; None for null."""
        if key in self.values or (default is not None and key not in self.nulls):
            return self.number(key, default)
        return None

    def real(self, key: str, default: float | None = None, low: float = 0.0, high: float = 1e30) -> float:
        """A number from `low` to `high`."""
        value: float = self.checkpoint.setting(key, float, default)
        if not low <= value <= high:
            self.refuse(key, f"expected {low:g} to {high:g}")
        return value

    def flag(self, key: str, default: bool = False) -> bool:
        """true or false."""
        value: bool = self.checkpoint.setting(key, bool, default)
        return value

    def word(self, key: str, default: str, known: Sequence[str]) -> str:
        """One of the words that are known."""
        value: str = self.checkpoint.setting(key, str, default)
        if value not in known:
            self.refuse(key, f"known are {', '.join(known)}")
        return value

    def expect(self, key: str, value: Any) -> None:
        """Refuse a setting that is there and is another one."""
        if self.values.get(key, value) != value:
            self.refuse(key, f"only {value!r} is supported")

    def layer_types(self, layers: int, default: Sequence[str]) -> list[str]:
        """What attention each layer has: ``full_attention`` or ``sliding_attention``."""
        if "layer_types" not in self.values:
            return list(default)
        types = self.values["layer_types"]
        if not isinstance(types, list) or len(types) != layers:
            self.refuse("layer_types", f"expected a list of {layers}")
        if any(item not in ("full_attention", "sliding_attention") for item in types):
            self.refuse("layer_types", "known are full_attention, sliding_attention")
        return types
