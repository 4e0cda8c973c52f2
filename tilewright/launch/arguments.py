"""Launch arguments: the class of each for specialization, and the value that the kernel gets.

array, tensor   pointer to its dtype, with whether the address is divisible by 16, and the GPU that it is on
                (also anything with `data_ptr()` and `dtype`, such as `wrappers.pointer`, or an array interface)
int             i32 if it fits, else i64, else u64, with the largest of 16, 8, 4, 2 that divides it;
                the value 1 becomes a compile-time constant
bool            i1          float   f32          None   a compile-time constant
NumPy scalar    its own dtype
tuple           each entry by its own rule; NamedTuples and aggregates too
descriptor      its tile and padding; base, extents (i32) and strides (i64) are parameters
constexpr       (inside a tuple) a compile-time constant; so are strings, dtypes and functions there
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Union

import numpy as np

from tilewright import dtypes
from tilewright.dtypes import DType
from tilewright.errors import LaunchError, a_kind, brief
from tilewright.frontend.values import Static, ValueGroup, members
from tilewright.ir.memory import Address
from tilewright.ir.types import PointerType, TensorMapType, TensorType, scalar
from tilewright.language.aggregate import Aggregate
from tilewright.language.function import SourceFunction
from tilewright.language.records import argument_values, is_record
from tilewright.language.types import NAMES, ConstexprFunction, constexpr, dtype, unwrap
from tilewright.launch.descriptor import DescriptorForm, TensorDescriptor
from tilewright.launch.descriptor import check as check_descriptor
from tilewright.launch.descriptor import parts as descriptor_parts
from tilewright.launch.wrappers import TensorWrapper, stands_for_array
from tilewright.runtime import dlpack
from tilewright.runtime.cuda import memory, streams
from tilewright.runtime.cuda.streams import DevicePlace
from tilewright.runtime.tensors import WITHOUT_MEMORY, is_torch, no_memory, version_raiser


@dataclass(frozen=True, eq=False)
class ArgumentClass:
    """What a kernel is specialised on for one argument: its IR type and a divisor, or a constant.

    `place` tells of an array on which GPU it is, and whose; arrays in the CPU's memory have none.
    There is one instance of each (`argument_class`), so that keys made of them compare by identity.
    """

    type: TensorType | None  # None for a constant
    divisibility: int
    constant: Any
    place: DevicePlace | None = None

    def adjusted(self, kind: TensorType | None, divisibility: int) -> ArgumentClass:
        """The class of the same place with another type or divisor."""
        return argument_class(kind, divisibility, self.constant, self.place)


_CLASSES: dict[tuple[TensorType | None, int, type, Any, DevicePlace | None], ArgumentClass] = {}


def argument_class(
    kind: TensorType | None, divisibility: int = 1, constant: Any = None, place: DevicePlace | None = None
) -> ArgumentClass:
    """The one `ArgumentClass` of these values."""
    key = kind, divisibility, type(constant), constant, place
    return _CLASSES.setdefault(key, ArgumentClass(kind, divisibility, constant, place))


# With the address or number that goes into the argument slot; for a group a tuple of these.
Classified = tuple[Union[ArgumentClass, ValueGroup], Any]
Handler = Callable[[Any], Classified]

_ONE = argument_class(None, 1, 1)
_NONE = argument_class(None, 1, None)
_BOOL = argument_class(scalar(dtypes.int1))
_FLOAT = argument_class(scalar(dtypes.float32))
_DIVISORS = (16, 1, 2, 1, 4, 1, 2, 1, 8, 1, 2, 1, 4, 1, 2, 1)  # of a number, by its last four bits
_INTEGERS: dict[str, tuple[ArgumentClass, ...]] = {
    name: tuple(argument_class(scalar(dtypes.BY_NAME[name]), divisor) for divisor in _DIVISORS)
    for name in ("int32", "int64", "uint64")
}
INT32 = _INTEGERS["int32"]


def classify_int(value: int) -> Classified:
    if value == 1:
        return _ONE, 1
    if -(2**31) <= value < 2**31:
        return INT32[value & 15], value
    if -(2**63) <= value < 2**64:
        return _INTEGERS["int64" if value < 2**63 else "uint64"][value & 15], value
    raise LaunchError(f"the integer {value} does not fit in 64 bits")


@lru_cache(maxsize=256)
def pointer_classes(kind: np.dtype) -> tuple[ArgumentClass, ArgumentClass]:
    """Classes of arrays of a dtype: aligned to 16 bytes, and not."""
    try:
        element = dtypes.from_numpy(kind)
    except KeyError:
        raise LaunchError(
            f"an array of dtype {kind} cannot be passed to a kernel; "
            f"convert it to one of {', '.join(entry.name for entry in dtypes.DTYPES)}"
        ) from None
    return _by_alignment(element, None)


def _classify_array(value: np.ndarray) -> Classified:
    aligned, unaligned = pointer_classes(value.dtype)
    address = value.__array_interface__["data"][0]
    if address == 0 and value.size:
        raise LaunchError("an array at address 0, where no memory is: pass one that has memory")
    if address & 15 == 0:
        return aligned, address
    if address % unaligned.divisibility:
        raise LaunchError(f"an array of {value.dtype} begins at address {address:#x}, which its dtype does not divide")
    return unaligned, address


class _TorchClasses(dict[Any, tuple[ArgumentClass, ArgumentClass]]):
    """Classes of aligned and other tensors of one place by PyTorch's dtype, made when one is asked for."""

    def __init__(self, place: DevicePlace | None = None) -> None:
        super().__init__()
        self.place = place

    def __missing__(self, dtype: Any) -> tuple[ArgumentClass, ArgumentClass]:
        found = _by_alignment(_torch_element(dtype), self.place)
        self[dtype] = found
        return found


