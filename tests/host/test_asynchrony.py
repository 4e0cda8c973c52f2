"""Mistakes in how explicit kernels synchronise are found, in any order, and named with their place."""

from __future__ import annotations

import re
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from tests.host import asynchrony_support as kernels
from tilewright.errors import ExecutionError, LaunchError
from tilewright.ir.asynchrony.operations import HANDLERS
from tilewright.ir.explicit import OPCODES
from tilewright.ir.interpreter import run
from tilewright.ir.ops import OPS
from tilewright.ir.parser import parse_function
from tilewright.launch.jit import JITFunction

ORDERS = range(8)
MAP = "tensormap<{}xbf16>"
PRODUCT = {"a": MAP.format("128x64"), "b": MAP.format("64x64"), "c": MAP.format("64x64"), "K": "i32"}


def traced(kernel: JITFunction, bug: str) -> Any:
    types = {"product": PRODUCT, "turns": {"x": "*f32", "count": "i32"}, "exchange": {"x": "*f32"},
             "in_flight": {"a": MAP.format("64x64"), "x": "*f32"},
             "reload": {"a": MAP.format("64x64"), "x": "*f32"}}[kernel.name]  # fmt: skip
    return kernel.trace(types, {"BUG": bug})


def launch(kernel: JITFunction, bug: str, order: int) -> np.ndarray:
    """Run a kernel on ones; what it stores."""
    ones = np.ones((128, 320), ml_dtypes.bfloat16)
    if kernel is kernels.product:
        out = np.zeros((128, 64), ml_dtypes.bfloat16)
        run(traced(kernel, bug), [ones, ones[:64], out, 320], order=order)
    elif kernel is kernels.turns:
        out = np.zeros((16, 16), np.float32)
        run(traced(kernel, bug), [out, 3], order=order)
    elif kernel is kernels.exchange:
        out = np.zeros((2, 16, 16), np.float32)
        run(traced(kernel, bug), [out], grid=(2,), order=order)
    else:
        out = np.zeros((64, 64), np.float32)
        source = ones[:64, :64] if kernel is kernels.in_flight else np.ones((256, 64), ml_dtypes.bfloat16)
        run(traced(kernel, bug), [source, out], order=order)
    return out


@pytest.mark.parametrize(
    ("kernel", "expected"),
    [
        (kernels.product, 320),
        (kernels.turns, 6),
        (kernels.exchange, None),
        (kernels.in_flight, 64),
        (kernels.reload, 4),
    ],
    ids=lambda value: getattr(value, "name", ""),
)
def test_correct_kernels_are_clean(kernel: JITFunction, expected: float | None):
    for order in range(50):
        out = launch(kernel, "", order)
        if expected is None:
            assert (out[0] == 2).all() and (out[1] == 1).all()
        else:
            assert (out.astype(np.float64) == expected).all()


