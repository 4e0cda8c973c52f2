"""Tile IR -> `Binary` for a CPU: lower, assemble, and keep the result in the object cache."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

from tilewright.ir.core import Function
from tilewright.ir.printer import print_function
from tilewright.settings import settings
from tilewright.targets.base import Binary, stored_remarks
from tilewright.targets.cpu.assemble import assemble
from tilewright.targets.cpu.options import CPUOptions
from tilewright.targets.cpu.pipeline import LoweredCPUKernel, lower
from tilewright.targets.cpu.stored import binary_of, from_entry
from tilewright.targets.cpu.target import CPUTarget
from tilewright.targets.llvm.cache import ObjectCache, content_key


def compile_function(function: Function, target: CPUTarget, options: CPUOptions) -> Binary:
    """The binary of a verified kernel; from the cache when the same kernel was compiled before.

    The key covers the kernel's whole text, the target, the options, the compiler's sources and
    LLVM's version.  With `keep_texts`, or a dump directory in the settings, the kernel is
    compiled afresh so that every stage's text is there.
    """
    keep_texts = options.keep_texts or settings.dump_directory is not None
    text = print_function(function)
    key = content_key(text, target.key, options.key)
    cache = ObjectCache(settings.cache_directory)
    if not keep_texts and not settings.always_compile:
        cached = cache.find(key, lambda entry: from_entry(key, entry, target))
        if cached is not None:
            return cached
    started = time.perf_counter()
    lowered = lower(function, target, options, text)
    lowering_seconds = time.perf_counter() - started
    code = assemble(lowered.text, target, keep_texts)
    seconds = {"lower": lowering_seconds, **code.seconds}
    texts: dict[str, str] = {}
    if code.assembly is not None:
        texts = {"ir": text, "llvm": lowered.text, "asm": code.assembly}
        for stage, suffix in (("ir", "tile"), ("llvm", "ll"), ("asm", "s")):
            settings.dump(f"{lowered.symbol}.{suffix}", texts[stage])
        if settings.dump_directory is not None:
            settings.dump(f"{lowered.symbol}.explanation.txt", lowered.explanation())
    metadata = _metadata(function, lowered, target, seconds)
    cache.put(key, {**metadata, "remarks": stored_remarks(lowered.remarks)}, code.image)
    return binary_of(key, metadata, code.image, target, texts)


def _metadata(
    function: Function, lowered: LoweredCPUKernel, target: CPUTarget, seconds: Mapping[str, float]
) -> dict[str, Any]:
    return {
        "symbol": lowered.symbol,
        "parameters": [str(argument.type) for argument in function.region.arguments],
        "scratch_bytes": lowered.scratch_bytes,
        "records": lowered.records,
        "asks": lowered.asks,
        "refuses": lowered.refuses,
        "features": target.required_features(tiles="llvm.x86.tile" in lowered.text),
        "remarks": [asdict(remark) for remark in lowered.remarks],
        "seconds": dict(seconds),
    }