class _CudaClasses(dict[int, _TorchClasses]):
    """The same for each GPU, by its number."""

    def __missing__(self, ordinal: int) -> _TorchClasses:
        self[ordinal] = _TorchClasses(DevicePlace(ordinal, streams.TORCH))
        return self[ordinal]


TORCH_CLASSES = _TorchClasses()
CUDA_CLASSES = _CudaClasses()
# PyTorch's tensor types that kernels were called with, and the function that raises versions of such tensors.
TENSOR_TYPES: dict[type, Callable[[tuple[Any, ...]], None]] = {}


def _classify_torch(value: Any) -> Classified:
    if value.is_cpu:
        classes = TORCH_CLASSES[value.dtype]
    elif value.is_cuda:
        classes = CUDA_CLASSES[value.get_device()][value.dtype]
    else:
        raise LaunchError(f"a tensor on {value.device} was passed to a kernel; pass one of the CPU or of a CUDA GPU")
    try:
        address = value.data_ptr()
    except RuntimeError as error:
        if value.layout == sys.modules["torch"].strided:  # torch.func's, and those of modes that trace
            raise LaunchError(f"a tensor {WITHOUT_MEMORY}") from error
        raise LaunchError(f"a tensor of layout {value.layout} has no plain memory: pass tensor.to_dense()") from error
    if not address and value.numel():
        raise LaunchError(f"a tensor that {no_memory(value)}")
    return classes[address & 15 != 0], address


def _classify_dispatching(value: Any) -> Classified:
    """A tensor of a class that carries out PyTorch's operations itself: many of these have no memory."""
    reason = no_memory(value)
    if reason:
        raise LaunchError(f"{a_kind(value)} {reason}")
    return _classify_torch(value)


@lru_cache(maxsize=256)
def _torch_element(kind: Any) -> DType:
    name = str(kind).removeprefix("torch.")
    name = {
        "bool": "int1",
        "float8_e5m2": "float8e5",
        "float8_e4m3fn": "float8e4nv",
        "float8_e4m3fnuz": "float8e4b8",
        "float8_e5m2fnuz": "float8e5b16",
    }.get(name, name)
    if name not in dtypes.BY_NAME:
        raise LaunchError(f"a tensor of {kind} cannot be passed to a kernel; convert it with .to(...)")
    return dtypes.BY_NAME[name]


@lru_cache(maxsize=1024)
def _by_alignment(element: DType, place: DevicePlace | None) -> tuple[ArgumentClass, ArgumentClass]:
    """Classes of arrays that are aligned to 16 bytes, and of others."""
    pointer, least = scalar(PointerType(element)), element.itemsize
    return argument_class(pointer, 16, None, place), argument_class(pointer, least, None, place)


def _classify_numpy_scalar(value: np.generic) -> Classified:
    try:
        element = dtypes.from_numpy(value.dtype)
    except KeyError:
        raise LaunchError(f"a NumPy number of dtype {value.dtype} cannot be passed to a kernel; convert it") from None
    return argument_class(scalar(element)), value.item()