BUGS = [
    (kernels.product, "no wait for full", "use before wait|uninitialised shared memory"),
    (kernels.product, "starts full", "wrong phase"),
    (kernels.product, "parity never turns", "wrong phase"),
    (kernels.product, "producer never turns", "wrong phase"),
    (kernels.product, "no wait for empty", "early slot reuse|arrival count mismatch"),
    (kernels.product, "release before use", "early slot reuse"),
    (kernels.product, "release of the stage in flight", "early slot reuse"),
    (kernels.product, "no expect", "missing expect"),
    (kernels.product, "arrival for expect", "byte mismatch|use before wait|uninitialised"),
    (kernels.product, "too many bytes", "byte mismatch"),
    (kernels.product, "too few bytes", "byte mismatch"),
    (kernels.product, "one load too few", "deadlock"),
    (kernels.product, "one load too many", "the kernel ends while a copy may still fill lefts"),
    (kernels.product, "too few arrivals", "arrival count mismatch"),
    (kernels.product, "too many arrivals", "arrival count mismatch"),
    (kernels.product, "arrivals of one copy", "early slot reuse|wrong phase"),
    (kernels.product, "accumulates onto nothing", "no value yet"),
    (kernels.product, "accumulator used twice", "accumulator in flight is used again"),
    (kernels.product, "waits for too little", "use before wait: the product may still be in flight"),
    (kernels.product, "no fence", "missing proxy fence"),
    (kernels.product, "no sync", "not in step"),
    (kernels.product, "rewrites at once", "store source rewritten"),
    (kernels.product, "other threads rewrite", "store source rewritten|not in step"),
    (kernels.product, "ends while storing", "ends while a copy may still read"),
    (kernels.turns, "turn kept", "unmatched barrier"),
    (kernels.turns, "turn passed twice", "unmatched barrier|race on"),
    (kernels.turns, "wrong number of threads", "unmatched barrier"),
    (kernels.turns, "nothing written", "uninitialised shared memory"),
    (kernels.turns, "roles before the store", "race on|not in step"),
    (kernels.exchange, "no barrier before the read", "remote read without a cluster barrier|uninitialised|has ended"),
    (kernels.exchange, "relaxed arrival", "remote read without a cluster barrier"),
    (kernels.exchange, "waits only", "without an arrival"),
    (kernels.exchange, "writes while the peer reads", "race|remote read"),
    (kernels.exchange, "peer has ended", "has ended"),
    (kernels.in_flight, "half of 16 bytes", "begins 8 bytes from the start of a row, no multiple of 16"),
    (kernels.in_flight, "no wait for the copy", "use before wait|not written|uninitialised"),
    (kernels.in_flight, "operand rewritten", "operand in flight|not in step"),
    (kernels.in_flight, "operand rewritten by others", "not in step"),
    (kernels.in_flight, "threads not in step", "not in step"),
    (
        kernels.reload,
        "one thread runs ahead",
        "phase 1 of full.0. ends, but all threads may not have seen the one before",
    ),
]


@pytest.mark.parametrize(("kernel", "bug", "title"), BUGS, ids=[f"{kernel.name}: {bug}" for kernel, bug, _ in BUGS])
def test_planted_bugs_are_found_and_named(kernel: JITFunction, bug: str, title: str):
    for order in ORDERS:
        with pytest.raises(ExecutionError) as caught:
            launch(kernel, bug, order)
        error = caught.value
        assert error.location is not None and error.location.file == kernels.product.file, str(error)
        assert f"kernel '{kernel.name}'" in str(error) and " | " in str(error), str(error)
        assert re.search(title, str(error)), str(error)


def test_every_explicit_operation_can_be_interpreted():
    assert {opcode for opcode in OPCODES if OPS[opcode].evaluate is None} - {"warp_roles"} == set(HANDLERS)


def test_a_finding_reads_well():
    with pytest.raises(ExecutionError) as caught:
        launch(kernels.product, "release of the stage in flight", 3)
    text = str(caught.value).replace(kernels.product.file, "FILE")
    assert "early slot reuse: " in text and "is filled again while it is in use" in text
    assert "while this is not over: wgmma of role 'multiply', copy" in text
    assert "in role 'load' of kernel 'product'" in text
    assert "help: release a stage only after the products that read it have ended" in text


def test_a_deadlock_says_who_waits_for_what():
    with pytest.raises(ExecutionError) as caught:
        launch(kernels.product, "one load too few", 0)
    details = "\n".join(caught.value.details)
    assert "role 'multiply', copy 0 waits for phase" in details and "role 'multiply', copy 1 waits for phase" in details
    assert "ring.full[0]: phase" in details


def test_parsed_text_without_source_runs_too():
    text = """\
kernel late(%x: *f32) {
  %0 = shared_alloc {shape = [16], dtype = f32} : shared<16xf32,0>
  %1 = shared_load %0 : <16xf32>
  return
}
"""
    with pytest.raises(ExecutionError, match="uninitialised shared memory: shared memory 0 is read"):
        run(parse_function(text), [np.zeros(1, np.float32)])


def test_the_grid_is_made_of_clusters():
    with pytest.raises(LaunchError, match="clusters"):
        run(traced(kernels.exchange, ""), [np.zeros((3, 16, 16), np.float32)], grid=(3,))
