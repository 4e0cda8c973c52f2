"""Steps that other libraries compute, with stand-ins for these: plans, workspaces, and what is told of failures."""

from __future__ import annotations

import ctypes
import re
import sys
from collections.abc import Callable
from unittest.mock import MagicMock

import numpy as np
import pytest

from tests.host.cuda_stand_in import Driver
from tilewright.errors import LaunchError
from tilewright.runtime.cuda import cublaslt, cudnn, extern
from tilewright.runtime.cuda.device import Device
from tilewright.runtime.cuda.extern import extern_start
from tilewright.runtime.cuda.staging import Workspaces
from tilewright.runtime.extern import extern_key

GPU = Device(0, "stand-in", (9, 0), 132, 50 << 20, 1 << 37, 227 << 10, True)
PRODUCT = extern_key("cublaslt.product", ["f16"] * 3, {"bias": False, "relu": False})
WINDOW = {"padding": [0, 0], "strides": [1, 1], "dilation": [1, 1], "bias": False, "relu": False}
CONVOLUTION = extern_key("cudnn.convolution", ["f16"] * 3, WINDOW)
MATRICES = [(256, (4, 8), (8, 1)), (512, (8, 6), (6, 1)), (768, (4, 6), (6, 1))]
IMAGES = [(256, (1, 8, 5, 5), (200, 1, 40, 8)), (512, (6, 8, 1, 1), (8, 1, 8, 8)), (768, (1, 6, 5, 5), (150, 1, 30, 6))]


@pytest.fixture
def products(driver: Driver, monkeypatch: pytest.MonkeyPatch) -> MagicMock:
    """cuBLASLt's bindings: one algorithm for every product, which wants 4 KiB."""
    library = MagicMock()
    library.matmul_heuristic_result_dtype = np.dtype([("workspace_size", np.uint64)])

    def heuristic(*arguments: int) -> None:
        ctypes.c_uint64.from_address(arguments[-2]).value = 4096
        ctypes.c_int32.from_address(arguments[-1]).value = 1

    library.matmul_algo_get_heuristic.side_effect = heuristic
    monkeypatch.setitem(sys.modules, "nvmath.bindings.cublasLt", library)
    monkeypatch.setitem(sys.modules, "nvmath.bindings.cublas", MagicMock())
    monkeypatch.setattr(cublaslt, "_HANDLES", {})
    return library


@pytest.fixture
def convolutions(driver: Driver, monkeypatch: pytest.MonkeyPatch) -> MagicMock:
    """cuDNN's front end: every graph wants 4 KiB."""
    library = MagicMock()
    library.pygraph.return_value.get_workspace_size.return_value = 4096
    monkeypatch.setitem(sys.modules, "cudnn", library)
    monkeypatch.setattr(cudnn, "_HANDLES", {})
    return library


def test_products_on_streams_of_their_own_have_workspaces_of_their_own(products: MagicMock) -> None:
    """One step is all products of these types; branches of a plan run it on several streams at once."""
    start = extern_start(PRODUCT, GPU)
    for stream in (1, 2, 1):
        start(1, 1, 1, stream, *MATRICES)
    workspaces, sizes, streams = zip(*(call.args[-3:] for call in products.matmul.call_args_list), strict=True)
    assert streams == (1, 2, 1) and sizes == (4096,) * 3
    assert workspaces[0] == workspaces[2] != workspaces[1]
    products.matmul_algo_get_heuristic.assert_called_once()


def test_convolutions_on_streams_of_their_own_have_workspaces_of_their_own(convolutions: MagicMock) -> None:
    start = extern_start(CONVOLUTION, GPU)
    for stream in (1, 2, 1):
        start(1, 1, 1, stream, *IMAGES)
    workspaces = [call.args[1] for call in convolutions.pygraph.return_value.execute.call_args_list]
    assert [call.kwargs["stream"] for call in convolutions.set_stream.call_args_list] == [1, 2, 1]
    assert workspaces[0] == workspaces[2] != workspaces[1]
    convolutions.pygraph.assert_called_once()


def test_workspaces_that_were_given_out_stay(driver: Driver) -> None:
    workspaces = Workspaces(GPU)
    first = workspaces.address(1, 100)
    assert workspaces.address(1, 0) == 0 and workspaces.address(1, 50) == workspaces.address(1, 100) == first
    second = workspaces.address(1, 101)
    assert second != first and {first, second} <= driver.memory.keys()
    assert workspaces.address(1, 200) == second  # twice the first


def failing_function(products: MagicMock, convolutions: MagicMock, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setattr(extern, "_torch", lambda key: MagicMock())
    monkeypatch.setitem(extern._FUNCTIONS, "mm", MagicMock(side_effect=RuntimeError("not here")))
    return extern_key("mm", ["f16"] * 3, {})


def failing_product(products: MagicMock, convolutions: MagicMock, monkeypatch: pytest.MonkeyPatch) -> str:
    products.matmul.side_effect = RuntimeError("not here")
    return PRODUCT


def failing_plan(products: MagicMock, convolutions: MagicMock, monkeypatch: pytest.MonkeyPatch) -> str:
    convolutions.pygraph.return_value.build.side_effect = RuntimeError("not here")
    return CONVOLUTION


@pytest.mark.parametrize("failing", [failing_function, failing_product, failing_plan])
def test_a_library_that_fails_is_reported(
    failing: Callable[..., str], products: MagicMock, convolutions: MagicMock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As an error that candidates are left out for, and that says what to do."""
    key = failing(products, convolutions, monkeypatch)
    operands = IMAGES if key == CONVOLUTION else MATRICES
    told = rf"{re.escape(extern.extern_name(key))} failed for tensors of \[.*RuntimeError: not here.*--vendor never"
    with pytest.raises(LaunchError, match=told):
        extern_start(key, GPU)(1, 1, 1, 1, *operands)
