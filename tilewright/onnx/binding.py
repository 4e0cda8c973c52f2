"""Values and bindings of `InferenceSession`, as in ONNX Runtime's Python interface."""

from __future__ import annotations

import ctypes
import math
import operator
import sys
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, NoReturn

import numpy as np

from tilewright.dtypes import ANY_BY_NAME, DType, element_of
from tilewright.errors import InputError, a_kind, brief, out_of_memory
from tilewright.runtime import tensors
from tilewright.runtime.cuda.memory import DeviceArray

if TYPE_CHECKING:
    from tilewright.onnx.session import InferenceSession


_TEXTS = {"float32": "float", "float64": "double", "float8e8m0fnu": "float8e8m0"}


def element_text(dtype: np.dtype | type) -> str:
    """A NumPy dtype as ONNX writes it in types: "float" for float32."""
    name = np.dtype(dtype).name.replace("_", "")
    if name.startswith("float") and int(name[5]) < 8:  # of whose widths each has one form
        name = name.removesuffix("fn")
    return _TEXTS.get(name, name)


def type_text(dtype: DType) -> str:
    """An element type as ONNX writes the type of such values: "tensor(float)", "seq(tensor(string))"."""
    if dtype.kind in ("sequence", "optional"):
        inner = type_text(element_of(dtype))
        return f"seq({inner})" if dtype.kind == "sequence" else f"optional({inner})"
    if dtype.kind == "map":
        key, item = (ANY_BY_NAME[name] for name in dtype.name.removeprefix("map(").removesuffix(")").split(","))
        return f"map({type_text(key).removeprefix('tensor(').removesuffix(')')},{type_text(item)})"
    return f"tensor({'string' if dtype.kind == 'text' else element_text(dtype.numpy)})"


class SparseTensor:
    """Nothing here makes one: its methods raise `InputError`."""

    @staticmethod
    def sparse_coo_from_numpy(*arguments: Any) -> NoReturn:
        """Raises `InputError`."""
        raise InputError("sparse tensors are not taken as inputs: give a dense array")

    @staticmethod
    def sparse_csr_from_numpy(*arguments: Any) -> NoReturn:
        """Raises `InputError`."""
        SparseTensor.sparse_coo_from_numpy()


