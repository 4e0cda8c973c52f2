"""The kernels of `triton_kernels` as tilewright and as Triton compile them: one text for both."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from types import ModuleType

from tilewright import shim


def by_tilewright() -> ModuleType:
    """With ``import triton`` as the shim answers it; Triton need not be there."""
    path = Path(__file__).with_name("triton_kernels.py")
    specification = importlib.util.spec_from_file_location("benchmarks.gpu.tilewright_kernels", path)
    assert specification is not None and specification.loader is not None
    module = importlib.util.module_from_spec(specification)
    shim.install()
    try:
        specification.loader.exec_module(module)
    finally:
        shim.uninstall()
    return module


def by_triton() -> ModuleType | None:
    """None where Triton is missing."""
    try:
        from benchmarks.gpu import triton_kernels
    except ImportError:
        return None
    return triton_kernels


TILEWRIGHT = by_tilewright()  # read now, while nobody has imported Triton
