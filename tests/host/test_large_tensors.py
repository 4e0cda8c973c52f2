"""Places in tensors of 2^31 elements and more: kernels for GPUs ask memory for nothing outside of their tensors.

No memory is taken: the first, a middle and the last program of each kernel run in the interpreter, which looks at the
addresses that are asked for and gives zeros. Loops do their first two passes and the last one.
"""

# mypy: ignore-errors

from __future__ import annotations

import itertools
import math
from unittest import mock

import numpy as np
import pytest

from tilewright.build.kernels import KernelSet, _parameter_order
from tilewright.dtypes import float16
from tilewright.errors import UnsupportedOperationError
from tilewright.graph.build import GraphBuilder
from tilewright.graph.core import Value
from tilewright.graph.passes.fuse import fuse
from tilewright.graph.pipeline import optimize
from tilewright.ir import interpreter
from tilewright.ir.explicit import is_explicit
from tilewright.ir.types import PointerType
from tilewright.library.candidate import PackedConstant
from tilewright.library.generated.slot_functions import Chain
from tilewright.library.generated.source import ExtraReferences
from tilewright.library.select import candidates
from tilewright.runtime.gpu_program import Resources
from tilewright.runtime.plan import BufferReference
from tilewright.settings import settings
from tilewright.targets.cpu.target import CPUTarget
from tilewright.targets.gpu.binary import GpuBinary
from tilewright.targets.nvidia.backend import NvidiaBackend
from tilewright.targets.nvidia.target import NvidiaTarget
from tilewright.targets.registry import graph_passes

N = 2**31 + 2**20 + 6
POOL = {"kernel": (3, 3), "strides": (1, 1), "padding": ((1, 1), (1, 1)), "dilation": (1, 1)}


class Looking(interpreter._Instance):
    """A program whose accesses are looked at: `tensors` has the begin and the end of each tensor, by its number."""

    tensors: list[tuple[int, int]]

    def _look(self, operation, pointer, mask) -> None:
        places = np.ravel(pointer if mask is None else pointer[np.broadcast_to(mask, pointer.shape)])
        if places.size:
            low, high = int(places.min()), int(places.max()) + interpreter._pointee(operation).itemsize
            begin, end = self.tensors[round(low / 2**44) - 1]
            assert begin <= low and high <= end, (str(operation.location), low - begin, high - begin, end - begin)

    def load(self, operation, operands):
        self._look(operation, operands[0], operands[1] if len(operands) > 1 else None)
        return [np.zeros(operands[0].shape, interpreter._pointee(operation).numpy)]

    def store(self, operation, operands):
        self._look(operation, operands[0], operands[2] if len(operands) > 2 else None)
        return []

    def for_loop(self, operation, operands):
        places, carried = range(*map(int, operands[:3])), operands[3:]
        for place in dict.fromkeys([*places[:2], *places[-1:]]):
            carried = self.region(operation.regions[0], [np.asarray(place, operands[0].dtype), *carried])
        return carried


_HANDLERS = {"load": Looking.load, "store": Looking.store, "for": Looking.for_loop}


