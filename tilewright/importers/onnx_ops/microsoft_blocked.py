"""Channels in blocks, as ONNX Runtime's optimiser writes convolutions at its highest level.

Tensors stay [N, C, H, W] here, with their channels filled up to whole blocks, and weights go back to their order.  A
file does not say how many channels a block has: it is for one kind of processor, and read as ONNX Runtime on the
processor of the build would read it.
"""

from __future__ import annotations

import numpy as np

from tilewright.graph.core import Value
from tilewright.host import llvm_host
from tilewright.importers.onnx_call import OnnxCall, known_tensor
from tilewright.importers.onnx_ops import resize, windows
from tilewright.importers.onnx_ops.microsoft import activated
from tilewright.importers.onnx_ops.network import convolve
from tilewright.importers.report import Unsupported
from tilewright.importers.rules import RuleTable

TABLE = RuleTable("ONNX Runtime: channels in blocks", "com.microsoft.nchwc::")
rule = TABLE.rule

for _name in ("MaxPool", "AveragePool", "GlobalAveragePool", "GlobalMaxPool"):
    TABLE.add(_name, windows.TABLE.rules[_name])

_IN_BLOCKS = "the weights of convolutions are read in blocks of {} channels, as ONNX Runtime on this processor has them"


def block_of_host() -> int:
    """The channels of a block on the processor of the build: as many as its vectors have floats, or two of them."""
    host = llvm_host()
    return 16 if host.flags.get("avx512f") or host.triple.startswith(("aarch64", "arm64")) else 8


def _block(call: OnnxCall, channels: object) -> int:
    """The channels of a block; raises `Unsupported` for a number of channels that is no multiple."""
    block = block_of_host()
    if not isinstance(channels, int) or channels % block:
        raise Unsupported(
            f"{channels} channels, which do not make up blocks of {block}, those of ONNX Runtime on this processor",
            "save the model with the optimization level ORT_ENABLE_EXTENDED, or give it before it was optimized",
        )
    remark = _IN_BLOCKS.format(block)
    if remark not in call.builder.graph.remarks:
        call.builder.graph.remarks.append(remark)
    return block


@rule("ReorderInput")
def reorder_input(call: OnnxCall) -> Value:
    """[N, C, H, W], or [N, H, W, C], with the channels filled up."""
    x = call[0]
    call.require_rank(x, 4, 4)
    x = call.permute(x, (0, 3, 1, 2)) if call.attribute("channels_last", 0) else x
    channels = x.shape[1]
    if not isinstance(channels, int):
        raise Unsupported(f"{channels} channels where blocks are filled up", "fix that dimension")
    missing = -channels % block_of_host()
    pads = [(0, 0), (0, missing), (0, 0), (0, 0)]
    return call.op("pad", x, pads=pads, value=0.0) if missing else x


@rule("ReorderOutput")
def reorder_output(call: OnnxCall) -> Value:
    """The first of the channels, as they were."""
    x = call.slice(call[0], 1, 0, call.positive("channels"))
    return call.permute(x, (0, 2, 3, 1)) if call.attribute("channels_last", 0) else x


@rule("Conv")
def convolution(call: OnnxCall) -> Value:
    """A convolution, also of an image whose channels are in no blocks; a sum with a fourth input; an activation."""
    stored = call.tensor(1).known
    if stored is None or stored.ndim != 4:
        raise Unsupported("weights in blocks that are computed", "give the model before it was optimized")
    outputs, inputs, *kernel = stored.shape
    block = _block(call, outputs)
    if inputs % block:  # one for each channel, or of a whole image
        parts = stored.reshape(outputs // block, inputs, *kernel, block)
        weight = parts.transpose(0, 4, 1, 2, 3)
    else:
        parts = stored.reshape(outputs // block, inputs // block, *kernel, block, block)
        weight = parts.transpose(0, 5, 1, 4, 2, 3)
    weight = np.ascontiguousarray(weight.reshape(stored.shape))
    found = convolve(call, call[0], call.materialize(known_tensor(call.tensor(1).name, weight)), call.optional(2))
    return activated(call, call.op("add", found, call[3]) if call.has(3) else found)


@rule("Upsample")
def upsample(call: OnnxCall) -> Value:
    """Whole factors, a list of them as an attribute."""
    scales = known_tensor("scales", np.array(call.attribute("scales"), np.float32))
    attributes = {
        "mode": call.attribute("mode", "nearest"),
        "coordinate_transformation_mode": call.attribute("coordinate_transformation_mode", "asymmetric"),
        "nearest_mode": "floor",
    }
    inner = OnnxCall(call.builder, call.source, [call.tensor(0), None, scales], attributes, 13, 1)
    return resize.resize(inner)
