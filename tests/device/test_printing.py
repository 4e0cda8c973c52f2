"""What a GPU prints is what the interpreter prints, in another order of lines; failed assertions are told."""

# mypy: ignore-errors

from __future__ import annotations

import subprocess
import sys

import numpy as np
import pytest

import tilewright
import tilewright.language as tl
from tests.device.plain_support import run_on_gpu, traced
from tests.host.test_language_printing import bits, prints
from tilewright.ir.interpreter import run
from tilewright.runtime.cuda.streams import synchronize


@pytest.mark.parametrize(
    ("kernel", "arguments", "constants"),
    [
        (prints, {"x": np.array([1.5, -0.0, -np.nan, -np.inf], np.float32), "scale": 2.5}, {"N": 4}),
        (bits, {"x": np.array([-2, 7], np.int16)}, {"N": 2}),
        (bits, {"x": np.array([0.1, 6], np.float32)}, {"N": 2}),
    ],
)
def test_lines(kernel, arguments, constants, capfd):
    function = traced(kernel, arguments, constants)
    run(function, list(arguments.values()), (1, 2))
    expected = capfd.readouterr().out
    run_on_gpu(function, list(arguments.values()), (1, 2))
    synchronize(0)
    found = capfd.readouterr().out
    assert sorted(found.splitlines()) == sorted(expected.splitlines())


@tilewright.jit(debug=True)
def positive(x, N: tl.constexpr):
    value = tl.load(x + tl.arange(0, N))
    tl.device_assert(value > 0, "must be positive")
    tl.store(x + tl.arange(0, N), -value)


def test_a_failed_assertion_is_reported():
    """In a process of its own, for the failure ends the context."""
    script = (
        "import numpy, tilewright\n"
        "from tests.device.plain_support import run_on_gpu, traced\n"
        "from tests.device.test_printing import positive\n"
        "kernel = positive.trace({'x': '*f32'}, {'N': 64})\n"
        "run_on_gpu(kernel, [numpy.ones(64, numpy.float32)])\n"
        "try:\n"
        "    run_on_gpu(kernel, [numpy.zeros(64, numpy.float32)])\n"
        "except tilewright.errors.DeviceError as error:\n"
        "    print('told:', error)\n"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=120)
    shown = done.stdout + done.stderr
    assert "told:" in done.stdout and "CUDA_ERROR_ASSERT" in done.stdout and "TILEWRIGHT_INTERPRET=1" in shown, shown
    assert "must be positive" in shown and "test_printing.py" in shown, shown
