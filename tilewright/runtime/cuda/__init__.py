"""NVIDIA GPUs through the driver alone: no toolkit, no PyTorch.

`driver` finds the driver and raises its errors, `device` describes GPUs and their contexts, `program` loads
machine code, `tensor_map` describes tensors to the tensor memory accelerator, `streams` finds the caller's
stream, `launch` starts kernels.  Nothing of the driver is touched before something here is called.
"""
