"""The Hopper convolution compiles for sm_90a in every config: no spill, no serialised product, one copy a box."""

from __future__ import annotations

import pytest

from tests.convolution_cases import CASES
from tests.host.hopper_support import tensor_map
from tilewright.library.convolution.hopper.choice import candidate_configs, ranked_configs
from tilewright.library.convolution.hopper.config import ConvolutionConfig
from tilewright.library.convolution.hopper.kernel import convolution
from tilewright.library.convolution.problem import ConvolutionProblem
from tilewright.targets.nvidia.assemble import AssemblyOptions
from tilewright.targets.nvidia.compile import assemble_kernel
from tilewright.targets.nvidia.options import NvidiaOptions
from tilewright.targets.nvidia.pipeline import lower
from tilewright.targets.nvidia.target import NvidiaTarget

TARGET = NvidiaTarget.named("sm_90a")


def compiled(config: ConvolutionConfig) -> None:
    """Compile a config; its boxes must be whole, and its guess at shared memory right."""
    result = tensor_map(config.out_block, config.OUTPUT)
    types = {
        "x": tensor_map(config.image_block, config.INPUT), "w": tensor_map(config.weight_block, config.INPUT),
        "residual": result, "out": result, **dict.fromkeys(("images", "height", "width", "columns"), "i32"),
    }  # fmt: skip
    lowered = lower(convolution.trace(types, {"CONFIG": config.check()}), TARGET, NvidiaOptions())
    assembly = assemble_kernel(lowered, TARGET, AssemblyOptions(strict=True))
    assert assembly.resources.spill_stores == 0
    assert abs(lowered.shared_bytes - config.shared_bytes) <= 1024
    boxes = {use.parameter: use.box for use in lowered.tensor_maps}
    assert boxes[0] == config.image_block and boxes[1] == config.weight_block and boxes[3] == config.out_block


@pytest.mark.slow(but_every=4)
@pytest.mark.parametrize("name", CASES)
def test_configs(name: str) -> None:
    compiled(CASES[name].config)


@pytest.mark.slow(but_every=2)
@pytest.mark.parametrize("images", [1, 8, 128])
@pytest.mark.parametrize("size", [56, 14])
def test_first_configs(images: int, size: int) -> None:
    """Those that a build without timing takes, for layers like ResNet's."""
    problem = ConvolutionProblem(images, size, size, 256, 256, kernel=(3, 3), pad=(1, 1))
    compiled(ranked_configs(problem, TARGET.machine())[0][0])


def test_candidates_leave_no_processor_memory_unused() -> None:
    """CTAs of clusters are alone on their processors."""
    problem = ConvolutionProblem(1, 7, 7, 512, 512, kernel=(3, 3), pad=(1, 1))
    shared = [
        config for config in candidate_configs(problem, NvidiaTarget.named("sm_90a").machine()) if config.SPLIT > 1
    ]
    assert shared and all(config.resident == 1 for config in shared)
