"""What the manifest says of kernels for GPUs: names, launches, and the digest of a program that consists of them."""

from __future__ import annotations

import dataclasses
import hashlib
import json
from collections.abc import Mapping
from typing import Any

from tilewright import dtypes
from tilewright.runtime.gpu_program import Program, TensorMapUse

_NOT_KEPT = ("image", "name")
_EARLIER_WARP = 32  # threads of a warp, where a launch says how many warps a CTA has: engines for NVIDIA's GPUs did


def member(key: str) -> str:
    """The name of a kernel in the file."""
    return f"kernels/{key}.cubin"


def program_to_json(program: Program) -> dict[str, Any]:
    """What a launch must know of a kernel, as JSON values."""
    fields = {
        field.name: getattr(program, field.name) for field in dataclasses.fields(program) if field.name not in _NOT_KEPT
    }
    uses = [{**dataclasses.asdict(use), "element": use.element.name} for use in program.tensor_maps]
    return {**fields, "tensor_maps": uses}


def program_from_json(data: Mapping[str, Any], image: bytes, name: str) -> Program:
    """The inverse; raises `KeyError`, `TypeError` or `ValueError` for what `program_to_json` did not write."""
    uses = tuple(
        TensorMapUse(**{**use, "element": dtypes.BY_NAME[use["element"]], "box": tuple(use["box"])})
        for use in data["tensor_maps"]
    )
    x, y, z = data["cluster"]
    fields = {
        **{name: value for name, value in data.items() if name != "warps"},
        "threads": threads_of(data), "tensor_maps": uses, "cluster": (x, y, z), "parameters": tuple(data["parameters"]),
    }  # fmt: skip
    return Program(image=image, name=name, **fields)


def threads_of(data: Mapping[str, Any]) -> int:
    """The threads of a CTA, from what `program_to_json` wrote; earlier files have warps."""
    threads: int = data["threads"] if "threads" in data else _EARLIER_WARP * data["warps"]
    return threads


def symbol(plan: Any, kernels: Mapping[str, Any], weights: Mapping[str, int]) -> str:
    """A digest of everything that a program's kernels are launched with: what does not belong together is refused."""
    launches = {key: kernel["launch"] for key, kernel in kernels.items()}
    text = json.dumps([plan, launches, weights], sort_keys=True, separators=(",", ":"))
    return f"tilewright_plan_{hashlib.sha256(text.encode()).hexdigest()[:32]}"
