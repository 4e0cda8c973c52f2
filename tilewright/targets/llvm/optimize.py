"""LLVM text -> verified, optimised module -> object bytes or assembly, shared by the targets."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass, field

import llvmlite.binding as llvm
from llvmlite.binding.newpassmanagers import NewPassManager

from tilewright import forks

# An attribute of internal functions that are written as they should run, loops and all: LLVM puts their instructions
# into its own forms, and leaves out its other passes, which take most of its time and find nothing there.
FEW_PASSES = '"passes"="few"'

# LLVM modules made by one thread share a context, so one compilation runs at a time in a process.
_lock = forks.lock()


@dataclass(frozen=True)
class MachineOptions:
    """How LLVM is asked to generate code."""

    triple: str
    cpu: str
    features: str  # "+avx2,+fma"
    speed_level: int = 2  # of the optimisation pipeline
    unroll: bool = False  # our lowering unrolls where it pays
    quick: bool = False  # no optimisation of the text, and code generation that searches less


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
        cpu=options.cpu,
        features=options.features,
        opt=1 if options.quick else 3,  # 0 is faster still, but keeps accumulators in memory: ten times slower code
        reloc="pic",
        codemodel="default",
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
    if options.quick:
        module = _parsed(text, machine, options)
        return module, machine, {"parse": time.perf_counter() - started, "optimize": 0.0}
    text, written, names = _parts(text)
    module = _parsed(text, machine, options)
    functions = _parsed(written, machine, options) if names else None
    parsed = time.perf_counter()
    _optimize(module, machine, options)
    if functions is not None:
        _optimize_little(functions, machine)
        module.link_in(functions)
        for name in names:
            module.get_function(name).linkage = "internal"
    return module, machine, {"parse": parsed - started, "optimize": time.perf_counter() - parsed}


def _parsed(text: str, machine: llvm.TargetMachine, options: MachineOptions) -> llvm.ModuleRef:
    module = llvm.parse_assembly(text)
    module.triple = options.triple
    module.data_layout = str(machine.target_data)
    module.verify()
    return module


def _parts(text: str) -> tuple[str, str, list[str]]:
    """A module's text without the functions marked with `FEW_PASSES`, the text of these, and their names."""
    if FEW_PASSES not in text or "!llvm.dbg" in text:  # places in the source are given for a whole module
        return text, "", []
    rest: list[str] = []
    written: list[str] = []
    names: list[str] = []
    inside = False
    for line in text.splitlines():
        if line.startswith("define internal ") and FEW_PASSES in line:
            inside = True
            names.append(line.partition("@")[2].partition("(")[0])
            line = line.replace("define internal ", "define hidden ")
            rest.append(line.replace("define ", "declare ").removesuffix(" {"))
        if inside or line.startswith(("declare ", "!")):
            written.append(line)
        if not inside:
            rest.append(line)
        inside = inside and line != "}"
    return "\n".join(rest) + "\n", "\n".join(written) + "\n", names


def _optimize_little(module: llvm.ModuleRef, machine: llvm.TargetMachine) -> None:
    passes = llvm.create_new_module_pass_manager()
    passes.add_simplify_cfg_pass()
    passes.add_instruction_combine_pass()
    passes.add_simplify_cfg_pass()
    _run(passes, module, llvm.create_pass_builder(machine, llvm.create_pipeline_tuning_options()))


def _run(passes: NewPassManager, module: llvm.ModuleRef, builder: llvm.PassBuilder) -> None:
    """Run passes once and free them, which llvmlite 0.50 leaves undone: its own class of references comes first."""
    try:
        passes.run(module, builder)
    finally:
        NewPassManager._dispose(passes)
        passes.detach()


def _optimize(module: llvm.ModuleRef, machine: llvm.TargetMachine, options: MachineOptions) -> None:
    tuning = llvm.create_pipeline_tuning_options(speed_level=options.speed_level)
    tuning.loop_vectorization = False
    tuning.slp_vectorization = False
    tuning.loop_interleaving = False
    tuning.loop_unrolling = options.unroll
    builder = llvm.create_pass_builder(machine, tuning)
    _run(builder.getModulePassManager(), module, builder)