class OrtValue:
    """A tensor, in the memory of the host or of a GPU; or a sequence (a list) or an optional (None, maybe)."""

    def __init__(self, value: Any) -> None:
        """`value`: a NumPy array, a PyTorch tensor, or anything else with DLPack."""
        self.value = value

    @staticmethod
    def ortvalue_from_numpy(numpy_obj: np.ndarray, device_type: str = "cpu", device_id: int = 0) -> OrtValue:
        """The array itself for "cpu", a copy in the memory of that GPU for "cuda". Raises `InputError`."""
        if device_type == "cpu":
            return OrtValue(numpy_obj)
        if device_type != "cuda":
            raise InputError(f"the device is {brief(device_type)}: expected 'cpu' or 'cuda'")
        return OrtValue(DeviceArray.from_numpy(numpy_obj, device_id))

    @staticmethod
    def ortvalue_from_numpy_with_onnx_type(data: np.ndarray, onnx_element_type: int) -> OrtValue:
        """The array's bits as elements of another type, which ONNX has that number for. Raises `InputError`."""
        from onnx import helper

        try:
            dtype = np.dtype(helper.tensor_dtype_to_np_dtype(onnx_element_type))
            return OrtValue(data if data.dtype == dtype else data.view(dtype))
        except (KeyError, TypeError, ValueError) as error:
            raise InputError(
                f"an array of {data.dtype} cannot hold the element type {brief(onnx_element_type)}: {error}"
            ) from error

    @staticmethod
    def ortvalue_from_shape_and_type(
        shape: Sequence[int], element_type: Any, device_type: str = "cpu", device_id: int = 0
    ) -> OrtValue:
        """Zeros of that shape and NumPy type."""
        try:
            array = np.zeros(shape, element_type)
        except MemoryError as error:
            raise out_of_memory("an OrtValue", error) from error
        except (TypeError, ValueError) as error:
            raise InputError(
                f"no array has the shape {brief(shape)} and the type {brief(element_type)}: {error}"
            ) from error
        return OrtValue.ortvalue_from_numpy(array, device_type, device_id)

    def numpy(self) -> np.ndarray:
        """The tensor in the host's memory."""
        if isinstance(self.value, np.ndarray):
            return self.value
        if tensors.is_torch(self.value):
            return tensors.torch_array(self.value, "value")
        for method in ("numpy", "to_numpy"):
            if hasattr(self.value, method):
                value = self.value.cpu() if hasattr(self.value, "cpu") else self.value
                array: np.ndarray = getattr(value, method)()
                return array
        return np.asarray(self.value)

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray:
        """`numpy`, for NumPy's functions."""
        return np.array(self.numpy(), dtype=dtype, copy=copy)

    @staticmethod
    def from_dlpack(data: Any, /) -> OrtValue:
        """A tensor of another library, whose memory it shares. Raises `InputError` for what has no DLPack."""
        if not hasattr(data, "__dlpack__"):
            raise InputError(f"{a_kind(data)} has no DLPack: give an array or a tensor")
        return OrtValue(data)

    def __dlpack__(self, **options: Any) -> Any:
        """The tensor for another library, which shares its memory."""
        return self._lent().__dlpack__(**options)

    def __dlpack_device__(self) -> tuple[int, int]:
        """Where the tensor is, in DLPack's numbers."""
        device: tuple[int, int] = self._lent().__dlpack_device__()
        return device

    def _lent(self) -> Any:
        if not hasattr(self.value, "__dlpack__"):
            raise InputError(f"{a_kind(self.value)} cannot be lent to another library: DLPack has tensors of numbers")
        return self.value

    @staticmethod
    def ort_value_from_sparse_tensor(sparse_tensor: Any) -> NoReturn:
        """Raises `InputError`."""
        SparseTensor.sparse_coo_from_numpy()

    def as_sparse_tensor(self) -> NoReturn:
        """Raises `InputError`: there are none."""
        raise InputError("this value is not sparse: no engine gives sparse tensors")

    def shape(self) -> list[int]:
        """The sizes."""
        return list(self.value.shape)

    def data_type(self) -> str:
        """The type as ONNX writes it: "tensor(float)"."""
        if isinstance(self.value, list):
            return f"seq({OrtValue(self.value[0]).data_type()})" if self.value else "seq()"
        array = self.numpy()
        return f"tensor({'string' if array.dtype.kind in 'OUT' else element_text(array.dtype)})"

    def device_name(self) -> str:
        """Where the tensor lies: "cpu" or "cuda"."""
        if isinstance(self.value, np.ndarray):
            return "cpu"
        place = getattr(self.value, "device", "cuda")  # our own arrays are those of GPUs
        return "cpu" if str(place).partition(":")[0] == "cpu" else "cuda"

    def data_ptr(self) -> int:
        """The address of the first element, in the memory of the host or of a GPU."""
        if isinstance(self.value, np.ndarray):
            return self.value.ctypes.data
        if tensors.is_torch(self.value):
            return int(self.value.data_ptr())
        if hasattr(self.value, "__cuda_array_interface__"):
            return int(self.value.__cuda_array_interface__["data"][0])
        raise InputError(f"{a_kind(self.value)} has no address: pass an array or a tensor")

    def element_type(self) -> int:
        """The number that ONNX has for the element type."""
        from onnx import helper

        array = self.numpy()
        return int(helper.np_dtype_to_tensor_dtype(np.dtype(object) if array.dtype.kind in "OUT" else array.dtype))

    def tensor_size_in_bytes(self) -> int:
        """The bytes of all elements."""
        return self.numpy().nbytes

    def is_sparse_tensor(self) -> bool:
        """False: there are none."""
        return False

    def is_tensor_sequence(self) -> bool:
        """Whether this is a sequence."""
        return isinstance(self.value, list)

    def has_value(self) -> bool:
        """Whether this is no optional that holds nothing."""
        return self.value is not None

    def is_tensor(self) -> bool:
        """Whether this is no sequence and no optional that holds nothing."""
        return self.value is not None and not isinstance(self.value, list)

    def update_inplace(self, np_arr: np.ndarray) -> None:
        """Write an array of the same shape and type over the host's array. Raises `InputError`."""
        if not isinstance(self.value, np.ndarray):
            raise InputError("update_inplace() writes to arrays of the host: make a new OrtValue of the GPU's")
        wanted = f"{self.value.dtype}{list(self.value.shape)}"
        if not isinstance(np_arr, np.ndarray):
            raise InputError(f"update_inplace() takes an array {wanted}, got {a_kind(np_arr)}")
        if np_arr.shape != self.value.shape or np_arr.dtype != self.value.dtype:
            raise InputError(f"update_inplace() takes {wanted}, got {np_arr.dtype}{list(np_arr.shape)}")
        if not self.value.flags.writeable:
            raise InputError("update_inplace() writes to the array of this value, which is read-only")
        self.value[...] = np_arr


def copy_tensors(src: Sequence[OrtValue], dst: Sequence[OrtValue], stream: Any = None) -> None:
    """Write tensors over others of the same shapes and types, in the host's memory; nothing needs a `stream` for that.

    Raises `InputError`.
    """
    if len(src) != len(dst):
        raise InputError(f"{len(src)} tensors are to be written over {len(dst)}")
    for source, target in zip(src, dst, strict=True):
        target.update_inplace(source.numpy())


def as_numpy(value: Any) -> Any:
    """A result in the host's memory: an array, a list of arrays, or None."""
    if value is None or isinstance(value, (list, np.ndarray)):
        return value
    return OrtValue(value).numpy()


