"""Names that Triton removed and kernels still use, with their replacements."""

from __future__ import annotations

REMOVED = {
    "async_task": "leave the 'with' out; the hint for a loop is tl.range(…, warp_specialize=True)",
    "nv_tma_desc_type": "pass a TensorDescriptor as the argument, or make one with tl.make_tensor_descriptor",
}
