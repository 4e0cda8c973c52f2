"""Without any one of its synchronising operations a Hopper kernel is wrong, and the interpreter says so."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np
import pytest

from tests.host.hopper_support import attention_reference, traced_attention, traced_matmul
from tests.host.test_kernels_hopper import ATTENTION, PING_PONG, PRODUCT, numbers, operands
from tilewright.errors import ExecutionError
from tilewright.ir.core import Function
from tilewright.ir.interpreter import run
from tilewright.ir.parser import parse_function
from tilewright.ir.printer import print_function
from tilewright.library.attention.hopper.config import attention_schedule
from tilewright.library.matmul.hopper.config import MatmulConfig
from tilewright.passes.pipeline import simplify

SYNCHRONISING = frozenset(
    "barrier_wait barrier_arrive barrier_expect fence_async group_sync named_sync named_arrive wgmma_wait tma_wait "
    "tma_commit cluster_arrive cluster_wait".split()
)
ORDERS = 4


def mutants(function: Function) -> Iterator[tuple[str, Function]]:
    """The kernel without one synchronising operation that has no result; and which."""
    lines = print_function(function).split("\n")
    for number, line in enumerate(lines):
        if line.split()[:1] and line.split()[0] in SYNCHRONISING:
            yield f"{number}: {line.strip()}", parse_function("\n".join(lines[:number] + lines[number + 1 :]))


def survivors(function: Function, is_right: Callable[[Function, int], bool]) -> list[str]:
    """The mutants that do not stop in any order, though they give the right result."""
    assert is_right(function, 0)
    found = []
    for name, mutant in mutants(function):
        for order in range(ORDERS):
            try:
                if not is_right(mutant, order):
                    break
            except ExecutionError:
                break
        else:
            found.append(name)
    return found


@pytest.mark.parametrize("config", [PRODUCT._replace(BN=80, STAGES=3, SHARE_B=2), PING_PONG._replace(BN=80)])
def test_every_synchronisation_of_the_product_is_needed(config: MatmulConfig, rng: np.random.Generator):
    M, N, K = 260, 168, 264
    a, b, expected = operands(config, rng, M, N, K, 1)

    def is_right(function: Function, order: int) -> bool:
        c = np.zeros((M, N), a.dtype)
        run(function, [a, b, c, c, M, N, K, 1], config.grid(M, N, 1, 2), order=order)
        return bool(np.abs(c.astype(np.float64) - expected).max() < 0.02 * np.abs(expected).max())

    function = simplify(traced_matmul(config))
    assert len(list(mutants(function))) >= 15
    assert survivors(function, is_right) == []


def test_stages_are_not_passed_over_without_turns(rng: np.random.Generator):
    """Warpgroups that do not wait for their turn mistake a phase, though what they wait for has the right parity."""
    config, (M, N, K) = PING_PONG._replace(BN=80), (260, 168, 264)
    lines = print_function(simplify(traced_matmul(config))).split("\n")
    function = parse_function("\n".join(line for line in lines if not line.strip().startswith("named_")))
    a, b, _ = operands(config, rng, M, N, K, 1)
    found = []
    for order in range(ORDERS):
        with pytest.raises(ExecutionError) as caught:
            c = np.zeros((M, N), a.dtype)
            run(function, [a, b, c, c, M, N, K, 1], config.grid(M, N, 1, 2), order=order)
        found.append(str(caught.value))
    assert any("wrong phase" in text for text in found), found


def test_every_synchronisation_of_attention_is_needed(rng: np.random.Generator):
    config = ATTENTION._replace(FLAT=False)
    q, k, v = (numbers(rng, (1, 2, 150, config.D), config.TYPE) for _ in range(3))
    expected, _ = attention_reference(q, k, v, np.array([[150, 150]]), False, 0)
    table = attention_schedule(config, 1, 2, 150, 150, 1, 1)
    unused = np.zeros(1, np.float32), np.zeros((1, 2), np.int32)

    def is_right(function: Function, order: int) -> bool:
        out = np.zeros_like(q)
        sizes = (table.shape[1], 150, 150, 2, 1, 0, np.log2(np.e) / 8)
        run(function, [q, k, v, out, *unused, table, *sizes], (1,), order=order)
        return bool(np.abs(out.astype(np.float64) - expected).max() < 0.05)

    function = simplify(traced_attention(config))
    assert len(list(mutants(function))) >= 25
    assert survivors(function, is_right) == []
