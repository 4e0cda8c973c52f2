"""Models that take derivatives themselves, such as forces: what `torch.export` takes of them."""

from __future__ import annotations

import traceback

import torch
from torch.export import ExportedProgram

_EAGER_TRANSFORMS = "torch/_functorch/eager_transforms.py"
OF_TRANSFORMS = (
    "the model takes derivatives by torch.func, which torch.export does not take.\n"
    "Use torch.autograd.grad in the model, or torch.compile(module, backend='tilewright'), which takes both."
)


class _TransformsLeft(Exception):
    """An exported program has torch.func's transforms in it, which are not decomposed."""


def needs_gradients(error: BaseException | None) -> bool:
    """Whether a model was not exported because it asks for derivatives, and gradients were disabled."""
    return "does not require grad" in str(error)


def takes_transforms(error: BaseException) -> bool:
    """Whether an export failed because of torch.func's transforms for derivatives."""
    names = (frame.f_code.co_filename.replace("\\", "/") for frame, _ in traceback.walk_tb(error.__traceback__))
    return isinstance(error, _TransformsLeft) or any(name.endswith(_EAGER_TRANSFORMS) for name in names)


def check_no_transforms(program: ExportedProgram) -> None:
    """Raise an error of which `takes_transforms` is true for a program that has them."""
    tensors = (item for item in program.constants.values() if isinstance(item, torch.Tensor))
    if any(map(torch._C._functorch.is_functorch_wrapped_tensor, tensors)):
        raise _TransformsLeft
