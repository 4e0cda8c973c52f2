"""Random kernels over the op table give, bit for bit, what the interpreter says."""

# mypy: ignore-errors

from __future__ import annotations

import random

import pytest

from tests.device.plain_support import run_on_gpu
from tests.host.random_kernels import arguments_of, outputs_of, random_kernel
from tilewright.ir.interpreter import run


@pytest.mark.parametrize("warps", [1, 2, 4, 8])
@pytest.mark.parametrize("number", range(8))
def test_random_kernels(number, warps, rng):
    seed = int(rng.integers(2**60))
    print(f"kernel seed {seed}")
    function = random_kernel(random.Random(seed), 1 + number, exact=True)
    expected = arguments_of()
    run(function, expected, (1, 1, 1))
    found = outputs_of(run_on_gpu(function, arguments_of(), (1, 1, 1), warps))
    for name, wanted in outputs_of(expected).items():
        assert wanted.tobytes() == found[name].tobytes(), name