def _classify_group(value: Any) -> Classified:
    group = members(value)
    assert group is not None
    entries = argument_values(value) if is_record(value) else group.entries
    parts = [_classify_member(entry) for entry in entries]
    return ValueGroup(group.kind, tuple(part[0] for part in parts)), tuple(part[1] for part in parts)


def _classify_member(value: Any) -> Classified:
    """An entry of a tuple: also a compile-time value."""
    constant = unwrap(value)
    if isinstance(value, constexpr) or isinstance(constant, (str, dtype, SourceFunction, ConstexprFunction)):
        return argument_class(None, 1, constant), None
    return classify(value)


def _classify_descriptor(value: TensorDescriptor) -> Classified:
    base, address = classify(value.base)
    key = (
        base, tuple(value.shape), tuple(value.strides), tuple(value.block_shape), value.padding,
        value.round_f32_to_tf32,
    )  # fmt: skip
    found = _DESCRIPTORS.get(key)
    if found is None:
        if len(_DESCRIPTORS) >= _MOST_DESCRIPTORS:
            _DESCRIPTORS.clear()
        found = _DESCRIPTORS[key] = _described(value, base, address)
    group, numbers = found
    return group, (address, *numbers)


_DESCRIPTORS: dict[
    tuple[Any, ...], tuple[ValueGroup, tuple[int, ...]]
] = {}  # found valid, and what each is classified as
_MOST_DESCRIPTORS = 4096


def _described(value: TensorDescriptor, base: Any, address: int) -> tuple[ValueGroup, tuple[int, ...]]:
    """The class of a descriptor, and its extents and strides; raises `LaunchError` for one that is not valid."""
    if not isinstance(base, ArgumentClass) or base.type is None or not isinstance(base.type.element, PointerType):
        raise LaunchError(f"the base of a tensor descriptor must be an array, got {a_kind(value.base)}")
    check_descriptor(value, base.type.element, address)
    numbers = descriptor_parts(value)[1:]
    rank = len(value.block_shape)
    classes = [base]
    for extent in numbers[:rank]:
        classes.append(_INTEGERS["int32" if extent < 2**31 else "int64"][extent & 15])
    classes.extend(_INTEGERS["int64"][stride & 15] for stride in numbers[rank:-1])
    form = DescriptorForm(tuple(int(extent) for extent in value.block_shape), value.padding)
    return ValueGroup(form, (*classes, _ONE)), numbers


def as_tensor_map(kind: Any, value: Any) -> ArgumentClass:
    """The class of a descriptor whose parameter is annotated ``tx.tensor_map``: hardware moves its tiles.

    Its slot stays ``(address, *extents, *strides)``.
    """
    group, found = _TENSOR_MAPS.get(id(kind), (None, None))
    if found is None or group is not kind:
        if len(_TENSOR_MAPS) >= _MOST_DESCRIPTORS:
            _TENSOR_MAPS.clear()
        found = _tensor_map_class(kind, value)
        _TENSOR_MAPS[id(kind)] = kind, found
    return found


_TENSOR_MAPS: dict[int, tuple[Any, ArgumentClass]] = {}  # by the identity of a group, which it keeps alive


def _tensor_map_class(kind: Any, value: Any) -> ArgumentClass:
    if not isinstance(kind, ValueGroup) or not isinstance(kind.kind, DescriptorForm):
        raise LaunchError(
            f"a tensor map is made of a TensorDescriptor, got {a_kind(value)}; pass "
            "tilewright.TensorDescriptor.from_tensor(tensor, block_shape)"
        )
    if kind.kind.padding != "zero":
        raise LaunchError("a tensor map reads zeros outside of its tensor: the descriptor's padding must be 'zero'")
    (base, *_) = kind.entries
    element = base.type.element.element
    return argument_class(scalar(TensorMapType(kind.kind.block_shape, element)), 1, None, base.place)


def leaves(kind: Any, value: Any) -> Iterator[Any]:
    """The run-time entries of an argument (or of its slots), in the order of the kernel's parameters."""
    if isinstance(kind, ValueGroup):
        for entry, part in zip(kind.entries, _entries(value), strict=True):
            yield from leaves(entry, part)
    elif not isinstance(kind, Static):
        yield value


