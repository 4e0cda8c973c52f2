"""What makes the candidates of a fused group: a table for each family of targets, by the group's class."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from tilewright.graph.core import Graph
from tilewright.graph.fusion import Group
from tilewright.library.candidate import Candidate
from tilewright.targets.base import Target

Maker = Callable[[Group, Graph, Target], list[Candidate]]
VendorMaker = Callable[[Group, Graph, Target, float], list[Candidate]]  # with the seconds of the best of our kernels


@dataclass(frozen=True)
class Makers:
    """By a group's class: our kernels, and the calls of a vendor's library that may be faster than the best of them."""

    own: Mapping[str, Maker]
    vendor: Mapping[str, VendorMaker] = field(default_factory=dict)
