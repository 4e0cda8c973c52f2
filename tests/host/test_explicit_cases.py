"""The explicit kernels that the GPU tests run, in the interpreter: right, and without a hazard, in adverse orders."""

from __future__ import annotations

import numpy as np
import pytest

from tests.explicit_cases import CASES, check
from tilewright.ir.interpreter import run
from tilewright.ir.verifier import verify


@pytest.mark.parametrize("name", CASES)
def test_interpreted(name: str, rng: np.random.Generator) -> None:
    case = CASES[name]
    function, call = case.trace(), case.make(rng)
    verify(function)
    run(function, call.arguments, case.grid, order=int(rng.integers(1 << 30)))
    check(call)
