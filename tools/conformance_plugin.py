"""A pytest plugin that runs the reference's tests on tilewright's CPU target; `conformance.py` loads it.

The shim is installed before anything is collected, so the tests' ``import triton`` gives tilewright.  The reference's
own helper module `_internal_testing` is read from the checkout and told that there is no GPU.  A worker gets its
orders from one JSON file (`ORDERS` names it): which cases to run, and the record to append outcomes to.
"""

from __future__ import annotations

import contextlib
import importlib.util
import json
import os
import sys
import time
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch
from torch.overrides import TorchFunctionMode

ORDERS = "CONFORMANCE_ORDERS"
MARK = "interpreter"  # how the reference marks the cases that need no GPU
MESSAGE = 600  # characters of an error that are kept
# Functions of the tests that ask `is_interpreter` only to choose between running Python and compiling a kernel's
# source, or to leave out dtypes which NumPy lacks: there, we are a compiler.
COMPILING_CALLERS = frozenset(
    "patch_kernel check_type_supported test_atomic_rmw test_scaled_dot test_dot_multidim "
    "test_tensor_atomic_add_access_patterns".split()
)


class Worker:
    """Selects the ordered cases and records what becomes of them."""

    def __init__(self, orders: dict[str, Any]) -> None:
        self.cases: list[str] | None = orders["cases"]  # None: only list what there is
        self.record = Path(orders["record"])
        self.started = 0.0
        self.outcome: dict[str, Any] = {}

    def write(self, entry: dict[str, Any]) -> None:
        with self.record.open("a", encoding="utf-8") as file:
            file.write(json.dumps(entry) + "\n")

    @pytest.hookimpl(trylast=True)
    def pytest_collection_modifyitems(self, config: pytest.Config, items: list[pytest.Item]) -> None:
        if self.cases is None:
            for item in items:
                self.write({"case": item.nodeid, "marked": item.get_closest_marker(MARK) is not None})
            items.clear()
            return
        wanted = set(self.cases)
        selected = [item for item in items if item.nodeid in wanted]
        config.hook.pytest_deselected(items=[item for item in items if item.nodeid not in wanted])
        items[:] = selected

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        if report.failed:
            self.write({"file": report.nodeid, "outcome": "error", "message": _last_lines(str(report.longrepr))})

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_call(self, item: pytest.Item) -> Any:
        with CPUForCUDA():
            return (yield)

    def pytest_runtest_logstart(self, nodeid: str) -> None:
        self.started = time.perf_counter()
        self.outcome = {"case": nodeid, "outcome": "passed"}
        self.write({"case": nodeid, "outcome": "started"})

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_makereport(self, item: pytest.Item, call: pytest.CallInfo[Any]) -> Any:
        report = yield
        if report.skipped and self.outcome["outcome"] == "passed":
            self.outcome["outcome"] = "skipped"
            reason = report.longrepr[2] if isinstance(report.longrepr, tuple) else str(getattr(report, "wasxfail", ""))
            self.outcome["message"] = reason.removeprefix("Skipped: ")
        elif report.failed:
            self.outcome["outcome"] = "failed"
            error = call.excinfo.value if call.excinfo else None
            self.outcome["type"] = type(error).__name__
            self.outcome["message"] = str(error)[:MESSAGE]
            self.outcome["where"] = _place(call)
        return report

    def pytest_runtest_logfinish(self, nodeid: str) -> None:
        self.outcome["seconds"] = round(time.perf_counter() - self.started, 3)
        self.write(self.outcome)


def _place(call: pytest.CallInfo[Any]) -> str:
    """The innermost frame of an error: file:line of the code that raised."""
    if call.excinfo is None:
        return ""
    entry = call.excinfo.traceback[-1]
    path = Path(str(entry.path))
    return f"{path.parent.name}/{path.name}:{entry.lineno + 1}"


def _last_lines(text: str, count: int = 3) -> str:
    lines = [line for line in text.splitlines() if line.strip()]
    return "\n".join(lines[-count:])[-MESSAGE:]


class CPUForCUDA(TorchFunctionMode):
    """While it is entered, tensors asked for on "cuda" are made on the CPU, and say that they are on a GPU."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func == torch.Tensor.is_cuda.__get__:  # type: ignore[attr-defined]
            return True
        keywords = dict(kwargs or {})
        if str(keywords.get("device", "")).startswith("cuda"):
            keywords["device"] = "cpu"
        if func is torch.Tensor.to:
            args = tuple("cpu" if isinstance(entry, str) and entry.startswith("cuda") else entry for entry in args)
        return func(*args, **keywords)


def prepare_torch() -> None:
    """Give PyTorch's CUDA and CPU modules what host code of kernels calls: a launch on the CPU needs none of it."""
    torch.cuda.synchronize = lambda device=None: None
    torch.cuda.get_device_capability = lambda device=None: (0, 0)
    torch.cuda.device = contextlib.nullcontext  # type: ignore[misc,assignment]
    torch.cpu.set_stream = lambda stream: None  # type: ignore[attr-defined]


def install_shim(checkout: Path) -> None:
    """Put tilewright in Triton's place, and the reference's testing helpers beside it."""
    from tilewright import shim

    prepare_torch()
    shim.install()
    import triton.runtime.errors as errors  # type: ignore[import-not-found]  # tilewright's, since the line above
    from triton import CompilationError  # type: ignore[import-not-found]

    errors.InterpreterError = CompilationError  # tests of errors expect this one
    helpers = _load("triton._internal_testing", checkout / "python" / "triton" / "_internal_testing.py")
    helpers.is_interpreter = _is_interpreter  # type: ignore[attr-defined]
    helpers.default_alloc_fn = lambda size, align, stream: torch.empty(size, dtype=torch.int8)  # type: ignore[attr-defined]
    helpers.requires_tma = pytest.mark.skipif(False, reason="")  # type: ignore[attr-defined]


def _is_interpreter() -> bool:
    """Whether the tests should expect no GPU code, and take their small sizes."""
    return sys._getframe(1).f_code.co_name not in COMPILING_CALLERS


def _load(name: str, path: Path) -> ModuleType:
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    return module


def pytest_configure(config: pytest.Config) -> None:
    orders = json.loads(Path(os.environ[ORDERS]).read_text(encoding="utf-8"))
    config.addinivalue_line("markers", f"{MARK}: the case needs no GPU")
    install_shim(Path(orders["checkout"]))
    config.pluginmanager.register(Worker(orders), "conformance-worker")
