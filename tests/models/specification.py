"""What a test or a benchmark needs to know about one model."""

from __future__ import annotations

import copy
import inspect
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import nn


@dataclass
class ModelSpecification:
    """A model with example inputs.

    `inputs` are the example tensors by argument name, in call order.  `dynamic_shapes` maps an
    argument to ``{axis: (name, low, high)}``, the neutral form that `tilewright.importers` takes.
    `make_inputs(**sizes)` draws inputs for other sizes of the named dimensions.
    `mutated` names the inputs that the model updates in place.
    """

    name: str
    module: nn.Module
    inputs: dict[str, torch.Tensor]
    dynamic_shapes: dict[str, dict[int, tuple[str, int, int]]]
    make_inputs: Callable[..., dict[str, torch.Tensor]]
    output_names: tuple[str, ...]
    mutated: tuple[str, ...] = field(default=())

    @property
    def example(self) -> tuple[torch.Tensor, ...]:
        return tuple(self.inputs.values())

    def torch_dynamic_shapes(self) -> tuple[Any, ...]:
        """The same dynamic shapes in the form that `torch.export.export` takes."""
        dimensions: dict[str, Any] = {}

        def dimension(name: str, low: int, high: int) -> Any:
            return dimensions.setdefault(name, torch.export.Dim(name, min=low, max=high))

        flat = [
            {axis: dimension(*entry) for axis, entry in self.dynamic_shapes.get(name, {}).items()} or None
            for name in self.inputs
        ]
        parameters = list(inspect.signature(self.module.forward).parameters.values())
        if parameters[-1].kind is not inspect.Parameter.VAR_POSITIONAL:
            return tuple(flat)
        plain = len(parameters) - 1
        return (*flat[:plain], tuple(flat[plain:]))

    def run(self, inputs: dict[str, torch.Tensor], dtype: torch.dtype = torch.float32) -> list[torch.Tensor]:
        """PyTorch's own answer in `dtype`: the outputs, then the mutated inputs. `inputs` are left as they are."""
        module = self.module if dtype == torch.float32 else copy.deepcopy(self.module).to(dtype)
        copies = {
            name: tensor.to(dtype, copy=True) if tensor.is_floating_point() else tensor.clone()
            for name, tensor in inputs.items()
        }
        with torch.no_grad():
            result = module(*copies.values())
        results = list(result) if isinstance(result, (tuple, list)) else [result]
        return results + [copies[name] for name in self.mutated]


def export_onnx(specification: ModelSpecification, path: Path) -> Path:
    """Write the model as ONNX with PyTorch's dynamo exporter (needs onnxscript); returns `path`."""
    with torch.no_grad():
        torch.onnx.export(
            specification.module,
            specification.example,
            str(path),
            input_names=list(specification.inputs),
            output_names=list(specification.output_names),
            dynamic_shapes=specification.torch_dynamic_shapes(),
            dynamo=True,
            verbose=False,
        )
    return path
