"""The interface of ``onnx.backend``: `prepare`, `run_model`, `run_node`, `supports_device`, `is_compatible`.

rep = tilewright.onnx.backend.prepare(onnx.load("model.onnx"), device="CPU")
outputs = rep.run([x])
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import onnx
from onnx.backend.base import Backend, BackendRep, Device, DeviceType, namedtupledict

from tilewright.errors import InputError, SettingsError, TilewrightError, a_kind, brief
from tilewright.importers.onnx import import_onnx
from tilewright.onnx.session import InferenceSession, has_gpu

_PROVIDERS = {DeviceType.CPU: "CPUExecutionProvider", DeviceType.CUDA: "CUDAExecutionProvider"}


class TilewrightBackendRep(BackendRep):
    """A compiled model."""

    def __init__(self, session: InferenceSession) -> None:
        self._session, self.engine = session, session.engine

    def run(self, inputs: Any, **kwargs: Any) -> tuple[np.ndarray, ...]:
        """The outputs for `inputs`: arrays in the order of the model's inputs, or by name. Raises `InputError`."""
        if isinstance(inputs, np.ndarray):
            inputs = [inputs]
        if not isinstance(inputs, Mapping):
            if not isinstance(inputs, Sequence):
                raise InputError(f"inputs are a list of arrays or a dictionary by name, got {a_kind(inputs)}")
            names = [spec.name for spec in self.engine.inputs]
            if len(inputs) > len(names):
                raise InputError(f"{len(inputs)} inputs given, the model takes {len(names)}: {', '.join(names)}")
            inputs = dict(zip(names, inputs, strict=False))
        return tuple(map(np.asarray, self._session.run(None, inputs)))


class TilewrightBackend(Backend):
    """tilewright as a backend of ONNX, for the CPU ("CPU") and NVIDIA GPUs ("CUDA")."""

    @classmethod
    def is_compatible(cls, model: onnx.ModelProto, device: str = "CPU", **kwargs: Any) -> bool:
        """Whether the model can be imported for that device; nothing is compiled."""
        if not cls.supports_device(device):
            return False
        try:
            import_onnx(model)
        except TilewrightError:
            return False
        return True

    @classmethod
    def supports_device(cls, device: str) -> bool:
        """Whether there is such a device here."""
        try:
            kind = Device(device).type
        except (AttributeError, ValueError):
            return False
        if kind == DeviceType.CUDA:
            return has_gpu()
        return kind in _PROVIDERS

    @classmethod
    def prepare(cls, model: onnx.ModelProto, device: str = "CPU", **kwargs: Any) -> TilewrightBackendRep:
        """Compile a model. Raises as `tilewright.compile`, and `SettingsError` for devices that are not there."""
        if not cls.supports_device(device):
            raise SettingsError(
                f"there is no device {brief(device)} here: expected CPU, or CUDA on a machine with a GPU"
            )
        return TilewrightBackendRep(InferenceSession(model, providers=[_PROVIDERS[Device(device).type]]))

    @classmethod
    def run_model(cls, model: onnx.ModelProto, inputs: Any, device: str = "CPU", **kwargs: Any) -> tuple[Any, ...]:
        """`prepare`, then run."""
        return cls.prepare(model, device, **kwargs).run(inputs)

    @classmethod
    def run_node(
        cls, node: onnx.NodeProto, inputs: Any, device: str = "CPU", outputs_info: Sequence[tuple[np.dtype, tuple[int,
        ...]]] | None = None, **kwargs: Any,
    ) -> tuple[Any, ...]:  # fmt: skip
        """One operation of the newest opset, or of `opset_version`, on arrays; a named tuple by its outputs' names."""
        names = [name for name in node.input if name]
        arrays = dict(zip(names, inputs, strict=True)) if not isinstance(inputs, Mapping) else dict(inputs)
        entries = []
        for name, array in arrays.items():
            array = arrays[name] = np.asarray(array)
            kind = onnx.helper.np_dtype_to_tensor_dtype(array.dtype)
            entries.append(onnx.helper.make_tensor_value_info(name, kind, array.shape))
        outputs = [onnx.ValueInfoProto(name=name) for name in node.output if name]
        graph = onnx.helper.make_graph([node], "node", entries, outputs)
        opset = kwargs.get("opset_version", onnx.defs.onnx_opset_version())
        model = onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid(node.domain, opset)])
        results = cls.run_model(model, arrays, device)
        made: tuple[Any, ...] = namedtupledict("Outputs", [output.name for output in outputs])(*results)
        return made


prepare = TilewrightBackend.prepare
run_model = TilewrightBackend.run_model
run_node = TilewrightBackend.run_node
supports_device = TilewrightBackend.supports_device
is_compatible = TilewrightBackend.is_compatible