def _entries(value: Any) -> tuple[Any, ...]:
    if isinstance(value, TensorDescriptor):
        return descriptor_parts(value)
    group = members(value)
    assert group is not None
    return group.entries


def _classify_exchanged(value: Any) -> Classified:
    """An array of another library, on a GPU or in the CPU's memory."""
    if not memory.is_device_array(value):
        return _classify_array(dlpack.as_numpy(value))
    found = memory.inspect(value)
    aligned, unaligned = _by_alignment(found.element, found.place)
    return (aligned if found.address & 15 == 0 else unaligned), found.address


def _classify_described(value: Any) -> Classified:
    return _classify_array(np.asarray(value))  # of ``__array_interface__``: the same memory


def _classify_stand_in(value: Any) -> Classified:
    """Something with an address and a dtype: another view of a tensor, a pointer, a stand-in for a tensor."""
    place = getattr(classify(value.base)[0], "place", None) if isinstance(value, TensorWrapper) else None
    aligned, unaligned = _by_alignment(element_of(value.dtype), place)
    address = value.data_ptr()
    if address % unaligned.divisibility:
        raise LaunchError(f"the address {address:#x} is no multiple of the size of {value.dtype}")
    return (aligned if address & 15 == 0 else unaligned), address


def element_of(kind: Any) -> DType:
    """The element type that a dtype of the language, of NumPy or of PyTorch names; raises `LaunchError`."""
    if isinstance(kind, dtype) and not kind.is_ptr():
        return kind._number
    if isinstance(kind, str) and kind in NAMES:
        return NAMES[kind]._number
    if type(kind).__module__ == "torch":
        return _torch_element(kind)
    if kind is not None:  # which NumPy takes for float64
        with suppress(KeyError, TypeError, ValueError):
            return dtypes.from_numpy(np.dtype(kind))
    raise LaunchError(f"{brief(kind)} is no dtype of array elements; pass tl.float32 or the like")


_HANDLERS: dict[type, Handler] = {
    int: classify_int,
    bool: lambda value: (_BOOL, value),
    float: lambda value: (_FLOAT, value),
    type(None): lambda value: (_NONE, 0),
    np.ndarray: _classify_array,
    tuple: _classify_group,
    TensorDescriptor: _classify_descriptor,
}


def classify(value: Any) -> Classified:
    """The class and the slot value of a run-time argument; raises `LaunchError` for what cannot be passed."""
    return handler_of(value)(value)


def handler_of(value: Any) -> Handler:
    """The function that classifies values of this type; raises `LaunchError` for what cannot be passed."""
    return _HANDLERS.get(type(value)) or _register(value)


def _register(value: Any) -> Handler:
    """Find the handler of a type met for the first time."""
    handler: Handler
    if is_torch(value):
        if type(value).__torch_dispatch__ is sys.modules["torch"].Tensor.__torch_dispatch__:
            handler = _classify_torch
            TENSOR_TYPES[type(value)] = version_raiser()
        else:
            handler = _classify_dispatching
    elif isinstance(value, np.ma.MaskedArray):
        raise LaunchError(
            "kernels know no masks of masked arrays: pass array.data, and array.mask as an argument of its own"
        )
    elif isinstance(value, np.ndarray):
        handler = _classify_array
    elif isinstance(value, np.generic):
        handler = _classify_numpy_scalar
    elif isinstance(value, (tuple, Aggregate)):
        handler = _classify_group
    elif isinstance(value, TensorDescriptor):
        handler = _classify_descriptor
    elif isinstance(value, TensorWrapper) or not hasattr(value, "__dlpack__") and stands_for_array(value):
        handler = _classify_stand_in
    elif hasattr(value, "__dlpack__") or hasattr(value, "__cuda_array_interface__"):
        handler = _classify_exchanged
    elif hasattr(value, "__array_interface__"):
        handler = _classify_described
    elif is_record(value):
        handler = _classify_group
    else:
        raise LaunchError(
            f"{a_kind(value)} cannot be passed at run time; kernels take arrays, numbers, bools, None, "
            "and tuples and dataclasses of these (anything else needs a tl.constexpr parameter)"
        )
    _HANDLERS[type(value)] = handler
    return handler


