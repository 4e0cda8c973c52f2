"""Triton's tutorials: the kernels and the host code around them, without what a tutorial runs when it is imported."""

# mypy: ignore-errors

from __future__ import annotations

import ast
import functools
import os
import types
from pathlib import Path

import torch
import torch.nn.functional as F

from benchmarks.programs.case import Context, Place, Program, case

FOLDER = "TRITON_TUTORIALS"  # the environment variable that says where the tutorials are


@functools.cache
def tutorial(name: str) -> types.ModuleType:
    """A tutorial's definitions, with the file's names and lines."""
    path = Path(os.environ[FOLDER]) / f"{name}.py"
    tree = ast.parse(path.read_text())
    functions = {node.name for node in tree.body if isinstance(node, ast.FunctionDef)}
    absent: set[str] = set()  # variables that only running the tutorial would give
    definitions = []
    for node in tree.body:
        if _defines(node, functions, absent):
            definitions.append(node)
        elif isinstance(node, ast.Assign):
            absent |= {found.id for target in node.targets for found in ast.walk(target) if isinstance(found, ast.Name)}
    tree.body = definitions
    module = types.ModuleType(name.replace("-", "_"))
    module.__file__ = str(path)
    exec(compile(tree, str(path), "exec"), module.__dict__)
    return module


def _defines(node: ast.stmt, functions: set[str], absent: set[str]) -> bool:
    """Whether a statement of a tutorial defines something, and neither runs nor tests nor times it."""
    if isinstance(node, ast.Import | ast.ImportFrom):
        return not any(alias.name in ("pytest", "tabulate") for alias in node.names)
    if isinstance(node, ast.FunctionDef):
        decorators = " ".join(ast.unparse(decorator) for decorator in node.decorator_list)
        return "pytest" not in decorators and "perf_report" not in decorators
    if isinstance(node, ast.Assign):
        found = list(ast.walk(node.value))
        calls = [call for call in found if isinstance(call, ast.Call)]
        runs = [call for call in calls if ast.unparse(call.func) in functions and call.args]
        tensors = [call for call in calls if ast.unparse(call.func).startswith("torch.")]
        return not runs and not tensors and absent.isdisjoint(x.id for x in found if isinstance(x, ast.Name))
    if isinstance(node, ast.If):
        return all(isinstance(inner, ast.Assign) and _defines(inner, functions, absent) for inner in _branches(node))
    return isinstance(node, ast.ClassDef | ast.Try)


def _branches(node: ast.If) -> list[ast.stmt]:
    """The statements of all branches."""
    other = _branches(node.orelse[0]) if len(node.orelse) == 1 and isinstance(node.orelse[0], ast.If) else node.orelse
    return [*node.body, *other]


@case("tutorial 01: vector add", cpu=[(1 << 22,)], cuda=[(1 << 26,)])
def add(place: Place, count: int) -> Program:
    module = tutorial("01-vector-add")
    x, y = (place.normal(count, dtype=torch.float32) for _ in range(2))
    return Program(lambda: module.add(x, y), lambda x, y: x + y, (x, y))


@case("tutorial 02: softmax", cpu=[(4096, 1024)], cuda=[(16384, 2048), (4096, 12000)])
def softmax(place: Place, rows: int, columns: int) -> Program:
    module = tutorial("02-fused-softmax")
    x = place.normal(rows, columns, dtype=torch.float32)
    return Program(lambda: module.softmax(x), lambda x: torch.softmax(x, -1), (x,))


@case(
    "tutorial 03: matrix product",
    cpu=[(512, 512, 512), (300, 700, 257)],
    cuda=[(4096, 4096, 4096), (2048, 8192, 2048)],
    multiples=(16, 16, 16),
)
def product(place: Place, rows: int, columns: int, depth: int) -> Program:
    """The result is float16, whatever the operands are."""
    module = tutorial("03-matrix-multiplication")
    dtype = torch.float32 if place.on_cpu else torch.float16
    a, b = place.normal(rows, depth, dtype=dtype), place.normal(depth, columns, dtype=dtype)
    return Program(lambda: module.matmul(a, b), lambda a, b: (a @ b).half(), (a, b), tolerance=2e-3)


@case("tutorial 04: dropout", cpu=[(1 << 22,)], cuda=[(1 << 26,)])
def dropout(place: Place, count: int) -> Program:
    module = tutorial("04-low-memory-dropout")
    x = place.normal(count, dtype=torch.float32)
    mask = (place.normal(count, dtype=torch.float32) > 0).to(torch.int32)
    function = lambda x, mask: torch.where(mask != 0, x / 0.5, 0.0)  # noqa: E731
    return Program(lambda: module.dropout(x, mask, 0.5), function, (x, mask))


@case("tutorial 04: seeded dropout", cpu=[(1 << 22,)], cuda=[(1 << 26,)])
def seeded_dropout(place: Place, count: int) -> Program:
    """Each library draws other numbers: what is compared is the mean of the squares."""
    module = tutorial("04-low-memory-dropout")
    x = place.normal(count, dtype=torch.float32)
    squared = lambda y: (y * y).mean()  # noqa: E731
    call = lambda: module.seeded_dropout(x, 0.5, 123)  # noqa: E731
    program = Program(call, lambda x: F.dropout(x, 0.5), (x,), tolerance=0.02)
    program.results = lambda: [squared(call())]
    program.expected = lambda: [2 * squared(x.double())]
    return program


def _layer(x, weight, bias):
    return F.layer_norm(x, x.shape[-1:], weight, bias, 1e-5)


