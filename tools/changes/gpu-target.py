"""An engine of a product, a softmax and a sort is built for a target without a driver, whose warps have 64 threads."""

import tilewright
import tilewright.language as tl
from tilewright.build.builder import build
from tilewright.dtypes import float32
from tilewright.errors import DeviceError
from tilewright.graph.build import GraphBuilder

b = GraphBuilder("trial")
product = b.op("matmul", [b.input("x", float32, (128, 64)), b.input("w", float32, (64, 32))])
b.output(b.op("argsort", [b.op("softmax", [product], axis=-1)], axis=-1, count=32), "y")
engine = build(b.finish(), "hip:gfx942")
assert engine.target == "hip:gfx942" and engine.is_for_gpu
keys = {choice.kernel for step in engine.plan.steps for choice in step.choices}
assert all(engine.kernel_facts(key)["launch"]["threads"] % 64 == 0 for key in keys)


@tilewright.jit
def twice(x, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(x + i, 2 * tl.load(x + i))


kernel = twice.compile({"x": "*f32"}, {"BLOCK": 256}, target="hip:gfx942", options={"num_warps": 2})
assert kernel.binary.program("twice").threads == 128 and kernel.metadata.target.warp_size == 64
assert '"amdgpu-flat-work-group-size"="128,128"' in kernel.dump("llvm")
try:
    kernel[(1,)](None)
    raise AssertionError("a kernel without a driver was launched")
except DeviceError as error:
    assert "no driver" in str(error)
