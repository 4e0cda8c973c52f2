"""Single kernels on the CPU, beside what a user would take instead, in one run.

    python benchmarks/kernels_cpu.py [--threads 1 2] [--only softmax [--merge]] [--rounds 5] [--interpreter PATH]

Ours are tile-language kernels launched through `@jit`.  Every contestant writes into memory that was allocated
before (malloc is told to keep what PyTorch frees), takes random data, and is checked against float64 first;
contestants take turns.  A child process runs each number of threads, so that all libraries start with it.
`--interpreter PATH` is a folder with Triton installed: then one small softmax also runs in its interpreter.
Results: benchmarks/results/kernels_cpu.json; a run with `--only` leaves it alone, or replaces its cases (`--merge`).
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from benchmarks import common

# isort: split
# After `common`, which cleans the environment that NumPy's BLAS reads when it is loaded.
import argparse
import json
import subprocess
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import ml_dtypes
import numpy as np

import tilewright
import tilewright.language as tl

Run = Callable[[], Any]
ROWS = COLUMNS = 4096
HEADS, SEQUENCE, HEAD = 12, 512, 64
OURS = "tilewright"


@dataclass
class Case:
    """One comparison: contestants, the result that each leaves, and the floating-point operations or bytes."""

    name: str
    expected: np.ndarray
    tolerance: float
    floor: float  # what ours must reach of the best peer
    gflop: float = 0.0
    gigabytes: float = 0.0
    runs: dict[str, Run] = field(default_factory=dict)
    results: dict[str, Callable[[], np.ndarray]] = field(default_factory=dict)

    def add(self, name: str, run: Run, result: Callable[[], np.ndarray]) -> None:
        """Check a contestant and let it take part."""
        run()
        found = np.asarray(result()).astype(np.float64)
        error = float(np.abs(found - self.expected).max() / np.abs(self.expected).max())
        if not error < self.tolerance:
            sys.exit(f"{self.name}: {name} differs from float64 by {error:.1e}")
        self.runs[name] = run


def aligned(*shape: int, dtype: Any = np.float32) -> np.ndarray:
    """An array whose first element lies on a 64-byte boundary; its pages are touched."""
    size = int(np.prod(shape)) * np.dtype(dtype).itemsize
    buffer = np.ones(size + 64, np.uint8)
    start = -buffer.ctypes.data % 64
    return buffer[start : start + size].view(dtype).reshape(shape)


def random(*shape: int, dtype: Any = np.float32) -> np.ndarray:
    array = aligned(*shape, dtype=dtype)
    array[...] = np.random.default_rng().standard_normal(shape, np.float32)
    return array


# Peers


class OnnxModel:
    """A graph of a few ONNX nodes in ONNX Runtime and OpenVINO, bound to memory that stays."""

    def __init__(self, nodes: list[Any], inputs: dict[str, np.ndarray], constants: dict[str, np.ndarray],
                 out: np.ndarray, threads: int) -> None:  # fmt: skip
        from onnx import TensorProto, checker, helper, numpy_helper

        def info(name: str, array: np.ndarray) -> Any:
            return helper.make_tensor_value_info(name, TensorProto.FLOAT, array.shape)

        graph = helper.make_graph(
            nodes, "kernel", [info(name, array) for name, array in inputs.items()], [info("out", out)],
            [numpy_helper.from_array(array, name) for name, array in constants.items()],
        )  # fmt: skip
        self.model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=10)
        checker.check_model(self.model)
        self.inputs, self.out, self.threads = inputs, out, threads

    def onnxruntime(self) -> Run:
        import onnxruntime

        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = self.threads
        session = onnxruntime.InferenceSession(
            self.model.SerializeToString(), options, providers=["CPUExecutionProvider"]
        )
        binding = session.io_binding()
        for name, array in self.inputs.items():
            binding.bind_cpu_input(name, array)
        value = onnxruntime.OrtValue.ortvalue_from_numpy(self.out)
        binding.bind_ortvalue_output("out", value)

        def run() -> None:
            session.run_with_iobinding(binding)

        self.ort_result = value.numpy
        return run

    def openvino(self) -> Run:
        import openvino

        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "kernel.onnx"
            path.write_bytes(self.model.SerializeToString())
            model = openvino.Core().read_model(path)
            hints = {"INFERENCE_NUM_THREADS": self.threads, "INFERENCE_PRECISION_HINT": "f32", "NUM_STREAMS": 1}
            compiled = openvino.Core().compile_model(model, "CPU", hints)
        request = compiled.create_infer_request()
        for name, array in self.inputs.items():
            request.set_tensor(name, openvino.Tensor(array, shared_memory=True))
        request.set_output_tensor(openvino.Tensor(self.out, shared_memory=True))
        return request.infer

    def compete(self, case: Case) -> None:
        """Add both to a case; a missing package is left out with a note."""
        for name, make in (("ONNX Runtime", self.onnxruntime), ("OpenVINO", self.openvino)):
            try:
                run = make()
            except ImportError as error:
                print(f"  {name}: {error}")
                continue
            case.add(name, run, self.ort_result if name == "ONNX Runtime" else lambda: self.out)


def torch_of(array: np.ndarray) -> Any:
    import torch

    if array.dtype == ml_dtypes.bfloat16:
        return torch.from_numpy(array.view(np.int16)).view(torch.bfloat16)
    return torch.from_numpy(array)


def add_torch(case: Case, name: str, function: Callable[..., Any], out: np.ndarray, *arguments: np.ndarray) -> None:
    """PyTorch eager and torch.compile, both writing into `out`: function(out, *arguments)."""
    import torch

    tensors = [torch_of(array) for array in (out, *arguments)]
    compiled = torch.compile(function, dynamic=False)
    case.add(name, lambda: function(*tensors), lambda: out)
    case.add("torch.compile", lambda: compiled(*tensors), lambda: out)


# Matrix products


def matmul_case(size: int, threads: int) -> Case:
    import torch

    a, b = random(size, size), random(size, size)
    case = Case(f"matmul f32 {size}", a.astype(np.float64) @ b, 1e-5, 0.9, gflop=2e-9 * size**3)
    out = aligned(size, size)
    case.add(OURS, packed_matmul(a, b, out), lambda: out)
    case.add("tilewright, B as it lies", packed_matmul(a, b, out, packed=False), lambda: out)
    weight = torch.from_numpy(np.ascontiguousarray(b.T))
    packed = torch.ops.mkldnn._reorder_linear_weight(weight, size)
    left = torch.from_numpy(a)
    newest: list[Any] = [None]

    def onednn() -> None:
        newest[0] = torch.ops.mkldnn._linear_pointwise(left, packed, None, "none", [], "")

    case.add("oneDNN, prepacked", onednn, lambda: newest[0].numpy())
    result, right = torch.empty(size, size), torch.from_numpy(b)
    case.add("torch.mm", lambda: torch.mm(left, right, out=result), result.numpy)
    array = aligned(size, size)
    case.add("NumPy (OpenBLAS)", lambda: np.matmul(a, b, out=array), lambda: array)
    from onnx import helper

    OnnxModel([helper.make_node("MatMul", ["a", "b"], ["out"])], {"a": a}, {"b": b}, aligned(size, size),
              threads).compete(case)  # fmt: skip
    return case


def bfloat16_matmul_case(size: int, threads: int) -> Case:
    import torch

    a, b = (random(size, size, dtype=ml_dtypes.bfloat16) for _ in range(2))
    expected = a.astype(np.float64) @ b.astype(np.float64)
    case = Case(f"matmul bf16 {size}", expected, 1e-2, 0.85, gflop=2e-9 * size**3)
    out = aligned(size, size, dtype=ml_dtypes.bfloat16)
    case.add(OURS, packed_matmul(a, b, out), lambda: out)
    left, right = torch_of(a), torch_of(b)
    result = torch.empty(size, size, dtype=torch.bfloat16)
    case.add("oneDNN (torch.mm)", lambda: torch.mm(left, right, out=result), lambda: result.float().numpy())
    packed = torch.ops.mkldnn._reorder_linear_weight(torch_of(np.ascontiguousarray(b.T)), size)
    newest: list[Any] = [None]

    def onednn() -> None:
        newest[0] = torch.ops.mkldnn._linear_pointwise(left, packed, None, "none", [], "")

    case.add("oneDNN, prepacked", onednn, lambda: newest[0].float().numpy())
    return case


def packed_matmul(a: np.ndarray, b: np.ndarray, out: np.ndarray, packed: bool = True) -> Run:
    """The library's kernel, with B as constants lie in an engine (panels) or as it lies."""
    from tilewright.dtypes import from_numpy
    from tilewright.library import packing
    from tilewright.library.epilogue import identity
    from tilewright.library.matmul.cpu_blocks import choose_blocks
    from tilewright.library.matmul.kernel import matmul
    from tilewright.targets.registry import get_target

    (rows, depth), columns = a.shape, b.shape[1]
    target = get_target("cpu")
    dtype = from_numpy(a.dtype)
    width = target.microtile(dtype)[1] if packed else 0
    group = target.panel_group(dtype, rows, depth) if packed else 1
    blocks = choose_blocks((rows,), columns, depth, 1, dtype, target, target.machine(), width, group)
    right = packing.apply(packing.panels_recipe(width, False, group), b) if packed else b
    operand = aligned(*right.shape, dtype=right.dtype)
    operand[...] = right
    grid = (-(-rows // blocks.rows), -(-columns // blocks.columns), 1)
    strides = (depth, 1, 0 if packed else columns, 0 if packed else 1, columns)
    constants = {
        "BLOCK_M": blocks.rows, "BLOCK_N": blocks.columns, "BLOCK_K": blocks.depth, "WIDTH": width,
        "WHOLE_K": blocks.depth == depth, "MASK_M": rows % blocks.rows != 0, "MASK_N": columns % blocks.columns != 0,
        "MASK_K": depth % blocks.depth != 0,
        "MASK_PANEL": packed and -(-columns // width) % (blocks.columns // width) != 0, "GROUP": group,
        "EPILOGUE": identity,
    }  # fmt: skip
    launcher = matmul[grid]

    def run() -> None:
        launcher(a, operand, out, rows, columns, depth, *strides, **constants)

    return run


# Elementwise and rows


@tilewright.jit
def softmax(x, out, columns, BLOCK: tl.constexpr):
    column = tl.arange(0, BLOCK)
    row = tl.program_id(0).to(tl.int64) * columns
    inside = column < columns
    values = tl.load(x + row + column, mask=inside, other=-float("inf"))
    weights = tl.exp(values - tl.max(values, 0))
    tl.store(out + row + column, weights / tl.sum(weights, 0), mask=inside, cache_modifier=".cs")


@tilewright.jit
def layer_norm(x, weight, bias, out, columns, epsilon, BLOCK: tl.constexpr):
    column = tl.arange(0, BLOCK)
    row = tl.program_id(0).to(tl.int64) * columns
    inside = column < columns
    values = tl.load(x + row + column, mask=inside, other=0.0)
    mean = tl.sum(values, 0) / columns
    centred = tl.where(inside, values - mean, 0.0)
    scale = tl.rsqrt(tl.sum(centred * centred, 0) / columns + epsilon)
    result = centred * scale * tl.load(weight + column, mask=inside) + tl.load(bias + column, mask=inside)
    tl.store(out + row + column, result, mask=inside, cache_modifier=".cs")


@tilewright.jit
def gelu_product(x, bias, factor, out, columns, BLOCK: tl.constexpr):
    column = tl.arange(0, BLOCK)
    row = tl.program_id(0).to(tl.int64) * columns
    inside = column < columns
    value = tl.load(x + row + column, mask=inside) + tl.load(bias + column, mask=inside)
    activated = 0.5 * value * (1.0 + tl.erf(value * 0.7071067811865476))
    result = activated * tl.load(factor + row + column, mask=inside)
    tl.store(out + row + column, result, mask=inside, cache_modifier=".cs")


def softmax_case(threads: int) -> Case:
    import torch
    from onnx import helper

    x, out = random(ROWS, COLUMNS), aligned(ROWS, COLUMNS)
    wide = np.exp(x.astype(np.float64) - x.max(1, keepdims=True))
    case = Case("softmax 4096x4096", wide / wide.sum(1, keepdims=True), 1e-5, 1.0, gigabytes=8e-9 * x.size)
    case.add(OURS, lambda: softmax[(ROWS,)](x, out, COLUMNS, BLOCK=COLUMNS), lambda: out)
    add_torch(case, "PyTorch eager", lambda result, value: torch.softmax(value, 1, out=result), aligned(*x.shape), x)
    OnnxModel([helper.make_node("Softmax", ["x"], ["out"], axis=1)], {"x": x}, {}, aligned(*x.shape),
              threads).compete(case)  # fmt: skip
    return case


def layer_norm_case(threads: int) -> Case:
    import torch
    from onnx import helper

    x, weight, bias = random(ROWS, COLUMNS), random(COLUMNS), random(COLUMNS)
    wide = x.astype(np.float64)
    normal = (wide - wide.mean(1, keepdims=True)) / np.sqrt(wide.var(1, keepdims=True) + 1e-5)
    case = Case("layernorm 4096x4096", normal * weight + bias, 1e-5, 1.0, gigabytes=8e-9 * x.size)
    out = aligned(*x.shape)
    case.add(OURS, lambda: layer_norm[(ROWS,)](x, weight, bias, out, COLUMNS, 1e-5, BLOCK=COLUMNS), lambda: out)

    def function(result: Any, value: Any, weight: Any, bias: Any) -> Any:
        return result.copy_(torch.nn.functional.layer_norm(value, (COLUMNS,), weight, bias))

    add_torch(case, "PyTorch eager", function, aligned(*x.shape), x, weight, bias)
    node = helper.make_node("LayerNormalization", ["x", "weight", "bias"], ["out"], axis=1, epsilon=1e-5)
    constants = {"weight": weight, "bias": bias}
    OnnxModel([node], {"x": x}, constants, aligned(*x.shape), threads).compete(case)
    return case


def gelu_case(threads: int) -> Case:
    import torch
    from onnx import helper

    x, bias, factor = random(ROWS, COLUMNS), random(COLUMNS), random(ROWS, COLUMNS)
    with torch.inference_mode():
        shifted = torch.from_numpy(x.astype(np.float64) + bias)
        expected = (torch.nn.functional.gelu(shifted) * torch.from_numpy(factor)).numpy()
    case = Case("gelu(x + b) * r 4096x4096", expected, 1e-5, 1.0, gigabytes=12e-9 * x.size)
    out = aligned(*x.shape)
    case.add(OURS, lambda: gelu_product[(ROWS,)](x, bias, factor, out, COLUMNS, BLOCK=COLUMNS), lambda: out)

    def function(result: Any, value: Any, bias: Any, factor: Any) -> Any:
        return torch.mul(torch.nn.functional.gelu(value + bias), factor, out=result)

    add_torch(case, "PyTorch eager", function, aligned(*x.shape), x, bias, factor)
    nodes = [
        helper.make_node("Add", ["x", "bias"], ["shifted"]),
        helper.make_node("Gelu", ["shifted"], ["activated"]),
        helper.make_node("Mul", ["activated", "factor"], ["out"]),
    ]
    inputs = {"x": x, "factor": factor}
    OnnxModel(nodes, inputs, {"bias": bias}, aligned(*x.shape), threads).compete(case)
    return case


# Attention


def attention_case(threads: int) -> Case:
    import torch
    from onnx import helper

    q, k, v = (random(1, HEADS, SEQUENCE, HEAD) for _ in range(3))
    scale = HEAD**-0.5
    scores = q.astype(np.float64) @ k.astype(np.float64).swapaxes(2, 3) * scale
    weights = np.exp(scores - scores.max(3, keepdims=True))
    expected = weights / weights.sum(3, keepdims=True) @ v
    work = 4e-9 * HEADS * SEQUENCE**2 * HEAD
    case = Case("attention b1 h12 s512 d64", expected, 1e-5, 1.0, gflop=work)
    out = aligned(*q.shape)
    case.add(OURS, our_attention(q, k, v, out, scale, threads), lambda: out)

    def function(result: Any, q: Any, k: Any, v: Any) -> Any:
        return result.copy_(torch.nn.functional.scaled_dot_product_attention(q, k, v))

    add_torch(case, "PyTorch SDPA", function, aligned(*q.shape), q, k, v)
    nodes = [
        helper.make_node("Transpose", ["k"], ["kt"], perm=[0, 1, 3, 2]),
        helper.make_node("MatMul", ["q", "kt"], ["raw"]),
        helper.make_node("Mul", ["raw", "scale"], ["scores"]),
        helper.make_node("Softmax", ["scores"], ["weights"], axis=3),
        helper.make_node("MatMul", ["weights", "v"], ["out"]),
    ]
    constants = {"scale": np.array(scale, np.float32)}
    OnnxModel(nodes, {"q": q, "k": k, "v": v}, constants, aligned(*q.shape), threads).compete(case)
    return case


def our_attention(q: np.ndarray, k: np.ndarray, v: np.ndarray, out: np.ndarray, scale: float, threads: int) -> Run:
    """The library's kernel with the blocks that an engine would choose."""
    from tilewright.library.attention.cpu import KEY_BLOCK, query_block
    from tilewright.library.attention.kernel import attention

    block = query_block(SEQUENCE, HEADS, threads)
    whole, head, row = HEADS * SEQUENCE * HEAD, SEQUENCE * HEAD, HEAD
    launcher = attention[(-(-SEQUENCE // block), HEADS, 1)]
    strides = (whole, head, row) * 4

    def run() -> None:
        launcher(q, k, v, q, out, SEQUENCE, SEQUENCE, 1, scale, *strides, 0, 0, 0, 0, 0, 0, 0, HEAD=HEAD,
                 VALUE_HEAD=HEAD, BLOCK_S=block, BLOCK_T=KEY_BLOCK, MASK_S=SEQUENCE % block != 0,
                 MASK_T=SEQUENCE % KEY_BLOCK != 0, CAUSAL=False, WINDOW=0, SOFTCAP=0.0, BIAS=0,
                 TYPE=tl.float32)  # fmt: skip

    return run


# Running


def makers(threads: int) -> Iterator[tuple[str, Callable[[], Case]]]:
    for size in (512, 1024, 2048):
        yield f"matmul f32 {size}", lambda size=size: matmul_case(size, threads)
    for size in (512, 1024, 2048):
        yield f"matmul bf16 {size}", lambda size=size: bfloat16_matmul_case(size, threads)
    yield "softmax 4096x4096", lambda: softmax_case(threads)
    yield "layernorm 4096x4096", lambda: layer_norm_case(threads)
    yield "gelu(x + b) * r 4096x4096", lambda: gelu_case(threads)
    yield "attention b1 h12 s512 d64", lambda: attention_case(threads)


def child(threads: int, options: argparse.Namespace) -> list[dict[str, Any]]:
    """All cases with a number of threads; the records for the results file."""
    import torch

    from tilewright.settings import settings

    torch.set_num_threads(threads)
    settings.threads = threads
    records = []
    for name, make in makers(threads):
        if options.only not in name:
            continue
        with torch.inference_mode():
            case = make()
            milliseconds = common.alternate(case.runs, options.rounds, options.seconds)
        peers = {key: times for key, times in milliseconds.items() if not key.startswith(OURS)}
        best = min(peers, key=lambda key: peers[key]["median"])
        ours = milliseconds[OURS]["median"]
        ratio = peers[best]["median"] / ours
        case_name = f"{case.name}, {threads} thread{'s' * (threads > 1)}"
        speed = f"{case.gflop / ours * 1e3:.0f} GFLOP/s" if case.gflop else f"{case.gigabytes / ours * 1e3:.1f} GB/s"
        print(f"{case_name}: {ours:.3f} ms ({speed}), best peer {best} {peers[best]['median']:.3f} "
              f"ms: {ratio:.2f}{'' if ratio >= case.floor else f'  BELOW {case.floor}'}", flush=True)  # fmt: skip
        for key, times in milliseconds.items():
            print(f"    {key:28s} median {times['median']:9.3f}   best {times['best']:9.3f}", flush=True)
        rate = (
            {"gflops": case.gflop / ours * 1e3} if case.gflop else {"gigabytes_a_second": case.gigabytes / ours * 1e3}
        )
        records.append({"name": case_name, "threads": threads, "milliseconds": milliseconds, "best_peer": best,
                        "ratio": ratio, "floor": case.floor, **rate})  # fmt: skip
    return records


def interpreter_ratio(path: str) -> dict[str, Any]:
    """A softmax of 64 x 1024 in Triton's interpreter and compiled by us."""
    script = Path(__file__).with_name("triton_interpreter.py")
    from tilewright.settings import settings

    environment = {**os.environ, "TRITON_INTERPRET": "1", "PYTHONPATH": path}
    theirs = json.loads(subprocess.run([sys.executable, str(script)], env=environment, check=True,
                                       capture_output=True, text=True).stdout)  # fmt: skip
    rows, columns = theirs["rows"], theirs["columns"]
    x, out = random(rows, columns), aligned(rows, columns)
    settings.threads = 1
    ours = common.alternate({OURS: lambda: softmax[(rows,)](x, out, columns, BLOCK=columns)}, 3, 0.5)
    name = f"Triton {theirs['version']} interpreter"
    milliseconds = {**ours, name: theirs["milliseconds"]}
    ratio = theirs["milliseconds"]["median"] / ours[OURS]["median"]
    print(f"softmax {rows}x{columns}: {name} / tilewright = {ratio:.0f}")
    return {"name": f"softmax {rows}x{columns}, 1 thread", "threads": 1, "milliseconds": milliseconds,
            "best_peer": name, "ratio": ratio}  # fmt: skip


def merged(records: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The cases of the results file, with these in place of those of the same name, or after all."""
    path = common.RESULTS / "kernels_cpu.json"
    found = json.loads(path.read_text())["cases"] if path.exists() else []
    cases = {record["name"]: record for record in [*found, *records]}
    return list(cases.values())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--threads", type=int, nargs="+", default=[1, 2])
    parser.add_argument("--only", default="", help="run the cases whose name contains this")
    parser.add_argument("--merge", action="store_true", help="with --only: put the cases into the results file")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=0.3, help="per contestant and round")
    parser.add_argument("--interpreter", default="", metavar="PATH", help="folder with Triton installed")
    parser.add_argument("--child", default="", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.child:
        Path(options.child).write_text(json.dumps(child(options.threads[0], options)))
        return
    names = [name for name, _ in makers(options.threads[0])]
    if not any(options.only in name for name in names):
        parser.error(f"no case's name contains {options.only!r}; there are: {', '.join(names)}")
    records: list[dict[str, Any]] = []
    for threads in options.threads:
        # Children start with their number of threads; malloc keeps freed pages, as serving processes make it do.
        limits = dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"), str(threads))
        keep = dict.fromkeys(("MALLOC_MMAP_THRESHOLD_", "MALLOC_TRIM_THRESHOLD_", "MALLOC_TOP_PAD_"), str(1 << 30))
        with tempfile.NamedTemporaryFile(suffix=".json") as file:
            flags = {"child": file.name, "threads": threads, "only": options.only, "rounds": options.rounds,
                     "seconds": options.seconds}  # fmt: skip
            command = [f"--{name}={value}" for name, value in flags.items()]
            subprocess.run([sys.executable, __file__, *command], env={**os.environ, **limits, **keep}, check=True)
            records += json.loads(Path(file.name).read_text())
    if options.interpreter:
        records.append(interpreter_ratio(options.interpreter))
    if options.only and options.merge:
        records = merged(records)
    if records and (options.merge or not options.only):
        print("wrote", common.save("kernels_cpu", max(record["threads"] for record in records), records).name)


if __name__ == "__main__":
    main()
