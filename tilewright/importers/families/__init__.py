"""Model families of Hugging Face checkpoints: one small file each, registered here.

A family is ``build(checkpoint, dimensions) -> Graph``; the key is `model_type` in config.json.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from tilewright.graph.core import Graph
from tilewright.importers.families import bert
from tilewright.importers.shapes import Axes

if TYPE_CHECKING:
    from tilewright.importers.huggingface import Checkpoint

Build = Callable[["Checkpoint", dict[str, Axes], str], Graph]

FAMILIES: dict[str, Build] = {
    "bert": bert.build,
}
