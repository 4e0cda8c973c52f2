"""Tile IR -> `GpuBinary` for a GPU: lower, assemble, and keep the result in the object cache."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import asdict, replace
from typing import Any

from tilewright import dtypes
from tilewright.errors import CompilationError
from tilewright.ir.core import Function
from tilewright.ir.printer import print_function
from tilewright.runtime.gpu_program import Resources, TensorMapUse
from tilewright.settings import settings
from tilewright.targets.base import Remark, stored_remarks
from tilewright.targets.gpu.binary import GpuBinary
from tilewright.targets.llvm.cache import CacheEntry, ObjectCache, content_key
from tilewright.targets.llvm.symbols import kernel_name
from tilewright.targets.nvidia.assemble import Assembly, AssemblyOptions, assemble, find_assembler
from tilewright.targets.nvidia.lowered import LoweredKernel
from tilewright.targets.nvidia.options import NvidiaOptions
from tilewright.targets.nvidia.target import NvidiaTarget

_SUFFIXES = {"ir": "tile", "layouts": "layouts.tile", "llvm": "ll", "ptx": "ptx"}  # of the files in a dump directory

_REGISTERS_AT_ONCE = 8  # of a thread: a multiprocessor gives a warp 256 at once
_FEWEST_REGISTERS = 64  # of a thread, for products
_USERS_SHOWN = 3  # of shared memory, where there is too little


def compile_function(function: Function, target: NvidiaTarget, options: NvidiaOptions) -> GpuBinary:
    """The binary of a verified kernel; from the cache when the same kernel was compiled before.

    The key covers the kernel's whole text, the architecture, the assembler, the options, the compiler's sources and
    LLVM's version.  With `keep_texts`, or a dump directory in the settings, the kernel is compiled afresh so that every
    stage's text is there.
    """
    from tilewright.targets.nvidia.pipeline import lower  # the cache is read without it

    keep_texts = options.keep_texts or settings.dump_directory is not None
    text = print_function(function)
    places = [str(operation.location) for operation in function.walk()] if options.assembly.line_info else []
    key = content_key(text, *places, target.key, find_assembler().identity, options.key)
    cache = ObjectCache(settings.cache_directory)
    if not keep_texts and not settings.always_compile:
        cached = cache.find(key, lambda entry: _from_entry(key, entry, target))
        if cached is not None:
            return cached
    started = time.perf_counter()
    lowered = _as_launched(lower(function, target, options, text), target, options)
    seconds = {"lower": time.perf_counter() - started}
    assembly = assemble_kernel(lowered, target, options.assembly)
    if lowered.resident is not None and _resident(lowered, assembly, target) < lowered.resident:
        # More registers than were hoped for: computing blocks again may have gained nothing.
        plain = _as_launched(lower(function, target, options, text, recompute=False), target, options)
        other = assemble_kernel(plain, target, options.assembly)
        if _resident(plain, other, target) >= _resident(lowered, assembly, target):
            lowered, assembly = plain, other
    texts = _texts(text, lowered, assembly) if keep_texts else {}
    for stage, suffix in _SUFFIXES.items() if keep_texts else ():
        settings.dump(f"{lowered.symbol}.{suffix}", texts[stage])
    parameters = [str(argument.type) for argument in function.region.arguments]
    metadata = _metadata(parameters, lowered, assembly, {**seconds, **assembly.seconds})
    cache.put(key, {**metadata, "remarks": stored_remarks((*lowered.remarks, *assembly.remarks))}, assembly.cubin)
    return _binary(key, metadata, assembly.cubin, target, texts)


def _texts(text: str, lowered: LoweredKernel, assembly: Assembly) -> dict[str, str]:
    """The kernel at each stage."""
    assigned = print_function(lowered.assigned) if lowered.assigned is not None else text
    return {"ir": text, "layouts": assigned, "llvm": lowered.text, "ptx": assembly.ptx}


def assemble_kernel(lowered: LoweredKernel, target: NvidiaTarget, options: AssemblyOptions) -> Assembly:
    """The machine code of a lowered kernel; raises `CompilationError` where it asks for more shared memory than
    a CTA of the target may have, besides what `assemble` raises."""
    _check_shared_memory(lowered, lowered.shared_bytes, target)  # assemblers take minutes for blocks so large
    assembly = assemble(lowered.text, lowered.symbol, target, options)
    _check_shared_memory(lowered, lowered.shared_bytes + assembly.resources.shared, target)
    if lowered.waiting and options.maxnreg is None:
        assembly = _with_more_ctas(lowered, assembly, target, options)
    return assembly


def _with_more_ctas(
    lowered: LoweredKernel, assembly: Assembly, target: NvidiaTarget, options: AssemblyOptions
) -> Assembly:
    """With fewer registers for a thread, as long as none spill and one more CTA fits a multiprocessor for it.

    The code without the limit serves where ptxas refuses it, which a remark says, or warns of the code.
    """
    threads, fewest = lowered.warps * target.warp_threads, max(_FEWEST_REGISTERS, lowered.waiting)
    while not assembly.resources.spill_stores:
        ctas = 1 + _resident(lowered, assembly, target)
        shared = lowered.shared_bytes + assembly.resources.shared + target.reserved_shared_bytes
        registers = target.registers_per_multiprocessor // (ctas * threads) // _REGISTERS_AT_ONCE * _REGISTERS_AT_ONCE
        if ctas * shared > target.shared_bytes_per_multiprocessor or registers < fewest:
            break
        try:
            other = assemble(lowered.text, lowered.symbol, target, replace(options, maxnreg=registers, strict=False))
        except CompilationError:  # the same text was assembled without this limit: ptxas refuses the limit
            note = Remark("note", f"the assembler refuses {registers} registers a thread, for {ctas} CTAs at once")
            return replace(assembly, remarks=(*assembly.remarks, note))
        if len(other.remarks) > len(assembly.remarks):  # warnings: registers spill, or products wait for each other
            break
        assembly = other
    return assembly


def _resident(lowered: LoweredKernel, assembly: Assembly, target: NvidiaTarget) -> int:
    """CTAs of a multiprocessor for whose threads there are registers; 0 where they spill."""
    if assembly.resources.spill_stores:
        return 0
    registers = -(-max(1, assembly.resources.registers) // _REGISTERS_AT_ONCE) * _REGISTERS_AT_ONCE
    return target.registers_per_multiprocessor // (registers * lowered.warps * target.warp_threads)


def _check_shared_memory(lowered: LoweredKernel, shared: int, target: NvidiaTarget) -> None:
    if shared > target.shared_bytes:
        users = [note for note in lowered.remarks if note.file and "shared memory" in note.message]
        lines = dict.fromkeys(f"\n  {note.file}:{note.line}: {note.message}" for note in users)
        raise CompilationError(
            f"kernel '{kernel_name(lowered.symbol)}' needs {shared} bytes of shared memory for a CTA, and "
            f"{target.architecture} has {target.shared_bytes}; use smaller blocks or fewer stages"
            + "".join(list(lines)[:_USERS_SHOWN])
        )


def _as_launched(lowered: LoweredKernel, target: NvidiaTarget, options: NvidiaOptions) -> LoweredKernel:
    """With what the launch asks for."""
    return replace(
        lowered,
        shared_bytes=max(lowered.shared_bytes, target.least_shared_bytes(options.ctas_per_sm)),
        cooperative=lowered.cooperative or options.cooperative,
        dependent_launch=not options.late and (lowered.dependent_launch or (options.early and target.dependent_launch)),
    )


def explain_function(function: Function, target: NvidiaTarget, options: NvidiaOptions) -> str:
    """What a kernel takes of a CTA, and the remarks of its compilation by source line."""
    binary = compile_function(function, target, options)
    resources, (x, y, z) = binary.resources, binary.cluster
    facts = [f"{binary.threads} threads", f"{resources.registers} registers"]
    facts += [f"{binary.shared_bytes + resources.shared} bytes of shared memory"]
    facts += [f"clusters of {x} x {y} x {z}"] if (x, y, z) != (1, 1, 1) else []
    facts += ["starts before the kernel ahead of it ends"] if binary.dependent_launch else []
    remarks = sorted(binary.remarks, key=lambda remark: (remark.file, remark.line))
    lines = [f"{remark.file}:{remark.line}: {remark.message}" if remark.file else remark.message for remark in remarks]
    title = f"kernel {function.name} on {target.description}"
    return "\n".join([title, *(f"  {line}" for line in [", ".join(facts), *lines])])


def load_binary(key: str, target: NvidiaTarget) -> GpuBinary | None:
    """The binary of a key from the object cache; None when it is not there."""
    return ObjectCache(settings.cache_directory).find(key, lambda entry: _from_entry(key, entry, target))


def _from_entry(key: str, entry: CacheEntry, target: NvidiaTarget) -> GpuBinary:
    return _binary(key, {**entry.metadata, "seconds": {}}, entry.image, target, {})


def _metadata(
    parameters: list[str], lowered: LoweredKernel, assembly: Assembly, seconds: Mapping[str, float]
) -> dict[str, Any]:
    return {
        "symbol": lowered.symbol,
        "parameters": parameters,
        "warps": lowered.warps,
        "shared_bytes": lowered.shared_bytes,
        "cluster": list(lowered.cluster),
        "tensor_maps": [{**asdict(use), "element": use.element.name} for use in lowered.tensor_maps],
        "dependent_launch": lowered.dependent_launch,
        "cooperative": lowered.cooperative,
        "resources": asdict(assembly.resources),
        "remarks": [asdict(remark) for remark in (*lowered.remarks, *assembly.remarks)],
        "seconds": dict(seconds),
    }


def _binary(
    key: str, metadata: Mapping[str, Any], image: bytes, target: NvidiaTarget, texts: Mapping[str, str]
) -> GpuBinary:
    uses = [
        TensorMapUse(**{**use, "box": tuple(use["box"]), "element": dtypes.BY_NAME[use["element"]]})
        for use in metadata["tensor_maps"]
    ]
    x, y, z = metadata["cluster"]
    return GpuBinary(
        target=target.name,
        key=key,
        symbol=metadata["symbol"],
        image=image,
        parameters=tuple(metadata["parameters"]),
        scratch_bytes=0,
        features=(target.architecture,),
        remarks=tuple(Remark(**remark) for remark in metadata["remarks"]),
        texts=texts,
        seconds=metadata["seconds"],
        warps=metadata["warps"],
        warp_threads=target.warp_threads,
        shared_bytes=metadata["shared_bytes"],
        resources=Resources(**metadata["resources"]),
        cluster=(x, y, z),
        tensor_maps=tuple(uses),
        dependent_launch=metadata["dependent_launch"],
        cooperative=metadata["cooperative"],
    )
