"""LLVM text of a CPU kernel -> object file bytes for one CPU."""

from __future__ import annotations

from tilewright.host import arithmetic_features
from tilewright.targets.cpu.target import CPUTarget
from tilewright.targets.llvm.optimize import MachineCode, MachineOptions, generate


def assemble(text: str, target: CPUTarget, keep_texts: bool = False) -> MachineCode:
    """The object file of a module: relocatable, position-independent, small code model.

    It calls nothing but what the text declares, memset, memcpy and memmove.  `keep_texts` adds the
    optimised LLVM text and the assembly.
    """
    return generate(text, machine_options(target), keep_texts)


def machine_options(target: CPUTarget) -> MachineOptions:
    """LLVM's options for a CPU: exactly the target's features, whatever its model is said to have."""
    known = arithmetic_features(target.architecture)
    absent = [f"-{name}" for name in sorted(known - set(target.features))]
    present = [f"+{name}" for name in target.features]
    features = ",".join(present + absent)
    return MachineOptions(target.triple, _base_cpu(target), features, quick=target.quick)


def function_attributes(target: CPUTarget, model: str | None = None) -> str:
    """Attributes that every function of a CPU kernel carries, as LLVM text.

    Vectors are kept at full width (LLVM would halve them on some AVX-512 models), and instructions
    are scheduled for `model`, by default the target's.
    """
    width = f'"prefer-vector-width"="{target.vector_bits}" "min-legal-vector-width"="{target.vector_bits}"'
    return f'nounwind {width} "tune-cpu"="{model or target.cpu}"'


def _base_cpu(target: CPUTarget) -> str:
    """A model without features of its own, so that the feature list alone says what may be used."""
    return "x86-64" if target.is_x86 else "generic"