def _layer_inputs(place: Place, rows: int, columns: int) -> list[torch.Tensor]:
    dtype = torch.float32 if place.on_cpu else torch.float16
    return [place.normal(*shape, dtype=dtype) for shape in ((rows, columns), (columns,), (columns,))]


@case("tutorial 05: layer norm", cpu=[(2048, 4096)], cuda=[(16384, 4096)])
def layer_norm(place: Place, rows: int, columns: int) -> Program:
    module = tutorial("05-layer-norm")
    x, weight, bias = _layer_inputs(place, rows, columns)
    call = lambda: module.LayerNorm.forward(Context(), x, (columns,), weight, bias, 1e-5)  # noqa: E731
    return Program(call, _layer, (x, weight, bias))


@case("tutorial 05: layer norm backward", cpu=[(2048, 4096)], cuda=[(16384, 4096)])
def layer_norm_gradient(place: Place, rows: int, columns: int) -> Program:
    module = tutorial("05-layer-norm")
    x, weight, bias = _layer_inputs(place, rows, columns)
    gradient, context = place.normal(rows, columns, dtype=x.dtype), Context()
    module.LayerNorm.forward(context, x, (columns,), weight, bias, 1e-5)
    call = lambda: [part for part in module.LayerNorm.backward(context, gradient) if part is not None]  # noqa: E731
    return Program(call, _layer, (x, weight, bias), gradients=(gradient,), tolerance=2e-2)


def _attention(causal: bool):
    def function(q, k, v):
        return F.scaled_dot_product_attention(q, k, v, is_causal=causal, scale=0.5)

    return function


def _attention_forward(place: Place, shape: tuple[int, ...], causal: bool, config: dict[str, int]) -> Program:
    module = tutorial("06-fused-attention")
    q, k, v = (place.normal(*shape, dtype=torch.float16) for _ in range(3))
    place.configs["_attn_fwd"] = config
    call = lambda: module._attention.forward(Context(), q, k, v, causal, 0.5, False)  # noqa: E731
    return Program(call, _attention(causal), (q, k, v), tolerance=5e-3)


_BLOCKS = {"BLOCK_M": 128, "BLOCK_N": 64, "num_stages": 3}
_SHAPES = [(4, 16, 4096, 64), (4, 16, 4096, 128)]
_STEPS = (1, 1, 128, 0)


@case("tutorial 06: attention, 4 warps", cuda=_SHAPES, multiples=_STEPS)
def attention(place: Place, *shape: int) -> Program:
    return _attention_forward(place, shape, False, {**_BLOCKS, "num_warps": 4})


@case("tutorial 06: causal attention, 4 warps", cuda=_SHAPES, multiples=_STEPS)
def causal_attention(place: Place, *shape: int) -> Program:
    return _attention_forward(place, shape, True, {**_BLOCKS, "num_warps": 4})


@case("tutorial 06: attention, 8 warps", cuda=_SHAPES[1:], multiples=_STEPS)
def wide_attention(place: Place, *shape: int) -> Program:
    return _attention_forward(place, shape, False, {"BLOCK_M": 128, "BLOCK_N": 128, "num_stages": 2, "num_warps": 8})


@case("tutorial 06: causal attention backward", cuda=_SHAPES, multiples=_STEPS)
def attention_gradient(place: Place, *shape: int) -> Program:
    module = tutorial("06-fused-attention")
    q, k, v, gradient = (place.normal(*shape, dtype=torch.float16) for _ in range(4))
    place.configs["_attn_fwd"] = {**_BLOCKS, "num_warps": 4}
    context = Context()
    module._attention.forward(context, q, k, v, True, 0.5, False)
    call = lambda: module._attention.backward(context, gradient)[:3]  # noqa: E731
    return Program(call, _attention(True), (q, k, v), gradients=(gradient,), tolerance=1e-2)


@case("tutorial 08: grouped products", cuda=[(4, 2048, 2048)], multiples=(1, 128, 128))
def grouped(place: Place, groups: int, rows: int, depth: int) -> Program:
    module = tutorial("08-grouped-gemm")
    lefts = [place.normal(rows >> index % 2, depth, dtype=torch.float16) for index in range(groups)]
    rights = [place.normal(depth, rows, dtype=torch.float16) for _ in range(groups)]
    results = [
        torch.empty(a.shape[0], b.shape[1], device=place.device, dtype=torch.float16)
        for a, b in zip(lefts, rights, strict=True)
    ]
    pointers = [torch.tensor([x.data_ptr() for x in xs], device=place.device) for xs in (lefts, rights, results)]
    sizes = [number for a, b in zip(lefts, rights, strict=True) for number in (a.shape[0], b.shape[1], depth)]
    strides = [number for a, b in zip(lefts, rights, strict=True) for number in (a.stride(0), b.stride(0), b.shape[1])]
    tables = [torch.tensor(numbers, dtype=torch.int32, device=place.device) for numbers in (sizes, strides)]

    def call():
        module.grouped_matmul_kernel[lambda values: (values["NUM_SM"],)](*pointers, *tables, groups)
        return results

    function = lambda *given: [a @ b for a, b in zip(given[:groups], given[groups:], strict=True)]  # noqa: E731
    place.configs["grouped_matmul_kernel"] = {"BLOCK_SIZE_M": 128, "BLOCK_SIZE_N": 128, "NUM_SM": 128}
    return Program(call, function, (*lefts, *rights), tolerance=2e-3)
