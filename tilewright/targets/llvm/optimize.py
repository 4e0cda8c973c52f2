"""LLVM text -> verified, optimised module -> object bytes or assembly, shared by the targets."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass, field

import llvmlite.binding as llvm

# LLVM modules made by one thread share a context, so one compilation runs at a time in a process.
_lock = threading.Lock()
if hasattr(os, "register_at_fork"):  # a child that compiles must not find it held by a thread that did not come along
    os.register_at_fork(before=_lock.acquire, after_in_parent=_lock.release, after_in_child=_lock.release)


@dataclass(frozen=True)
class MachineOptions:
    """How LLVM is asked to generate code."""

    triple: str
    cpu: str
    features: str  # "+avx2,+fma"
    speed_level: int = 2  # of the optimisation pipeline
    unroll: bool = False  # our lowering unrolls where it pays


@dataclass(frozen=True)
class MachineCode:
    """An object file, the texts asked for, and the seconds each stage took."""

    image: bytes
    assembly: str | None
    optimized: str | None
    seconds: Mapping[str, float] = field(default_factory=dict)


def initialize() -> None:
    """Register LLVM's code generators; safe to call again."""
    llvm.initialize_all_targets()
    llvm.initialize_all_asmprinters()


def create_target_machine(options: MachineOptions) -> llvm.TargetMachine:
    """A code generator for relocatable, position-independent code in the small code model."""
    initialize()
    target = llvm.Target.from_triple(options.triple)
    return target.create_target_machine(
        cpu=options.cpu, features=options.features, opt=3, reloc="pic", codemodel="default"
    )


def generate(text: str, options: MachineOptions, keep_texts: bool = False) -> MachineCode:
    """Verify, optimise and assemble a module given as LLVM text.

    The loop and SLP vectorisers stay off: the text is vectorised already, and what is scalar in it
    (tails, address arithmetic) is so on purpose.  Raises `RuntimeError` with LLVM's message when the
    text does not parse or verify: a mistake in the compiler, never in a user's kernel.
    """
    with _lock:
        module, machine, seconds = _optimized(text, options)
        assembly = machine.emit_assembly(module) if keep_texts else None
        optimized_text = str(module) if keep_texts else None
        started = time.perf_counter()
        image = machine.emit_object(module)
        seconds["emit"] = time.perf_counter() - started
    return MachineCode(image, assembly, optimized_text, seconds)


def generate_assembly(text: str, options: MachineOptions) -> MachineCode:
    """As `generate`, for targets that LLVM writes no object files for: `assembly` alone is there, no image."""
    with _lock:
        module, machine, seconds = _optimized(text, options)
        started = time.perf_counter()
        assembly = machine.emit_assembly(module)
        seconds["emit"] = time.perf_counter() - started
    return MachineCode(b"", assembly, None, seconds)


def _optimized(text: str, options: MachineOptions) -> tuple[llvm.ModuleRef, llvm.TargetMachine, dict[str, float]]:
    started = time.perf_counter()
    machine = create_target_machine(options)
    module = llvm.parse_assembly(text)
    module.triple = options.triple
    module.data_layout = str(machine.target_data)
    module.verify()
    parsed = time.perf_counter()
    _optimize(module, machine, options)
    return module, machine, {"parse": parsed - started, "optimize": time.perf_counter() - parsed}


def _optimize(module: llvm.ModuleRef, machine: llvm.TargetMachine, options: MachineOptions) -> None:
    tuning = llvm.create_pipeline_tuning_options(speed_level=options.speed_level)
    tuning.loop_vectorization = False
    tuning.slp_vectorization = False
    tuning.loop_interleaving = False
    tuning.loop_unrolling = options.unroll
    builder = llvm.create_pass_builder(machine, tuning)
    builder.getModulePassManager().run(module, builder)
