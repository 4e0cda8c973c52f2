"""Timing, comparing and checking kernels: `do_bench`, `assert_close`, tables (`perf_report`), `unwritten`.

milliseconds = tilewright.testing.do_bench(lambda: add[grid](x, y, out, n, BLOCK=1024))
median, low, high = do_bench(call, quantiles=(0.5, 0.2, 0.8))
"""

from __future__ import annotations

import csv
import subprocess
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from tilewright.errors import DeviceError, MissingDependencyError
from tilewright.launch.allocations import unwritten
from tilewright.measure.benchmark import do_bench, do_bench_cudagraph

do_bench_proton = do_bench  # by Triton's profiler there; it measures the same
do_bench_cudagraph_proton = do_bench_cudagraph


def assert_close(x: Any, y: Any, atol: Any = None, rtol: Any = None, err_msg: str = "") -> None:
    """Raise `AssertionError` unless |x - y| <= atol + rtol |y| everywhere; NaN equals NaN, infinities are exact.

    `x`, `y`: arrays, tensors, numbers or sequences.  Tolerances default to atol=1e-2, rtol=0; a dict gives one
    for each dtype name (without ``torch.``), with the default for the others.
    """
    left, right = _as_float64(x), _as_float64(y)
    name = str(getattr(y, "dtype", getattr(x, "dtype", ""))).removeprefix("torch.")
    absolute = _tolerance(atol, name, 1e-2)
    relative = _tolerance(rtol, name, 0.0)
    np.testing.assert_allclose(left, right, atol=absolute, rtol=relative, equal_nan=True, err_msg=err_msg)


def _tolerance(given: Any, name: str, default: float) -> float:
    if isinstance(given, dict):
        by_name = {str(key).removeprefix("torch."): value for key, value in given.items()}
        given = by_name.get(name)
    return default if given is None else float(given)


def _as_float64(value: Any) -> np.ndarray:
    if hasattr(value, "detach"):
        tensor = value.detach().cpu()
        return tensor.double().numpy() if not tensor.is_complex() else tensor.numpy()
    array = np.asarray(value)
    return array if array.dtype.kind == "c" else array.astype(np.float64)


@dataclass
class Benchmark:
    """One table: a row for each of `x_vals`, a column for each of `line_vals`.

    The measured function gets `x_names` (each the row's value, or one entry of it when that is a tuple),
    `line_arg`, and the constant `args`.  The styles, axis names and scales are for plots.
    """

    x_names: list[str]
    x_vals: Sequence[Any]
    line_arg: str
    line_vals: Sequence[Any]
    line_names: Sequence[str]
    plot_name: str
    args: Mapping[str, Any] = field(default_factory=dict)
    xlabel: str = ""
    ylabel: str = ""
    x_log: bool = False
    y_log: bool = False
    styles: Sequence[tuple[str, str]] | None = None


class Mark:
    """A function with its benchmarks; ``run`` measures and prints them."""

    def __init__(self, fn: Callable[..., Any], benchmarks: Benchmark | Sequence[Benchmark]) -> None:
        self.fn = fn
        self.benchmarks = [benchmarks] if isinstance(benchmarks, Benchmark) else list(benchmarks)

    def run(
        self,
        show_plots: bool = False,
        print_data: bool = False,
        save_path: str = "",
        return_df: bool = False,
        **kw: Any,
    ) -> Any:
        """Measure every benchmark; ``kw`` goes to the function.

        `print_data` prints the tables, `save_path` is a folder for one CSV file each.  A plot is not drawn:
        with `show_plots` the table is printed.  `return_df` returns pandas data frames (one, or a list) and
        raises `MissingDependencyError` without pandas.
        """
        frames = []
        for benchmark in self.benchmarks:
            header, rows = self._measure(benchmark, kw)
            if print_data or show_plots:
                print(f"{benchmark.plot_name}:\n{_table(header, rows)}")
            if save_path:
                _write_csv(Path(save_path) / f"{benchmark.plot_name}.csv", header, rows)
            if return_df:
                frames.append(_frame(header, rows))
        if not return_df:
            return None
        return frames[0] if len(frames) == 1 else frames

    def _measure(self, benchmark: Benchmark, kw: Mapping[str, Any]) -> tuple[list[str], list[list[Any]]]:
        header = [*benchmark.x_names, *benchmark.line_names]
        rows = []
        for point in benchmark.x_vals:
            values = list(point) if isinstance(point, (tuple, list)) else [point] * len(benchmark.x_names)
            if len(values) != len(benchmark.x_names):
                raise ValueError(f"the row {point!r} does not fit the names {benchmark.x_names}")
            row = dict(zip(benchmark.x_names, values, strict=True))
            results = [
                self.fn(**row, **{benchmark.line_arg: line}, **benchmark.args, **kw) for line in benchmark.line_vals
            ]
            # a function may return (value, low, high); tables show the value
            rows.append([*values, *(result[0] if isinstance(result, (tuple, list)) else result for result in results)])
        return header, rows


