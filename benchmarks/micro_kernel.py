"""Measure the CPU's matrix product on its own: one thread, against NumPy and PyTorch in the same run.

    python benchmarks/micro_kernel.py [--rounds 30] [--only 1024] [--save]

Emits a GEMM from `targets/cpu/dot.py` (accumulators in scratch, plain stores), with the right operand
prepacked in panels, row-major and transposed, checks it against float64 and times it.  Contestants
take turns; the multiply-add peak of one core runs beside, because the clock of a shared machine moves.
Results: benchmarks/results/micro_kernel.json (with --save).
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

os.environ["OPENBLAS_NUM_THREADS"] = "1"
os.environ["OMP_NUM_THREADS"] = "1"
os.environ["MKL_NUM_THREADS"] = "1"
sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from benchmarks import common

# isort: split
# After `common`, which cleans the environment that NumPy's BLAS reads when it is loaded.
import argparse
import ctypes
import importlib.util
import time
from collections.abc import Callable

import llvmlite.binding as llvm
import numpy as np

from tilewright import dtypes
from tilewright.targets.cpu.assemble import assemble, function_attributes
from tilewright.targets.cpu.dot import (
    Accumulator,
    DotShape,
    LeftOperand,
    RightOperand,
    accumulator_extents,
    emit_dot,
    scratch_bytes,
)
from tilewright.targets.cpu.target import CPUTarget
from tilewright.targets.llvm.builder import LLVMBuilder, Module, vector_type

Run = Callable[[], None]

PEAK = "multiply-add peak"

# rows, columns, depth of the product -> rows, columns, depth of a block
CASES = {
    (512, 512, 512): (128, 512, 512),
    (1024, 1024, 1024): (256, 512, 512),
    (128, 1152, 384): (128, 288, 384),
    (128, 4096, 4096): (128, 256, 512),
    (1, 4096, 4096): (1, 1024, 4096),
}


def aligned(*shape: int) -> np.ndarray:
    """A float32 array whose first element lies on a 64-byte boundary."""
    size = int(np.prod(shape))
    buffer = np.zeros(size + 16, np.float32)
    start = -buffer.ctypes.data % 64 // 4
    return buffer[start : start + size].reshape(shape)


class Library:
    """Object code loaded into this process; keep it while its functions are used."""

    def __init__(self, image: bytes, symbol: str) -> None:
        self._jit = llvm.create_lljit_compiler()
        loader = llvm.JITLibraryBuilder().add_object_img(image).export_symbol(symbol).add_current_process()
        self._library = loader.link(self._jit, symbol)
        self.address = self._library[symbol]


class Gemm:
    """result[rows, columns] = left[rows, depth] right[depth, columns], compiled for fixed sizes."""

    def __init__(self, sizes: tuple[int, int, int], block: tuple[int, int, int], layout: str) -> None:
        self.sizes, self.layout = sizes, layout
        self.target = CPUTarget.host()
        self.shape = DotShape(*(min(pair) for pair in zip(sizes, block, strict=True)))
        module = Module()
        self._emit(module)
        code = assemble(module.text, self.target)
        self.seconds = sum(code.seconds.values())
        self.library = Library(code.image, "gemm")
        self.function = ctypes.CFUNCTYPE(None, *[ctypes.c_void_p] * 4)(self.library.address)
        rows, stride = accumulator_extents(self.target, self.shape, dtypes.float32)
        self.scratch = aligned(rows * stride + self._dot_scratch() // 4)

    def _dot_scratch(self) -> int:
        kind = dtypes.float32
        return scratch_bytes(self.target, self.shape, kind, kind, self.layout, kind)

    def _emit(self, module: Module) -> None:
        rows, columns, depth = self.sizes
        kind, shape = dtypes.float32, self.shape
        parameters = [("ptr", name, "noalias") for name in ("left", "right", "result", "scratch")]
        attributes = function_attributes(self.target)
        b = LLVMBuilder(module, "gemm", "void", parameters, attributes=attributes)
        left, right, result, scratch = b.arguments
        padded, stride = accumulator_extents(self.target, shape, kind)
        spare = b.gep(scratch, padded * stride, "float")
        width = self.target.microtile(kind)[1]
        zero = b.integer(0)
        with b.loop(zero, b.integer(columns), shape.columns) as j:
            with b.loop(zero, b.integer(rows), shape.rows) as i:
                with b.loop(zero, b.integer(depth), shape.depth) as k:
                    place = b.add(b.multiply(i.index, depth), k.index)
                    if self.layout == "panels":
                        offset, step = b.add(b.multiply(j.index, depth), b.multiply(k.index, width)), depth * width
                    elif self.layout == "rows":
                        offset, step = b.add(b.multiply(k.index, columns), j.index), columns
                    else:
                        offset, step = b.add(b.multiply(j.index, depth), k.index), depth
                    emit_dot(
                        b,
                        self.target,
                        shape,
                        LeftOperand(b.gep(left, place, "float"), depth, 1, kind),
                        RightOperand(b.gep(right, offset, "float"), self.layout, step, kind),
                        Accumulator(scratch, stride, kind),
                        spare,
                        rows=self._rest(b, rows, shape.rows, i.index),
                        columns=self._rest(b, columns, shape.columns, j.index),
                        depth=self._rest(b, depth, shape.depth, k.index),
                        accumulate=b.compare("sgt", k.index, 0),
                    )
                    k.next([])
                self._store(b, scratch, stride, result, i.index, j.index)
                i.next([])
            j.next([])
        b.finish()

    def _rest(self, b: LLVMBuilder, size: int, block: int, index):  # type: ignore[no-untyped-def]
        return None if size % block == 0 else b.minimum(b.subtract(b.integer(size), index), block)

    def _store(self, b: LLVMBuilder, scratch, stride: int, result, first_row, first_column) -> None:  # type: ignore[no-untyped-def]
        rows, columns, _ = self.sizes
        lanes = self.target.lanes(dtypes.float32)
        kind = vector_type("float", lanes)
        height = b.minimum(b.subtract(b.integer(rows), first_row), self.shape.rows)
        width = b.minimum(b.subtract(b.integer(columns), first_column), self.shape.columns)
        with b.loop(b.integer(0), height, 1) as i:
            source = b.gep(scratch, b.multiply(i.index, stride), "float")
            offset = b.add(b.multiply(b.add(first_row, i.index), columns), first_column)
            target = b.gep(result, offset, "float")
            with b.loop(b.integer(0), width, lanes) as j:
                mask = b.lane_mask(b.subtract(width, j.index), lanes)
                value = b.load(kind, b.gep(source, j.index, "float"), align=4)
                b.masked_store(value, b.gep(target, j.index, "float"), mask, align=4)

    def arrange(self, right: np.ndarray) -> np.ndarray:
        """The right operand as the kernel wants it."""
        if self.layout == "rows":
            return right
        if self.layout == "columns":
            return np.ascontiguousarray(right.T)
        depth, columns = right.shape
        width = self.target.microtile(dtypes.float32)[1]
        panels = aligned(-(-columns // width), depth, width)
        for number, panel in enumerate(panels):
            part = right[:, number * width : (number + 1) * width]
            panel[:, : part.shape[1]] = part
        return panels

    def runner(self, left: np.ndarray, right: np.ndarray, result: np.ndarray) -> Run:
        pointers = [array.ctypes.data for array in (left, right, result, self.scratch)]
        return lambda: self.function(*pointers)


def peak_runner() -> tuple[Run, float]:
    """A loop of independent multiply-adds, and its floating-point operations."""
    target = CPUTarget.host()
    module = Module()
    attributes = function_attributes(target)
    b = LLVMBuilder(module, "peak", "void", [("ptr", "data", ""), ("i64", "count", "")], attributes=attributes)
    lanes = target.lanes(dtypes.float32)
    value = b.load(vector_type("float", lanes), b.arguments[0])
    chains = 24 if target.vector_registers == 32 else 12
    with b.loop(b.integer(0), b.arguments[1], 1, [value] * chains) as loop:
        loop.next([b.intrinsic("fma", [value, value, chain]) for chain in loop.values])
    total = loop.results[0]
    for chain in loop.results[1:]:
        total = b.binary("fadd", total, chain)
    b.store(total, b.arguments[0])
    b.finish()
    library = Library(assemble(module.text, target).image, "peak")
    function = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_int64)(library.address)
    data, count = aligned(64), 100_000

    def run(keep: object = library) -> None:
        function(data.ctypes.data, count)

    return run, 2.0 * lanes * chains * count


def contestants(sizes: tuple[int, int, int], block: tuple[int, int, int]) -> dict[str, tuple[Run, float]]:
    """Name -> (run, floating-point operations); ours are checked against float64 here."""
    rows, columns, depth = sizes
    seed = int(time.time())
    print(f"  random seed {seed}")
    generator = np.random.default_rng(seed)
    left, right, result = aligned(rows, depth), aligned(depth, columns), aligned(rows, columns)
    left[:] = generator.standard_normal(left.shape, np.float32)
    right[:] = generator.standard_normal(right.shape, np.float32)
    expected = left.astype(np.float64) @ right.astype(np.float64)
    work = 2.0 * rows * columns * depth
    found: dict[str, tuple[Run, float]] = {PEAK: peak_runner()}
    for layout in ("panels", "rows", "columns"):
        gemm = Gemm(sizes, block, layout)
        arranged = gemm.arrange(right)
        output = aligned(rows, columns)
        run = gemm.runner(left, arranged, output)
        run()
        error = np.abs(output - expected).max() / np.sqrt(depth)
        assert error < 1e-5, f"{layout}: error {error}"
        found["tilewright" if layout == "panels" else f"tilewright, B {layout}"] = (
            (lambda run=run, keep=(gemm, arranged, output): run()),
            work,
        )
        print(f"  {layout}: compiled in {gemm.seconds * 1e3:.0f} ms, error {error:.1e} sqrt(depth)")
    found["NumPy"] = (lambda: np.matmul(left, right, out=result), work)
    if importlib.util.find_spec("torch"):
        import torch

        torch.set_num_threads(1)
        tensors = [torch.from_numpy(array) for array in (left, right, result)]
        found["PyTorch"] = (lambda: torch.mm(tensors[0], tensors[1], out=tensors[2]), work)
    return found


def measure(found: dict[str, tuple[Run, float]], rounds: int) -> dict[str, dict[str, float]]:
    """Median and best milliseconds; contestants take turns, so that all meet the same disturbances."""
    times: dict[str, list[float]] = {name: [] for name in found}
    for _ in range(rounds):
        for name, (run, work) in found.items():
            repeats = max(1, int(2e7 / work))
            run()
            start = time.perf_counter()
            for _ in range(repeats):
                run()
            times[name].append((time.perf_counter() - start) / repeats * 1e3)
    return {name: {"median": float(np.median(values)), "best": min(values)} for name, values in times.items()}


def report(
    sizes: tuple[int, int, int], found: dict[str, tuple[Run, float]], results: dict[str, dict[str, float]]
) -> None:
    """Print speeds, and for the products what they read and wrote each second."""
    rows, columns, depth = sizes
    bytes_moved = 4 * (rows * depth + depth * columns + rows * columns)
    for name, times in results.items():
        work = found[name][1]
        speeds = {kind: work / milliseconds / 1e6 for kind, milliseconds in times.items()}
        bandwidth = "" if name == PEAK else f"{bytes_moved / times['best'] / 1e6:8.1f} GB/s"
        print(f"  {name:24s} median {speeds['median']:7.1f}   best {speeds['best']:7.1f} GFLOP/s {bandwidth}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=30)
    parser.add_argument("--only", default="", help="run the shapes whose name contains this")
    parser.add_argument("--save", action="store_true", help="write the results file")
    arguments = parser.parse_args()
    cases = []
    for sizes, block in CASES.items():
        name = " x ".join(map(str, sizes))
        if arguments.only not in name:
            continue
        print(name)
        found = contestants(sizes, block)
        results = measure(found, arguments.rounds)
        report(sizes, found, results)
        peak = results.pop(PEAK)
        peak_speed = {kind: found[PEAK][1] / milliseconds / 1e6 for kind, milliseconds in peak.items()}
        cases.append({"name": name, "milliseconds": results, "peak_gflops": peak_speed})
    if arguments.save:
        print(common.save("micro_kernel", 1, cases))


if __name__ == "__main__":
    main()
