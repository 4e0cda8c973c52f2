"""`tilewright doctor`: the hardware, the targets that work, and how to install what is missing."""

from __future__ import annotations

import importlib.metadata
import json
import platform
import sys
from collections.abc import Callable
from typing import Annotated, Any

import numpy as np
import typer
from rich.table import Column, Table
from rich.text import Text

import tilewright
from tilewright.cli.cache import cache_state, summary
from tilewright.cli.console import terminal
from tilewright.errors import MissingDependencyError, TilewrightError
from tilewright.runtime import parallel
from tilewright.runtime.cuda.device import device
from tilewright.runtime.cuda.driver import version as driver_version
from tilewright.runtime.cuda.memory import DeviceArray
from tilewright.settings import settings

PACKAGES = {  # distribution -> (what it is for, how to get it)
    "numpy": ("arrays", "pip install tilewright"),
    "llvmlite": ("code generation", "pip install tilewright"),
    "ml_dtypes": ("bfloat16 and fp8 arrays", "pip install tilewright"),
    "safetensors": ("weights", "pip install tilewright"),
    "torch": ("importing PyTorch models, torch.compile backend", "pip install 'tilewright[torch]'"),
    "onnx": ("importing ONNX models", "pip install 'tilewright[onnx]'"),
    "cuda-bindings": ("running on NVIDIA GPUs", "pip install 'tilewright[cuda]'"),
    "nvidia-cuda-nvcc": ("assembling code for NVIDIA GPUs", "pip install 'tilewright[cuda]'"),
    "nvidia-cuda-nvdisasm": ("showing machine code of NVIDIA GPUs", "pip install 'tilewright[cuda]'"),
    "nvmath-python": ("products of cuBLASLt in engines (build --vendor allow)", "pip install 'nvmath-python[cu13]'"),
    "nvidia-cudnn-frontend": (
        "convolutions of cuDNN in engines (build --vendor allow)",
        "pip install nvidia-cudnn-frontend nvidia-cudnn-cu13",
    ),
    "tokenizers": ("the demo", "pip install 'tilewright[demo]'"),
    "onnxruntime": ("comparing with ONNX Runtime", "pip install onnxruntime"),
}


def packages() -> dict[str, str | None]:
    """Installed versions by distribution name; None where missing."""
    found: dict[str, str | None] = {}
    for name in PACKAGES:
        try:
            found[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            found[name] = None
    return found


def targets() -> list[dict[str, Any]]:
    """Each target: whether it compiles and runs here (tried with a real kernel), and on what."""
    from tilewright.targets.registry import get_target

    rows = [_tried("cpu", check_cpu, "compiles and runs", get_target("cpu").description)]
    try:
        assembler, disassembler = _nvidia_tools()
    except TilewrightError as error:
        rows.append({"target": "cuda", "state": "does not compile", "reason": str(error), "description": ""})
        return rows
    tools = f"{assembler}; machine code shown by {disassembler}"
    rows.append(_tried("cuda:sm_90a", _compile_cuda, "compiles", tools))
    try:
        rows.append(_tried("cuda", check_cuda, "compiles and runs", _gpu()))
    except TilewrightError as error:
        rows.append({"target": "cuda", "state": "no GPU", "reason": str(error), "description": ""})
    return rows


def _tried(target: str, check: Callable[[], None], works: str, description: str) -> dict[str, Any]:
    try:
        check()
        state, reason = works, ""
    except Exception as error:  # whatever breaks is the answer to the question asked
        state, reason = "does not work", f"{type(error).__name__}: {error}"
    return {"target": target, "state": state, "reason": reason, "description": description}


def _nvidia_tools() -> tuple[str, str]:
    """Who assembles code for NVIDIA GPUs, and who shows it; raises `MissingDependencyError` without an assembler."""
    from tilewright.targets.nvidia.assemble import find_assembler
    from tilewright.targets.nvidia.inspect import find_disassembler

    assembler = find_assembler().description
    try:
        return assembler, find_disassembler().name
    except MissingDependencyError:
        return assembler, "nothing (pip install nvidia-cuda-nvdisasm)"


def _gpu() -> str:
    """The GPU of this machine; raises `DeviceError` or `MissingDependencyError` without one."""
    from tilewright.targets.registry import get_target

    gpu = device(0)
    newest = f"driver for CUDA {driver_version() // 1000}.{driver_version() % 1000 // 10}"
    return f"{gpu.name}, {gpu.memory_bytes >> 30} GiB, {newest}; {get_target('cuda').description}"


_SOURCE = (
    "def double(source, result, count, BLOCK: tl.constexpr):\n"
    "    index = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)\n"
    "    value = tl.load(source + index, mask=index < count)\n"
    "    tl.store(result + index, value * 2, mask=index < count)\n"
)


def _double() -> Any:
    import tilewright.language as tl
    from tilewright.launch.jit import JITFunction

    return JITFunction.from_source(_SOURCE, "double", {"tl": tl})


def check_cpu() -> None:
    """Compile a kernel, run it and check its result."""
    values = np.random.default_rng().standard_normal(1000).astype(np.float32)
    result = np.zeros_like(values)
    _double()[(2,)](values, result, values.size, BLOCK=512)
    if not np.array_equal(result, values * 2):
        raise RuntimeError("a test kernel gave a wrong result")


def _compile_cuda() -> None:
    _double().compile({"source": "*f32", "result": "*f32", "count": "i32"}, {"BLOCK": 512}, target="cuda:sm_90a")


def check_cuda() -> None:
    """The same on the GPU of this machine."""

    values = np.random.default_rng().standard_normal(1000).astype(np.float32)
    source, result = DeviceArray.from_numpy(values), DeviceArray(values.shape, values.dtype)
    _double()[(2,)](source, result, values.size, BLOCK=512)
    if not np.array_equal(result.numpy(), values * 2):
        raise RuntimeError("a test kernel gave a wrong result")


def report() -> dict[str, Any]:
    """Everything `doctor` prints, as data."""
    state = cache_state()
    return {
        "tilewright": tilewright.__version__,
        "python": sys.version.split()[0],
        "platform": platform.platform(),
        "threads": settings.threads,
        "threading": parallel.provider_name(),
        "cache": str(settings.cache_directory),
        "cached": f"not used: {state.not_used}" if state.not_used else summary(state),
        "targets": targets(),
        "packages": packages(),
    }


def doctor(as_json: Annotated[bool, typer.Option("--json", help="Print as JSON.")] = False) -> None:
    """Show this machine's hardware and packages, which targets work, and what is missing."""
    found = report()
    if as_json:
        print(json.dumps(found, indent=2))
        return
    console = terminal()
    for key in ("tilewright", "python", "platform", "threads", "threading", "cache", "cached"):
        console.print(f"{key:12} {found[key]}", soft_wrap=True)
    table = Table("target", "state", "description", title="Targets", title_justify="left")
    for row in found["targets"]:
        table.add_row(row["target"], row["state"], row["reason"] or row["description"])
    console.print(table)
    # Names and advice are to be copied: whole, and as few lines as there is room for.
    package, command = Column("package", no_wrap=True), Column("how to get it", overflow="fold")
    table = Table(
        package, "version", "for", command, title="Packages", title_justify="left", box=None, padding=(0, 1, 0, 0)
    )
    for name, version in found["packages"].items():
        purpose, advice = PACKAGES[name]
        table.add_row(name, version or Text("missing", "yellow"), purpose, "" if version else advice)
    console.print(table)
