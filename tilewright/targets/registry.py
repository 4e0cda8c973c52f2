"""The targets tilewright knows: an explicit list, one line each."""

from __future__ import annotations

from collections.abc import Callable

from tilewright.errors import TargetError, a_kind
from tilewright.targets.base import Target
from tilewright.targets.cpu.target import CPUTarget
from tilewright.targets.nvidia.target import NvidiaTarget

# family -> (this machine's device, a device by name)
TARGETS: dict[str, tuple[Callable[[], Target], Callable[[str], Target]]] = {
    "cpu": (CPUTarget.host, CPUTarget.named),
    "cuda": (NvidiaTarget.host, NvidiaTarget.named),
}


def get_target(name: str | Target = "auto") -> Target:
    """A target by name: ``cpu`` and ``cuda`` are this machine's, ``cpu:MODEL`` and ``cuda:sm_90a`` cross-compile.

    A GPU's name may end with ``+tf32``: then the products and convolutions of float32 models multiply as tf32.
    ``auto`` is the CPU; a kernel that is launched on tensors of a GPU is compiled for that GPU all the same.
    A target object is returned as it is.  Raises `TargetError` naming the known targets.
    """
    if not isinstance(name, str):
        if not hasattr(name, "name"):
            raise TargetError(f"a target is given by its name, such as cpu, cuda or cuda:sm_90a, not as {a_kind(name)}")
        return name
    plain, *choices = ("cpu" if name == "auto" else name).split("+")
    family, _, model = plain.partition(":")
    if family not in TARGETS:
        raise TargetError(
            f"unknown target {name!r}: choose auto, {', '.join(TARGETS)}, or one such as cuda:sm_90a that names a model"
        )
    host, named = TARGETS[family]
    target = named(model) if model else host()
    if not choices:
        return target
    if not isinstance(target, NvidiaTarget):
        raise TargetError(f"target {name!r}: +tf32 is for GPUs, CPUs multiply float32 as float32")
    return target.with_choices(choices)
