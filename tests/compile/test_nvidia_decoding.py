"""Attention of few queries compiles for sm_90a: without spills, and loading before it waits."""

from __future__ import annotations

import pytest

import tilewright.language as tl
from tests.host.hopper_support import traced_decoding
from tilewright.library.attention.hopper.decoding_config import DecodingForm
from tilewright.targets.nvidia.assemble import AssemblyOptions
from tilewright.targets.nvidia.compile import assemble_kernel
from tilewright.targets.nvidia.options import NvidiaOptions
from tilewright.targets.nvidia.pipeline import lower
from tilewright.targets.nvidia.target import NvidiaTarget

TARGET = NvidiaTarget.named("sm_90a")


@pytest.mark.slow(but_every=3)
@pytest.mark.parametrize(
    "form",
    [
        DecodingForm(BIAS=True, AHEAD=True, FRESH=True), DecodingForm(BN=256, STAGES=1), DecodingForm(SPLITS=1),
        DecodingForm(BN=256, STAGES=1, BIAS=True, AHEAD=True, FRESH=True),
        DecodingForm(D=64, ROWS=64, SPLITS=2, BIAS=True, AHEAD=True, FRESH=True, TYPE=tl.float16),
        DecodingForm(D=256, BN=64, SPLITS=4), DecodingForm(D=256, BN=64, ROWS=32, STAGES=2),
    ],
    ids=str,
)  # fmt: skip
def test_attention_of_few_queries(form: DecodingForm) -> None:
    """Products of as many columns as there are queries; keys are on their way before other kernels are waited for."""
    lowered = lower(traced_decoding(form), TARGET, NvidiaOptions())
    assembly = assemble_kernel(lowered, TARGET, AssemblyOptions(strict=True))
    assert lowered.warps == 5 and lowered.dependent_launch and not assembly.remarks
    assert lowered.shared_bytes <= form.shared_bytes
    assert f"m64n{form.ROWS}k16" in assembly.ptx and "m64n128" not in assembly.ptx
    ahead = "cp.async.bulk.tensor.4d" if form.AHEAD else "cp.async.bulk.prefetch.tensor.4d.L2"
    loading = assembly.ptx[assembly.ptx.index(ahead) :]
    assert loading.index(ahead) < loading.index("griddepcontrol.wait")
    assert ("ld.shared::cluster" in assembly.ptx) == (form.SPLITS > 1)
