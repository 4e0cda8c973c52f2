"""What a GPU prints is what the interpreter prints; lines come in another order."""

# mypy: ignore-errors

from __future__ import annotations

import numpy as np
import pytest

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