def places_of(kind: Any) -> list[DevicePlace | None]:
    """The places of the arrays in an argument of this class: None for one in the CPU's memory."""
    if isinstance(kind, ValueGroup):
        return [place for entry in kind.entries for place in places_of(entry)]
    if isinstance(kind, ArgumentClass) and kind.type is not None:
        if kind.type.is_pointer or isinstance(kind.type.handle, TensorMapType) or kind.place is not None:
            return [kind.place]
    return []


def array_of(library: str, kind: Any, value: Any) -> Any:
    """The first array on a GPU of a library in an argument of this class: also a descriptor's, or one of a tuple."""
    if isinstance(kind, ValueGroup):
        parts = zip(kind.entries, _entries(value), strict=True)
        found = (array_of(library, entry, part) for entry, part in parts)
        return next((array for array in found if array is not None), None)
    return stored_array(value) if any(place and place.library == library for place in places_of(kind)) else None


def place_of(values: Iterable[Any]) -> DevicePlace | None:
    """Where the first array on a GPU among launch arguments is; None where there is none."""
    for value in values:
        try:
            found = [place for place in places_of(classify(value)[0]) if place is not None]
        except LaunchError:
            continue  # no run-time argument
        if found:
            return found[0]
    return None


def gpu_family(kinds: Iterable[Any]) -> str | None:
    """The family of targets of the GPU that arguments of these classes are on; None where there is none."""
    return next((place.family for kind in kinds for place in places_of(kind) if place is not None), None)


def as_memory(value: Any) -> np.ndarray | Address:
    """What the interpreter takes for a pointer: an array, or the address of memory whose extent nobody knows."""
    if isinstance(value, int):
        return Address(value)
    known = isinstance(value, TensorWrapper) or hasattr(value, "__dlpack__") or hasattr(value, "__array_interface__")
    return as_array(value) if known or not stands_for_array(value) else Address(int(value.data_ptr()))


def as_array(value: Any) -> np.ndarray:
    """The memory of an array argument as NumPy sees it."""
    if isinstance(value, np.ndarray):
        return value
    if is_torch(value):
        return _torch_as_array(value, sys.modules["torch"])
    if isinstance(value, TensorWrapper):
        return as_array(value.base).view(element_of(value.dtype).numpy)
    if hasattr(value, "__dlpack__"):
        return dlpack.as_numpy(value)
    if hasattr(value, "__array_interface__"):
        return np.asarray(value)
    raise LaunchError(f"the interpreter cannot run on {a_kind(value)}, whose extent it does not know; pass an array")


def _torch_as_array(value: Any, torch: Any) -> np.ndarray:
    reason = no_memory(value)
    if reason:
        raise LaunchError(f"a tensor that {reason}")
    plain = value.detach()
    wanted = _classify_torch(value)[0]
    assert isinstance(wanted, ArgumentClass) and wanted.type is not None
    assert isinstance(wanted.type.element, PointerType)
    element: DType = wanted.type.element.element
    try:
        return plain.numpy()
    except RuntimeError as error:  # a negated view, say
        raise LaunchError(f"{a_kind(value)} that is not plain memory ({error}); pass tensor.clone()") from error
    except TypeError:  # bfloat16 and fp8, which NumPy has by extension only
        carrier = {1: torch.uint8, 2: torch.int16}[element.itemsize]
        return plain.view(carrier).numpy().view(element.numpy)


def is_writable(value: Any) -> bool:
    """Whether a kernel may store to an array argument: PyTorch has no tensors that are read-only."""
    if isinstance(value, np.ndarray):
        return bool(value.flags.writeable)
    if is_torch(value):
        return True
    described = getattr(value, "__array_interface__", None)
    if described is not None:
        return not described["data"][1]
    if memory.is_device_array(value):
        return memory.inspect(value).writable
    return not hasattr(value, "__dlpack__") or bool(dlpack.as_numpy(value).flags.writeable)


def stored_array(value: Any) -> Any:
    """The array that a store through this argument changes: the one in a descriptor, or under another dtype."""
    while isinstance(value, (TensorDescriptor, TensorWrapper)):
        value = value.base
    return value


def retyped(kind: ArgumentClass, value: Any, element: DType) -> ArgumentClass:
    """The class of an argument whose parameter is annotated with a dtype: ints keep their divisibility."""
    exact = isinstance(value, int) and not isinstance(value, bool) and element.is_integer
    return argument_class(scalar(element), _DIVISORS[value & 15] if exact else 1)