def _table(header: Sequence[str], rows: Sequence[Sequence[Any]]) -> str:
    cells = [list(header)] + [[f"{cell:.6g}" if isinstance(cell, float) else str(cell) for cell in row] for row in rows]
    widths = [max(len(row[column]) for row in cells) for column in range(len(header))]
    return "\n".join("  ".join(cell.rjust(width) for cell, width in zip(row, widths, strict=True)) for row in cells)


def _write_csv(path: Path, header: Sequence[str], rows: Sequence[Sequence[Any]]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w", newline="", encoding="utf-8") as file:
        csv.writer(file).writerows([header, *rows])


def _frame(header: Sequence[str], rows: Sequence[Sequence[Any]]) -> Any:
    try:
        import pandas
    except ImportError as error:
        raise MissingDependencyError("return_df=True needs pandas: pip install pandas") from error
    return pandas.DataFrame(rows, columns=list(header))


def perf_report(benchmarks: Benchmark | Sequence[Benchmark]) -> Callable[[Callable[..., Any]], Mark]:
    """Decorator: a function that measures one point becomes a `Mark` that measures whole tables."""
    return lambda fn: Mark(fn, benchmarks)


def get_dram_gbps(device: int | None = None) -> float:
    """Gigabytes that a device's memory can move in a second. Raises `DeviceError`: only a measurement tells."""
    raise _only_measured("what main memory moves in a second")


def get_max_tensorcore_tflops(dtype: Any, clock_rate: float, device: int | None = None) -> float:
    """Teraflops of matrix products. Raises `DeviceError`: the CPU's depend on clocks that change with the work."""
    raise _only_measured("how fast matrix products can be")


def get_max_simd_tflops(dtype: Any, clock_rate: float, device: int | None = None) -> float:
    """Teraflops of vector code. Raises `DeviceError`: the CPU's depend on clocks that change with the work."""
    raise _only_measured("how fast vector code can be")


def _only_measured(quantity: str) -> DeviceError:
    return DeviceError(f"{quantity} is not known of this device; measure it with tilewright.testing.do_bench")


@contextmanager
def set_gpu_clock(ref_sm_clock: int = 1350, ref_mem_clock: int = 1215) -> Iterator[tuple[float, float]]:
    """Fix a GPU's clocks for a `with` block. Raises `DeviceError`: clocks are left as they are here."""
    raise DeviceError("clocks are left as they are; compare kernels in one run instead, in turns")
    yield (0.0, 0.0)


def cuda_memcheck(**target_kwargs: Any) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Decorator of a test, which is run as it is; TILEWRIGHT_INTERPRET=check finds bad accesses on any machine."""
    return lambda test: test


def nvsmi(attributes: Sequence[str]) -> list[int]:
    """What nvidia-smi says of the first GPU, as whole numbers: ``nvsmi(["clocks.max.sm", "power.limit"])``.

    Raises `DeviceError` where it cannot be asked.
    """
    query = f"--query-gpu={','.join(attributes)}"
    try:
        answer = subprocess.run(
            ["nvidia-smi", "-i", "0", query, "--format=csv,noheader,nounits"],
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        return [int(float(number)) for number in answer.split(",")]
    except FileNotFoundError as error:
        raise DeviceError("there is no nvidia-smi to ask: install NVIDIA's driver") from error
    except (OSError, ValueError, subprocess.CalledProcessError) as error:
        said = str(getattr(error, "stdout", "") or error).strip()
        raise DeviceError(f"nvidia-smi does not tell {', '.join(attributes)}: {said}") from error


__all__ = [
    "nvsmi",
    "Benchmark", "Mark", "assert_close", "cuda_memcheck", "do_bench", "do_bench_cudagraph", "do_bench_cudagraph_proton",
    "do_bench_proton", "get_dram_gbps", "get_max_simd_tflops", "get_max_tensorcore_tflops", "perf_report",
    "set_gpu_clock", "unwritten",
]  # fmt: skip
