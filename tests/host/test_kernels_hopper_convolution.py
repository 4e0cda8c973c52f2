"""The Hopper convolution in the interpreter: right at odd sizes in every config, and clean in any order."""

from __future__ import annotations

import numpy as np
import pytest

from tests.convolution_cases import CASES
from tests.hopper_convolutions import prepare_convolution
from tests.host.hopper_support import ORDERS
from tilewright.errors import LaunchError
from tilewright.library.convolution.hopper.choice import candidate_configs, ranked_configs, row_bytes, unit_of
from tilewright.library.convolution.hopper.config import ConvolutionConfig
from tilewright.library.convolution.problem import ConvolutionProblem
from tilewright.settings import settings
from tilewright.targets.nvidia.target import NvidiaTarget

H200 = NvidiaTarget.named("sm_90a").machine()


def convolve(rng: np.random.Generator, name: str, orders: int) -> None:
    case = CASES[name]
    x, w, residual = case.draw(rng)
    expected = case.expected(x, w)
    if case.config.RESIDUAL_TILES:
        expected = np.maximum(expected + residual, 0)
    for order in range(orders):
        out = np.zeros_like(residual)
        with settings.scope(interpret=True, interpret_order=order):
            prepare_convolution(
                case.config, x, w, out, residual if case.config.RESIDUAL_TILES else None, processors=3
            )()
        assert np.max(np.abs(out - expected)) <= 2e-3 * np.max(np.abs(expected))


@pytest.mark.slow(but_every=3)
@pytest.mark.parametrize("name", CASES)
def test_configs(rng: np.random.Generator, name: str) -> None:
    convolve(rng, name, 2)


@pytest.mark.slow(but_every=2)
@pytest.mark.parametrize("name", ["one consumer", "shared"])
def test_configs_are_clean_in_any_order(rng: np.random.Generator, name: str) -> None:
    convolve(rng, name, ORDERS)


def test_units_cover_a_result_with_little_left_over() -> None:
    assert unit_of(128, 7, 7)[1:] == (1, 1)
    assert np.prod(unit_of(1, 56, 56)) == 64
    assert unit_of(1, 7, 7) in ((1, 8, 7), (1, 7, 8))


def test_configs_for_problems() -> None:
    """Few pixels share their depth, many have large tiles."""
    few = ConvolutionProblem(1, 7, 7, 512, 512, kernel=(3, 3), pad=(1, 1))
    many = ConvolutionProblem(128, 28, 28, 256, 256, kernel=(3, 3), pad=(1, 1))
    assert ranked_configs(few, H200)[0][0].SPLIT >= 4
    best = ranked_configs(many, H200)[0][0]
    assert best.SPLIT == 1 and best.CONSUMERS * best.BN >= 256


def test_impossible_configs_say_why() -> None:
    with pytest.raises(LaunchError, match="a multiple of 8 pixels"):
        ConvolutionConfig((1, 7, 7), 64, 64).check()
    with pytest.raises(LaunchError, match="multiples of 16 bytes"):
        ConvolutionConfig((1, 8, 8), 64, 3).check()


@pytest.mark.parametrize("channels", [8, 24, 40, 48, 72, 96, 144, 200])
def test_rows_of_weights_are_those_of_stages(channels: int) -> None:
    problem = ConvolutionProblem(8, 30, 30, 32, channels, kernel=(3, 3))
    assert {config.BK * 2 for config in candidate_configs(problem, H200)} == {row_bytes(2 * channels)}


def test_cut_rows_take_longer_than_whole_ones() -> None:
    cut, whole = (ConvolutionProblem(1792, 62, 62, 16, channels, kernel=(3, 3)) for channels in (24, 32))
    assert ranked_configs(cut, H200)[0][1] > 1.2 * ranked_configs(whole, H200)[0][1]
