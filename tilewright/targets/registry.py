"""The targets of tilewright, made of the table of families (`families.py`)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from tilewright.errors import TargetError, a_kind
from tilewright.graph.kernel_facts import common_facts
from tilewright.graph.target_passes import TargetPasses, shared
from tilewright.precision import IEEE, PRECISIONS, TF32, split_name
from tilewright.targets.base import Backend, Target
from tilewright.targets.families import FAMILIES, FamilyParts, part
from tilewright.targets.machine import Machine


@dataclass(frozen=True)
class TargetFamily:
    """Machines that one compiler is for: those of this machine, by name, and as others tell of them."""

    host: Callable[[], Target]  # this machine's
    named: Callable[[str], Target]
    of_generation: Callable[[int | str], Target]  # `Target.generation`, or one near it whose code runs there
    of_device: Callable[[Any], Target]  # of this machine's, as its runtime describes it
    recorded: Callable[[str, Sequence[str], int], Machine]  # by architecture, features and threads of an engine's file
    backend: Callable[[Any], Backend]  # of a target of the family
    option_names: frozenset[str]  # of a launch, that change its code


def _family(row: FamilyParts) -> TargetFamily:
    table, backend = part(row.target), part(row.backend)
    return TargetFamily(
        host=table.host, named=table.named, of_generation=table.of_generation, of_device=table.of_device,
        recorded=table.recorded_machine, backend=backend, option_names=backend.option_names,
    )  # fmt: skip


TARGETS: dict[str, TargetFamily] = {name: _family(row) for name, row in FAMILIES.items()}


def get_target(name: str | Target = "auto", precision: str = IEEE) -> Target:
    """A target by name: ``cpu`` and ``cuda`` are this machine's, ``cpu:MODEL`` and ``cuda:sm_90a`` cross-compile.

    With the precision ``tf32`` products and convolutions of float32 models multiply as tf32, where the machine does.
    ``auto`` is the CPU; a kernel that is launched on tensors of a GPU is compiled for that GPU all the same.
    A target object is returned as it is, but for the precision.  Raises `TargetError` naming the known targets and
    precisions.
    """
    if not isinstance(name, str):
        if not hasattr(name, "name"):
            raise TargetError(f"a target is given by its name, such as cpu, cuda or cuda:sm_90a, not as {a_kind(name)}")
        return name if precision == IEEE else name.with_precision(_known(precision))
    plain, choice = split_name(name)
    family, _, model = ("cpu" if plain == "auto" else plain).partition(":")
    if family not in TARGETS:
        raise TargetError(
            f"unknown target {name!r}: choose auto, {', '.join(TARGETS)}, or one such as cuda:sm_90a that names a model"
        )
    found = TARGETS[family]
    target = found.named(model) if model else found.host()
    target = target.with_precision(_known(precision if choice is None else choice))
    if choice is not None and not target.tf32:
        raise TargetError(f"target {name!r}: {_FOR_GPUS}")
    return target


def get_targets(names: Sequence[str | Target], precision: str = IEEE) -> list[Target]:
    """`get_target` for several, of which one at least has the precision; raises `TargetError`."""
    targets = [get_target(name, precision) for name in names]
    if precision == TF32 and targets and not any(target.tf32 for target in targets):
        raise TargetError(f"precision {precision!r}: {_FOR_GPUS}")
    return targets


_FOR_GPUS = "tf32 is for GPUs, CPUs multiply float32 as float32"


def _known(precision: str) -> str:
    if precision not in PRECISIONS:
        raise TargetError(f"unknown precision {precision!r}: choose {' or '.join(PRECISIONS)}")
    return precision


def backend_of(target: Target) -> Backend:
    """What compiles for a target."""
    return TARGETS[target.name].backend(target)


def graph_passes(targets: Sequence[Target]) -> TargetPasses:
    """What is done with a graph that is built for several targets, besides what is done with all graphs."""
    return shared([backend_of(target).graph_passes for target in targets])


def for_kernels_of(targets: Sequence[Target]) -> TargetPasses:
    """The passes of all graphs alone, as what kernels these targets have."""
    return TargetPasses(kernels=common_facts([target.kernels for target in targets]))


def target_of_generation(family: str, generation: int | str) -> Target:
    """The target that compiles for a machine as host code of kernels names it (`Target.generation`), or for one near
    it whose code runs there; raises `TargetError` for a machine that there is no target for."""
    if family not in TARGETS:
        raise TargetError(f"there is no target for the backend {family!r}: choose {' or '.join(TARGETS)}")
    return TARGETS[family].of_generation(generation)


def target_of_device(family: str, device: Any) -> Target:
    """What to compile for a device of this machine, as the runtime of its family describes it; raises `TargetError`
    for one that no target serves."""
    return TARGETS[family].of_device(device)


def machine_for(target: str, features: Sequence[str], threads: int) -> Machine:
    """The machine that a program is for: ``cuda:sm_90a``, or ``cpu`` with LLVM's names of its features."""
    family, _, architecture = target.partition(":")
    return TARGETS[family].recorded(architecture, features, threads)