class IOBinding:
    """The memory of a session's inputs and outputs: `InferenceSession.run_with_iobinding`."""

    def __init__(self, session: InferenceSession) -> None:
        self._session = session
        self._inputs: dict[str, Any] = {}
        self._outputs: dict[str, Any] = {}  # None where the run allocates
        self.results: dict[str, Any] = {}

    @property
    def inputs(self) -> Mapping[str, Any]:
        """The bound inputs by name."""
        return self._inputs

    def outputs(self) -> tuple[list[str], dict[str, Any]]:
        """The names of the bound outputs (all where none is bound), and the memory given for some."""
        names = list(self._outputs) or [entry.name for entry in self._session.engine.outputs]
        return names, {name: memory for name, memory in self._outputs.items() if memory is not None}

    def bind_cpu_input(self, name: str, arr_on_cpu: np.ndarray) -> None:
        """Bind an array of the host; it is not copied."""
        self._inputs[self._known(name, "input")] = arr_on_cpu

    def bind_input(
        self, name: str, device_type: str, device_id: int, element_type: Any, shape: Sequence[int], buffer_ptr: int
    ) -> None:
        """Bind memory of the host by its address, which must stay alive. Raises `InputError` for memory of a GPU."""
        self._inputs[self._known(name, "input")] = _at(device_type, element_type, shape, buffer_ptr)

    def bind_ortvalue_input(self, name: str, ortvalue: OrtValue) -> None:
        """Bind a value."""
        self._inputs[self._known(name, "input")] = _ort_value(ortvalue)

    def bind_output(
        self,
        name: str,
        device_type: str = "cpu",
        device_id: int = 0,
        element_type: Any = None,
        shape: Sequence[int] | None = None,
        buffer_ptr: int | None = None,
    ) -> None:
        """Ask for an output: in memory of the host at `buffer_ptr`, or where the run allocates it."""
        self._known(name, "output")
        self._outputs[name] = None if buffer_ptr is None else _at(device_type, element_type, shape or (), buffer_ptr)

    def bind_ortvalue_output(self, name: str, ortvalue: OrtValue) -> None:
        """Ask for an output, written to a value."""
        self._outputs[self._known(name, "output")] = _ort_value(ortvalue)

    def clear_binding_inputs(self) -> None:
        """Bind no inputs."""
        self._inputs.clear()

    def clear_binding_outputs(self) -> None:
        """Bind no outputs."""
        self._outputs.clear()

    def synchronize_inputs(self) -> None:
        """Nothing to wait for: a run waits for its inputs."""

    def synchronize_outputs(self) -> None:
        """Wait for the outputs: those of a GPU are copied on the stream of the run."""
        self.copy_outputs_to_cpu()

    def get_outputs(self) -> list[OrtValue]:
        """The outputs of the last run, in the order of binding."""
        return [OrtValue(value) for value in self.results.values()]

    def get_outputs_as_ortvaluevector(self) -> list[OrtValue]:
        """As `get_outputs`: a list does for the class of ONNX Runtime's own."""
        return self.get_outputs()

    def copy_outputs_to_cpu(self) -> list[Any]:
        """The outputs of the last run as NumPy arrays, sequences as lists of them, optionals as such or None."""
        return [as_numpy(value) for value in self.results.values()]

    def _known(self, name: str, kind: str) -> str:
        specs = self._session.engine.inputs if kind == "input" else self._session.engine.outputs
        names = [spec.name for spec in specs]
        if name not in names:
            raise InputError(f"there is no {kind} {brief(name)}: this model has {', '.join(names)}")
        return name


def _ort_value(given: Any) -> Any:
    """What an `OrtValue` holds."""
    if not isinstance(given, OrtValue):
        raise InputError(f"expected a tilewright.onnx.OrtValue, got {a_kind(given)}: OrtValue(array)")
    return given.value


def _at(device_type: str, element_type: Any, shape: Sequence[int], address: int) -> np.ndarray:
    """The host's memory at an address as an array."""
    if device_type != "cpu":
        raise InputError(
            f"memory of {brief(device_type)} is bound as a tensor: bind_ortvalue_input(name, OrtValue(tensor)), where "
            "`tensor` is a PyTorch tensor or anything else with DLPack"
        )
    try:
        dtype, shape, address = np.dtype(element_type), tuple(map(operator.index, shape)), operator.index(address)
    except TypeError as error:
        raise InputError(f"memory is bound by its NumPy type, its shape and its address: {error}") from error
    size = math.prod(shape) * dtype.itemsize
    if dtype.hasobject or any(extent < 0 for extent in shape):
        raise InputError(f"no memory holds {dtype}{list(shape)}")
    if size == 0:
        return np.empty(shape, dtype)
    if not 0 < address <= sys.maxsize - size:
        raise InputError(f"no memory of {size} bytes begins at the address {address}")
    buffer = (ctypes.c_char * size).from_address(address)
    return np.frombuffer(buffer, np.uint8).view(dtype).reshape(shape)
