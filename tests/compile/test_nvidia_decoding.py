"""Attention of few queries compiles for sm_90a: without spills, and loading before it waits."""

from __future__ import annotations

import pytest

import tilewright.language as tl
from tests.host.hopper_support import traced_decoding, traced_pages
from tilewright.library.attention.hopper.decoding_config import DecodingConfig
from tilewright.library.attention.hopper.paged_config import PagedConfig
from tilewright.targets.nvidia.assemble import AssemblyOptions
from tilewright.targets.nvidia.compile import assemble_kernel
from tilewright.targets.nvidia.options import NvidiaOptions
from tilewright.targets.nvidia.pipeline import lower
from tilewright.targets.nvidia.target import NvidiaTarget

TARGET = NvidiaTarget.named("sm_90a")


@pytest.mark.slow(but_every=3)
@pytest.mark.parametrize(
    "config",
    [
        DecodingConfig(BIAS=True, AHEAD=True, FRESH=True), DecodingConfig(BN=256, STAGES=1), DecodingConfig(SPLITS=1),
        DecodingConfig(BN=256, STAGES=1, BIAS=True, AHEAD=True, FRESH=True),
        DecodingConfig(D=64, ROWS=64, SPLITS=2, BIAS=True, AHEAD=True, FRESH=True, TYPE=tl.float16),
        DecodingConfig(D=256, BN=64, SPLITS=4), DecodingConfig(D=256, BN=64, ROWS=32, STAGES=2),
    ],
    ids=str,
)  # fmt: skip
def test_attention_of_few_queries(config: DecodingConfig) -> None:
    """Products of as many columns as there are queries; keys are on their way before other kernels are waited for."""
    lowered = lower(traced_decoding(config), TARGET, NvidiaOptions())
    assembly = assemble_kernel(lowered, TARGET, AssemblyOptions(strict=True))
    assert lowered.warps == 5 and lowered.dependent_launch and not assembly.remarks
    assert lowered.shared_bytes <= config.shared_bytes
    assert f"m64n{config.ROWS}k16" in assembly.ptx and "m64n128" not in assembly.ptx
    ahead = "cp.async.bulk.tensor.4d" if config.AHEAD else "cp.async.bulk.prefetch.tensor.4d.L2"
    loading = assembly.ptx[assembly.ptx.index(ahead) :]
    assert loading.index(ahead) < loading.index("griddepcontrol.wait")
    assert ("ld.shared::cluster" in assembly.ptx) == (config.SPLITS > 1)


@pytest.mark.parametrize("config", [PagedConfig(EARLY=True), PagedConfig(D=64, ROWS=8, SPLITS=8, PAGE=64)], ids=str)
def test_few_tokens_over_pages(config: PagedConfig) -> None:
    """Pages are asked for before other kernels are waited for, where nothing in front writes the tables."""
    lowered = lower(traced_pages(config), TARGET, NvidiaOptions())
    assembly = assemble_kernel(lowered, TARGET, AssemblyOptions(strict=True))
    assert lowered.warps == 5 and lowered.dependent_launch and not assembly.remarks
    assert lowered.shared_bytes <= config.shared_bytes
    asked = assembly.ptx.find("cp.async.bulk.prefetch.tensor")
    assert (asked >= 0) == config.EARLY
    assert not config.EARLY or "griddepcontrol.wait" in assembly.ptx[asked:]
