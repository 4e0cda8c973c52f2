"""Convolutions of a plan by cuDNN, through its Python front end (the package nvidia-cudnn-frontend)."""

from __future__ import annotations

import importlib
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from tilewright.runtime.cuda.device import Device
from tilewright.runtime.cuda.extern import Operand, unusable
from tilewright.runtime.cuda.staging import Workspaces

_TYPES = {"f16": "HALF", "bf16": "BFLOAT16"}


@dataclass(frozen=True)
class _GraphPlan:
    """A graph of cuDNN for known sizes, its tensors in the order of the operands, and bytes of its workspace."""

    graph: Any
    tensors: tuple[Any, ...]
    workspace: int


class ConvolutionStep:
    """A convolution of images [n, c, h, w], with a bias of the channels and relu after it where `options` say so."""

    def __init__(self, dtypes: Sequence[str], options: Mapping[str, Any], device: Device) -> None:
        """`dtypes` are IR texts of images, weights, the bias if there is one, and the result; sums are in float32.
        Raises `MissingDependencyError`."""
        try:
            self._library = importlib.import_module("cudnn")
            self._handle = _HANDLES.get(device.ordinal) or self._library.create_handle()
        except Exception as error:  # whatever keeps the library from being used
            needs = "the package nvidia-cudnn-frontend and a cuDNN that it finds"
            raise unusable("cuDNN", needs, "nvidia-cudnn-frontend nvidia-cudnn-cu13", error) from error
        _HANDLES[device.ordinal] = self._handle
        self._types = [getattr(self._library.data_type, _TYPES[text]) for text in dtypes]
        self._options = options
        self._workspaces = Workspaces(device)
        self._plans: dict[Any, _GraphPlan] = {}

    def __call__(self, x: int, y: int, z: int, stream: int, *operands: Operand) -> None:
        shapes = tuple(operand[1:] for operand in operands)
        with _TURN:
            plan = self._plans.get(shapes)
            if plan is None:
                plan = self._plans[shapes] = self._plan(shapes)
            self._library.set_stream(handle=self._handle, stream=stream)
            places = {tensor: operand[0] for tensor, operand in zip(plan.tensors, operands, strict=True)}
            plan.graph.execute(places, self._workspaces.address(stream, plan.workspace), handle=self._handle)

    def _plan(self, shapes: Any) -> _GraphPlan:
        library, options = self._library, self._options
        real = library.data_type.FLOAT
        graph = library.pygraph(
            io_data_type=self._types[0], intermediate_data_type=real, compute_data_type=real, handle=self._handle
        )
        given = [
            graph.tensor(name=f"operand_{number}", dim=list(shape), stride=list(strides), data_type=dtype)
            for number, ((shape, strides), dtype) in enumerate(zip(shapes[:-1], self._types[:-1], strict=True))
        ]
        padding = list(options["padding"])
        result = graph.conv_fprop(
            image=given[0], weight=given[1], pre_padding=padding, post_padding=padding,
            stride=list(options["strides"]), dilation=list(options["dilation"]),
        )  # fmt: skip
        if options["bias"]:
            result = graph.bias(input=result, bias=given[2])
        if options["relu"]:
            result = graph.relu(input=result)
        result.set_output(True).set_data_type(self._types[-1])
        result.set_dim(list(shapes[-1][0])).set_stride(list(shapes[-1][1]))
        graph.build([library.heur_mode.A, library.heur_mode.FALLBACK])
        return _GraphPlan(graph, (*given, result), max(int(graph.get_workspace_size()), 1))


_HANDLES: dict[int, Any] = {}  # by GPU
_TURN = threading.Lock()  # of threads at a handle, which has one stream
