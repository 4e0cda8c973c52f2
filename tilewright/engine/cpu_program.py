"""Programs for CPUs: a native function that runs the plan, linked with its kernels."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping
from contextlib import AbstractContextManager, nullcontext
from typing import Any

from tilewright.engine.file import Package
from tilewright.host import host_cpu, missing_features
from tilewright.runtime.faults import load_kernels
from tilewright.runtime.glue import glue
from tilewright.runtime.plan import Plan
from tilewright.runtime.session import Session


def on_device() -> bool:
    """No: programs run in the process's memory."""
    return False


def misfit(target: Mapping[str, Any]) -> str | None:
    """Why this machine's CPU does not run a program for `target`; None when it does."""
    here, there = host_cpu().triple, target["triple"]
    if _platform(here) != _platform(there):
        return f"it was built for {there}, this machine is {here}"
    missing = missing_features(tuple(target["features"]))
    if missing:
        return f"it uses CPU features that this CPU ({host_cpu().name}) lacks: {', '.join(missing)}"
    return None


def symbol(program: Mapping[str, Any], weights: Mapping[str, int]) -> str:
    """The native name of a program's plan."""
    return plan_symbol(program["plan"], weights)


def plan_symbol(plan: Any, weights: Mapping[str, int]) -> str:
    """The native name of a plan, made of everything that its machine code was generated from: code and data
    that do not belong together don't link."""
    text = json.dumps([plan, weights], sort_keys=True, separators=(",", ":"))
    return f"tilewright_plan_{hashlib.sha256(text.encode()).hexdigest()[:32]}"


def session(program: Mapping[str, Any], signature: Plan, package: Package) -> Session:
    """The program with its machine code linked; raises `RuntimeError` where it does not link."""
    name = program["symbol"]
    images = [package.objects[member] for member in program["objects"]]
    library = load_kernels(images, [name], glue().imports, strict=True)
    return Session(signature, library, name, package.weights.address, package.weights)


def on_device_of(values: Iterable[Any]) -> AbstractContextManager[None]:
    """Nothing to do: a CPU is always current."""
    return nullcontext()


def library_name(key: str) -> str | None:
    """None: plans for CPUs have kernels alone."""
    return None


def _platform(triple: str) -> tuple[str, str]:
    """Architecture and object format, as far as they decide whether machine code can be linked and run."""
    architecture, *rest = triple.lower().split("-")
    architecture = {"arm64": "aarch64", "amd64": "x86_64"}.get(architecture, architecture)
    system = "-".join(rest)
    for part, name in (("darwin", "darwin"), ("macos", "darwin"), ("windows", "windows")):
        if part in system:
            return architecture, name
    return architecture, "elf"
