"""float32 convolutions in parts compile for Hopper: six products a stage, nothing spilled, images in wide stores."""

from __future__ import annotations

import re

import pytest

import tilewright.language as tl
from tests.compile.test_nvidia_explicit_library import machine_loops
from tests.host.hopper_support import traced_convolution
from tilewright.ir.core import Parameter
from tilewright.library.convolution.hopper.bf16x6 import Window
from tilewright.library.convolution.hopper.bf16x6_kernel import split_image
from tilewright.library.hopper import SHARED_BYTES
from tilewright.library.matmul.hopper.config import MatmulConfig
from tilewright.targets.nvidia.assemble import AssemblyOptions
from tilewright.targets.nvidia.compile import assemble_kernel
from tilewright.targets.nvidia.options import NvidiaOptions
from tilewright.targets.nvidia.pipeline import lower
from tilewright.targets.nvidia.target import NvidiaTarget

TARGET = NvidiaTarget.named("sm_90a")


@pytest.mark.parametrize(
    ("rows", "columns", "channels", "flat"),
    [(128, 128, 64, False), (192, 64, 64, True), (128, 64, 8, False), (64, 128, 40, True)],
)
def test_tiles(rows: int, columns: int, channels: int, flat: bool) -> None:
    window = Window((2, 3, 3), (1, 2, 1), (1, 1, 1 + flat), channels, flat)
    config = MatmulConfig(
        BM=rows, BN=columns, CONSUMERS=rows // 64, PARTS=3, OUTPUT=tl.float32, BATCHED=True, ONE_A=flat, ONE_B=True,
        WINDOW=window, DEPENDENT=True,
    )  # fmt: skip
    config = config._replace(STAGES=SHARED_BYTES // (config.stage_bytes + 16))
    lowered = lower(traced_convolution(config), TARGET, NvidiaOptions())
    assembly = assemble_kernel(lowered, TARGET, AssemblyOptions(strict=True))
    assert assembly.resources.spill_stores == 0
    assert any(sum("HGMMA" in opcode for opcode in loop) == 24 for loop in machine_loops(assembly, "HGMMA"))


def test_images_are_stored_in_wide_rows() -> None:
    names = ("channels", "depth", "height", "width", "extent_z", "extent_y", "extent_x", "image_step", "phase_step",
             "part_step")  # fmt: skip
    constants = {"CHANNELS": 64, "STRIDE": (1, 1, 1), "PAD": (0, 1, 1), "BLOCK_C": 64, "BLOCK_P": 64}
    parameters = {name: Parameter(name, 16, True) for name in ("x", "planes")}
    types = {"x": "*f32", "planes": "*bf16", **dict.fromkeys(names, "i32")}
    ptx = split_image.compile(types, constants, parameters, target="cuda:sm_90a").asm["ptx"]
    assert set(re.findall(r"st\.global[\w.]*", ptx)) == {"st.global.v4.b32"}