def run_ends(function, call) -> None:
    """Run the first, a middle and the last program along each axis of a call's grid."""
    values, tensors = {}, []
    for number, (argument, name) in enumerate(
        zip(function.region.arguments, _parameter_order(call, call.kernel), strict=True)
    ):
        operand = call.operands[name]
        if isinstance(argument.type.element, PointerType):
            assert isinstance(operand, Value)
            begin = (number + 1) << 44
            values[argument] = np.asarray(begin, np.int64)
            tensors.append((begin, begin + math.prod(operand.shape) * operand.dtype.itemsize))
        else:
            values[argument] = interpreter.argument_value(argument.type, function.parameters[number], operand, None)
    for operation in function.walk():
        if operation.opcode in interpreter._KNOWN:
            values[operation.result] = interpreter.evaluate(operation, ())[0]
    with mock.patch.dict(interpreter._HANDLERS, _HANDLERS), np.errstate(all="ignore"):
        for index in itertools.product(*({0, extent // 2, extent - 1} for extent in call.grid)):
            instance = Looking(None, index, call.grid, dict(values))
            instance.tensors = tensors
            instance.region(function.region)


def check(graph, tmp_path) -> int:
    """Run the ends of each kernel of each candidate for the groups of a graph; how many there were."""
    target, functions = NvidiaTarget.named("sm_90a"), {}

    def compile_function(backend, function, options):
        key = f"kernel {len(functions)}"
        functions[key] = function
        types = tuple(str(argument.type) for argument in function.region.arguments)
        taken = Resources(0, 0, 0, 0, 0, 0)
        return GpuBinary("cuda", key, key, b"", types, 0, features=("sm_90a",), warps=4, warp_threads=32,
                         shared_bytes=0, resources=taken, cluster=(1, 1, 1), tensor_maps=())  # fmt: skip

    def place(operand) -> BufferReference:
        value = operand.value if isinstance(operand, PackedConstant) else operand
        return BufferReference("weight", value.name, 0)

    count = 0
    with (
        settings.scope(cache_directory=tmp_path, always_compile=True, tune=0),
        mock.patch.object(NvidiaBackend, "compile", compile_function),
    ):
        graph = optimize(graph, graph_passes([target]))
        kernels = KernelSet(target, lambda *_: None)
        for group in fuse(graph, target.kernels).groups:
            for candidate in candidates(group, graph, target) if group.kind != "view" else ():
                for call in (call for stage in candidate.stages for call in stage.calls):
                    function = functions[kernels.choice(call, place).kernel]
                    if not any(is_explicit(operation.opcode) for operation in function.walk()):
                        run_ends(function, call)
                        count += 1
    return count


def of_one(op: str, shape: tuple[int, ...], **attributes):
    b = GraphBuilder(op)
    b.output(b.op(op, [b.input("x", float16, shape)], **attributes), "y")
    return b.finish()


@pytest.mark.parametrize(
    "op, shape, attributes",
    [
        ("relu", (N,), {}),
        ("permute", (N // 30, 3, 10), {"order": (2, 1, 0)}),
        ("reduce_sum", (N,), {"axes": (0,), "keepdims": False}),
        ("reduce_mean", (2, N), {"axes": (1,), "keepdims": False}),
        ("reduce_max", (2, N), {"axes": (0,), "keepdims": False}),
        ("reduce_sum", (N // 8, 9), {"axes": (1,), "keepdims": False}),
        ("reduce_sum", (701, 32003, 100), {"axes": (0, 2), "keepdims": False}),
        ("reduce_log_sum_exp", (3, N // 2), {"axes": (1,), "keepdims": False}),
        ("softmax", (N // 2, 2), {"axis": 1}),
        ("softmax", (2, N), {"axis": 1}),
        ("softmax", (70001, 32003), {"axis": 0}),
        ("argmax", (2, N), {"axis": 1, "keepdims": False}),
        ("argmax", (2, N), {"axis": 0, "keepdims": False}),
        ("argmin", (N // 2, 3), {"axis": 1, "keepdims": False}),
        ("cumsum", (N // 2, 3), {"axis": 1}),
        ("cumsum", (2, N), {"axis": 1}),
        ("argsort", (2, N), {"axis": 1, "count": 5}),
        ("argsort", (N // 2, 2), {"axis": 1, "count": 2}),
        ("max_pool", (9, 3, 10007, 10003), POOL),
        ("average_pool", (2, 3, 50007, 10003), POOL),
    ],
)
def test_no_kernel_leaves_its_tensors(op, shape, attributes, tmp_path) -> None:
    if op == "cumsum":
        attributes = {**attributes, "reverse": False}
    assert check(of_one(op, shape, **attributes), tmp_path)


def test_rows_meet_their_moments(tmp_path) -> None:
    b = GraphBuilder("standardize")
    x = b.input("x", float16, (2, N))
    mean = b.op("reduce_mean", [x], axes=(1,), keepdims=True)
    centred = b.op("subtract", [x, mean])
    square = b.op("reduce_mean", [b.op("multiply", [centred, centred])], axes=(1,), keepdims=True)
    b.output(b.op("multiply", [centred, b.op("rsqrt", [square])]), "y")
    assert check(b.finish(), tmp_path)


def test_residuals_of_products_are_found_by_64_bits() -> None:
    """Rows are numbers of 32 bits in kernels that copy tiles: they are widened where the residual is that large."""
    for rows, widened in ((1 << 20, True), (1 << 18, False)):
        b = GraphBuilder("residual")
        product = b.input("product", float16, (rows, 4096))
        total = b.op("add", [product, b.input("residual", float16, (rows, 4096))])
        b.output(total, "y")
        (node,) = b.finish().nodes
        function = Chain((node,), product, total, {}).written(ExtraReferences()).function
        assert ("row.to(tl.int64) * 4096" in function.source) is widened


def test_rows_that_go_backwards_are_found_by_64_bits() -> None:
    for side, widened in ((47000, True), (4700, False)):
        b = GraphBuilder("backwards")
        x = b.input("x", float16, (side, side))
        turned = b.op("slice", [x], axis=0, start=side - 1, stop=-1, step=-1)
        narrow = b.op("permute", [b.op("slice", [turned], axis=1, start=0, stop=side, step=40)], order=(1, 0))
        b.output(b.op("relu", [narrow]), "y")
        graph, target = b.finish(), CPUTarget.named("x86-64-v3")
        (group,) = fuse(graph, target.kernels).groups
        (call,) = candidates(group, graph, target)[0].stages[0].calls
        assert (f"column.to(tl.int64) * -{side}" in call.kernel.source) is widened


def test_longer_rows_are_not_sorted(tmp_path) -> None:
    with pytest.raises(UnsupportedOperationError, match="rows of 2\\^31 and more elements have no kernel but for the "):
        check(of_one("argsort", (1, N), axis=1, count=N), tmp_path)


def test_programs_are_counted_by_64_bits_where_it_matters(tmp_path) -> None:
    target = NvidiaTarget.named("sm_90a")
    for rows, wide in ((N // 8, True), (1 << 20, False)):
        graph = of_one("reduce_sum", (rows, 9), axes=(1,), keepdims=False)
        (group,) = fuse(graph, target.kernels).groups
        call = candidates(group, graph, target)[0].stages[0].calls[0]
        _, request = KernelSet(target, lambda *_: None)._request(call, call.kernel, {})
        assert request[-1].get("wide_grid", False) is wide
