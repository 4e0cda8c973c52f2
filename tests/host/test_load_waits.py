"""Loads from shared memory end before others write there: the front end says where, and other kernels are refused."""

from __future__ import annotations

import random

import pytest

from tests.host import load_wait_kernels as kernels
from tests.host.test_asynchrony_mutants import ORDERS
from tests.host.test_passes_hazards import HOPPER
from tilewright.errors import CompilationError, ExecutionError
from tilewright.ir.core import Function
from tilewright.ir.parser import parse_function
from tilewright.ir.printer import print_function
from tilewright.passes.hazards import check_hazards
from tilewright.passes.load_waits import place_load_waits, unended_loads
from tilewright.passes.pipeline import simplify
from tilewright.targets.nvidia.options import NvidiaOptions
from tilewright.targets.nvidia.pipeline import lower
from tilewright.targets.registry import get_target


@pytest.mark.parametrize("seed", range(40))
def test_drawn_kernels(seed: int) -> None:
    """What is traced is right and is accepted; with a mistake in its waits it is refused, before it runs and in any
    order in which it runs."""
    draw = random.Random(seed)
    form = kernels.drawn(draw)
    function = kernels.traced(form)
    for variant, order in ((function, seed), (simplify(function), seed + 1)):
        check_hazards(variant, HOPPER)
        assert (kernels.launch(variant, form, order) == kernels.expected(form)).all()
    for kind, mistaken in kernels.broken(function, form, draw):
        with pytest.raises(CompilationError, match="load overtaken"):
            check_hazards(simplify(mistaken), HOPPER)
        for order in range(ORDERS):
            with pytest.raises(ExecutionError, match="load overtaken") as caught:
                kernels.launch(mistaken, form, order)
            assert "shared_wait after the load" in str(caught.value), (kind, str(caught.value))


def text(form: kernels.Form) -> str:
    return print_function(kernels.traced(form))


def without_waits(function: Function) -> None:
    for region in kernels.regions(function):
        region.operations = [operation for operation in region.operations if operation.opcode != "shared_wait"]


def test_a_finding_names_the_load_the_arrival_and_the_copy() -> None:
    form = kernels.Form("ring")
    function = kernels.traced(form)
    without_waits(function)
    with pytest.raises(ExecutionError) as caught:
        kernels.launch(function, form, 3)
    found = str(caught.value)
    assert "load overtaken: tiles[0] is filled again while what it held may not have been read" in found
    assert "| tx.tma_load(a, (number * FORM.rows, 0), tiles[position.stage], full)\n" in found
    load = f"shared_load of role 'consume' reads at {kernels.ring.file}:"
    assert f"tma_load writes tiles[0], while this is not over: {load}" in found
    assert f"barrier_arrive of role 'consume' at {kernels.ring.file}:" in found
    assert "does not wait for the load\n" in found


def test_the_compiler_names_the_arrival_and_the_load() -> None:
    function = kernels.traced(kernels.Form("ring"))
    without_waits(function)
    with pytest.raises(CompilationError) as caught:
        check_hazards(function, HOPPER)
    found = str(caught.value)
    assert "load overtaken: barrier_arrive does not wait for the load at " in found
    assert f"{kernels.ring.file}:" in found and "help: shared_wait before it" in found


def test_waits_stand_where_loads_end() -> None:
    """In front of the arrival; for loads in a loop at the end of its body; for other CTAs' before the cluster's."""
    simple = text(kernels.Form("ring"))
    assert simple.count("shared_wait") == 1 and "shared_wait\n      barrier_arrive" in simple
    looped = text(kernels.Form("ring", LOADS=2, NEST="for"))
    assert looped.count("shared_wait") == 1 and "shared_wait\n        yield" in looped
    assert "shared_wait {remote = true}\n    cluster_arrive" in text(kernels.Form("pair"))
    assert "shared_wait\n    group_sync" in text(kernels.Form("group"))
    # Ordinary accesses come in the order of hardware barriers.
    ordered = text(kernels.Form("ring", RELEASE="named", FILL="store"))
    assert ordered.count("shared_wait") == 1 and "shared_wait\n      yield" in ordered


def test_waits_are_placed_once() -> None:
    for form in (kernels.Form("ring", NEST="if", CONSUMERS=2), kernels.Form("pair", LOADS=3, NEST="for")):
        function = kernels.traced(form)
        before = print_function(function)
        assert not list(unended_loads(function))
        place_load_waits(function)
        assert print_function(function) == before
        again = parse_function(before)
        without_waits(again)
        place_load_waits(again)
        assert print_function(again) == before


@pytest.mark.parametrize("seed", range(100, 108))
def test_the_lowering_emits_these_waits_and_no_other(seed: int) -> None:
    function = simplify(kernels.traced(kernels.drawn(random.Random(seed))))
    lowered = lower(function, get_target("cuda:sm_90a"), NvidiaOptions(num_warps=4))
    assert lowered.text.count("setp.eq.b32 rare") == print_function(function).count("shared_wait") > 0
