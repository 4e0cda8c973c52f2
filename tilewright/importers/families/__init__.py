"""Model families of Hugging Face checkpoints: one small file each, registered here.

A family is ``build(checkpoint, dimensions) -> Graph``; the key is `model_type` in config.json.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from tilewright.errors import ImportModelError
from tilewright.graph.core import Graph
from tilewright.importers.families import bert
from tilewright.importers.huggingface import Checkpoint
from tilewright.importers.shapes import Axes, parse_dynamic_shapes

Build = Callable[[Checkpoint, dict[str, Axes], str], Graph]

ENCODER_FAMILIES: dict[str, Build] = {
    "bert": bert.build,
}


def import_checkpoint(folder: Path, dynamic_shapes: Mapping[str, Any] | None = None, name: str | None = None) -> Graph:
    """Import a checkpoint folder; raises `ImportModelError` for an unknown family or unfitting weights."""
    checkpoint = Checkpoint(Path(folder))
    family = checkpoint.config.get("model_type")
    if not isinstance(family, str) or family not in ENCODER_FAMILIES:
        raise ImportModelError(
            f"{folder}: model_type {repr(family)[:100]} has no importer yet; known: {', '.join(ENCODER_FAMILIES)}. "
            "Import the model through PyTorch (torch.export) or ONNX, or add a family (docs/internals/importers.md)."
        )
    return ENCODER_FAMILIES[family](
        checkpoint, parse_dynamic_shapes(dynamic_shapes), name or Path(folder).resolve().name
    )
