"""Products of a plan by cuBLASLt, through NVIDIA's Python bindings (the package nvmath-python). PyTorch is not needed.

Our tensors have rows, cuBLASLt's matrices columns: what it computes is the transposed product, out' = b' a'.
"""

from __future__ import annotations

import importlib
import weakref
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from tilewright.errors import LaunchError
from tilewright.runtime.cuda.device import Device
from tilewright.runtime.cuda.extern import Operand, unusable
from tilewright.runtime.cuda.staging import Workspaces

_TYPES = {"f32": 0, "f16": 2, "bf16": 14}  # cudaDataType
_FLOAT = 0
_OPERAND_ALIGNMENT = 16  # bytes that operands start at multiples of
_WORKSPACE = 8 << 20  # bytes that an algorithm may take
_EPILOGUES = {(False, False): "DEFAULT", (True, False): "BIAS", (False, True): "RELU", (True, True): "RELU_BIAS"}


@dataclass(frozen=True)
class _ProductPlan:
    """A product of known sizes: handles of its description and its matrices, the algorithm, bytes of its workspace."""

    description: int
    matrices: tuple[int, int, int]  # b, a, out
    algorithm: np.ndarray
    workspace: int


class ProductStep:
    """out = a @ b, with a bias of the columns and relu after it where `options` say so."""

    def __init__(self, dtypes: Sequence[str], options: Mapping[str, Any], device: Device) -> None:
        """`dtypes` are IR texts of a, b, the bias if there is one, and out. Raises `MissingDependencyError`."""
        try:
            self._library = importlib.import_module("nvmath.bindings.cublasLt")
            cublas = importlib.import_module("nvmath.bindings.cublas")
            self._handle = _HANDLES.get(device.ordinal) or self._library.create()
        except Exception as error:  # whatever keeps the library from being used
            needs = "the package nvmath-python, with a cuBLAS that it finds"
            raise unusable("cuBLASLt", needs, "'nvmath-python[cu13]'", error) from error
        _HANDLES[device.ordinal] = self._handle
        self._compute = int(cublas.ComputeType.COMPUTE_32F)
        self._types = [_TYPES[text] for text in dtypes]
        self._epilogue = _EPILOGUES[bool(options["bias"]), bool(options["relu"])]
        self._bias = bool(options["bias"])
        self._workspaces = Workspaces(device)
        self._factors = np.array([1, 0], np.float32)
        self._plans: dict[Any, _ProductPlan] = {}

    def __call__(self, x: int, y: int, z: int, stream: int, *operands: Operand) -> None:
        shapes = tuple(operand[1:] for operand in operands)
        plan = self._plans.get(shapes)
        if plan is None:
            plan = self._plans[shapes] = self._plan(shapes)
        a, b, out = (operands[position][0] for position in (0, 1, -1))
        if self._bias:
            self._describe(plan.description, "BIAS_POINTER", operands[2][0], np.int64)
        factors = self._factors.ctypes.data
        self._library.matmul(
            self._handle, plan.description, factors, b, plan.matrices[0], a, plan.matrices[1], factors + 4, out,
            plan.matrices[2], out, plan.matrices[2], plan.algorithm.ctypes.data,
            self._workspaces.address(stream, plan.workspace), plan.workspace, stream,
        )  # fmt: skip

    def _plan(self, shapes: Any) -> _ProductPlan:
        library = self._library
        description = library.matmul_desc_create(self._compute, _FLOAT)
        matrices = []
        for position, name in ((1, "TRANSA"), (0, "TRANSB"), (-1, None)):
            matrix, turned = self._matrix(self._types[position], *shapes[position])
            matrices.append(matrix)
            if name is not None:
                self._describe(description, name, int(turned), np.int32)
        self._describe(description, "EPILOGUE", int(library.Epilogue[self._epilogue]), np.uint32)
        if self._bias:
            self._describe(description, "BIAS_DATA_TYPE", self._types[2], np.int32)
        weakref.finalize(self, _destroy, library, description, tuple(matrices))
        b, a, out = matrices
        found = np.zeros(1, library.matmul_heuristic_result_dtype)
        count = np.zeros(1, np.int32)
        preference = self._preference()
        library.matmul_algo_get_heuristic(
            self._handle, description, b, a, out, out, preference, 1, found.ctypes.data, count.ctypes.data
        )
        library.matmul_preference_destroy(preference)
        if not count[0]:
            raise LaunchError(f"cuBLASLt has no algorithm for the product of {shapes[0][0]} and {shapes[1][0]}")
        return _ProductPlan(description, (b, a, out), found, int(found["workspace_size"][0]))

    def _preference(self) -> int:
        found = self._library.matmul_preference_create()
        limits = {"MAX_WORKSPACE_BYTES": np.array([_WORKSPACE], np.uint64)}
        limits |= {f"MIN_ALIGNMENT_{name}_BYTES": np.array([_OPERAND_ALIGNMENT], np.uint32) for name in "ABCD"}
        for name, value in limits.items():
            attribute = int(self._library.MatmulPreferenceAttribute[name])
            self._library.matmul_preference_set_attribute(found, attribute, value.ctypes.data, value.nbytes)
        return int(found)

    def _describe(self, description: int, name: str, value: int, kind: type[np.generic]) -> None:
        buffer = np.array([value], kind)
        attribute = int(self._library.MatmulDescAttribute[name])
        self._library.matmul_desc_set_attribute(description, attribute, buffer.ctypes.data, buffer.nbytes)

    def _matrix(self, dtype: int, shape: tuple[int, ...], strides: tuple[int, ...]) -> tuple[int, bool]:
        """A tensor [batch, rows, columns] as a matrix of columns, and whether the product must turn it."""
        (rows, columns), (row, column) = shape[-2:], strides[-2:]
        turned = not (column == 1 or columns == 1)
        if turned and not (row == 1 or rows == 1):
            raise LaunchError(f"cuBLASLt needs contiguous rows or columns; the strides are {strides}")
        inner, outer, step = (rows, columns, column) if turned else (columns, rows, row)
        matrix = self._library.matrix_layout_create(dtype, inner, outer, step if outer > 1 else inner)
        if len(shape) == 3:
            for name, value in (("BATCH_COUNT", np.array([shape[0]], np.int32)),
                                ("STRIDED_BATCH_OFFSET", np.array([strides[0]], np.int64))):  # fmt: skip
                attribute = int(self._library.MatrixLayoutAttribute[name])
                self._library.matrix_layout_set_attribute(matrix, attribute, value.ctypes.data, value.nbytes)
        return int(matrix), turned


_HANDLES: dict[int, int] = {}  # by GPU; a handle may be used by several threads


def _destroy(library: Any, description: int, matrices: Sequence[int]) -> None:
    for matrix in matrices:
        library.matrix_layout_destroy(matrix)
    library.matmul_desc_destroy(description)
