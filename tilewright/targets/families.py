"""The families of targets: one row says which modules one consists of.

They are named, and imported when they are first used: some belong to stages that import `targets`, and an engine for a
CPU is run without what GPUs need.  `registry.py` has the targets and their compilers, `launch/launchers.py`,
`engine/programs.py` and `library/select.py` take the rest.
"""

from __future__ import annotations

import importlib
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class FamilyParts:
    """The parts of a family by name, ``module`` or ``module:attribute``."""

    target: str  # the class of its tables of capabilities (`base.Target`)
    backend: str  # the class of its compilers (`base.Backend`)
    folders: frozenset[str]  # in `targets`: sources that its code depends on, and that of others does not
    launching: str  # a `launch.launchers.Launching`
    programs: str  # a module with what is in `engine.programs.Programs`
    makers: str  # a function that gives a `library.makers.Makers`


FAMILIES: dict[str, FamilyParts] = {
    "cpu": FamilyParts(
        target="tilewright.targets.cpu.target:CPUTarget",
        backend="tilewright.targets.cpu.backend:CPUBackend",
        folders=frozenset({"cpu"}),
        launching="tilewright.launch.cpu:CPU_LAUNCHING",
        programs="tilewright.engine.cpu_program",
        makers="tilewright.library.cpu_makers:cpu_makers",
    ),
    "cuda": FamilyParts(
        target="tilewright.targets.nvidia.target:NvidiaTarget",
        backend="tilewright.targets.nvidia.backend:NvidiaBackend",
        folders=frozenset({"gpu", "nvidia"}),
        launching="tilewright.launch.cuda:CUDA_LAUNCHING",
        programs="tilewright.engine.cuda_program",
        makers="tilewright.library.gpu_makers:gpu_makers",
    ),
}


def part(name: str) -> Any:
    """The module or the attribute that a row of the table names."""
    module, _, attribute = name.partition(":")
    found = importlib.import_module(module)
    return getattr(found, attribute) if attribute else found
