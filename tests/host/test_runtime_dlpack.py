"""Arrays of other libraries that speak nothing but DLPack: every element type, both records, and their lifetime."""

from __future__ import annotations

import ctypes
import sys
from typing import Any

import numpy as np
import pytest
import torch

import tilewright
import tilewright.language as tl
from tilewright.errors import LaunchError
from tilewright.runtime import dlpack
from tilewright.runtime.dlpack import _Managed, _Versioned
from tilewright.settings import settings


class Foreign:
    """An array of another library: nothing but DLPack, and if it is `old`, only what the first version had."""

    def __init__(self, array: Any, old: bool = False) -> None:
        self.array, self.old = array, old

    def __dlpack__(self, **keywords: Any) -> Any:
        if self.old and keywords:
            raise TypeError("unexpected keywords")
        return self.array.__dlpack__(**keywords)

    def __dlpack_device__(self) -> Any:
        return self.array.__dlpack_device__()


class Handmade:
    """An exporter whose record is written by hand: what is asked for, and how often the deleter was called."""

    def __init__(self, layout: type[_Managed] | type[_Versioned], **facts: Any) -> None:
        self.memory = (ctypes.c_uint8 * 64)(*range(64))
        self.extents = (ctypes.c_int64 * 1)(4)
        self.released = 0
        self.deleter = ctypes.CFUNCTYPE(None, ctypes.c_void_p)(self._release)
        self.record = layout()
        self.record.major, self.record.flags = facts.get("major", 1), facts.get("flags", 0)
        self.record.deleter = ctypes.cast(self.deleter, ctypes.c_void_p).value
        tensor = self.record.tensor
        tensor.data, tensor.device_type, tensor.ndim = ctypes.addressof(self.memory), facts.get("device", 1), 1
        tensor.code, tensor.bits, tensor.lanes = facts.get("type", (10, 8, 1))
        tensor.shape, tensor.byte_offset = self.extents, 8
        self.extents[0] = facts.get("extent", 4)
        if "stride" in facts:
            self.strides = (ctypes.c_int64 * 1)(facts["stride"])
            tensor.strides = self.strides
        for name in {"ndim", "shape", "data"} & facts.keys():
            setattr(tensor, name, facts[name])
        self.name = b"dltensor_versioned" if layout is _Versioned else b"dltensor"

    def _release(self, record: int) -> None:
        self.released += record == ctypes.addressof(self.record)

    def __dlpack__(self) -> Any:
        create = ctypes.pythonapi.PyCapsule_New
        create.restype, create.argtypes = ctypes.py_object, [ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p]
        return create(ctypes.addressof(self.record), self.name, None)

    def __dlpack_device__(self) -> tuple[int, int]:
        return self.record.tensor.device_type, 0


@tilewright.jit
def doubled(x, out, n, BLOCK: tl.constexpr):
    i = tl.arange(0, BLOCK)
    value = tl.load(x + i, mask=i < n).to(tl.float32) * 2
    tl.store(out + i, value.to(out.dtype.element_ty), mask=i < n)


NARROW = (
    torch.bfloat16, torch.float8_e4m3fn, torch.float8_e5m2, torch.float8_e4m3fnuz, torch.float8_e5m2fnuz,
    torch.float16, torch.int16,
)  # fmt: skip


@pytest.mark.parametrize("interpret", [False, True, "eager"])
@pytest.mark.parametrize("old", [False, True])
@pytest.mark.parametrize("dtype", NARROW, ids=str)
def test_kernels_read_and_write_what_numpy_cannot(dtype: torch.dtype, old: bool, interpret: bool | str) -> None:
    x = torch.arange(10).to(dtype)
    out = torch.zeros(10).to(dtype)
    with settings.scope(interpret=interpret):
        doubled[(1,)](Foreign(x, old), Foreign(out, old), 10, BLOCK=16)
    assert torch.equal(out.to(torch.float64), (x.to(torch.float64) * 2).to(dtype).to(torch.float64))


@pytest.mark.parametrize("layout", [_Managed, _Versioned])
def test_a_record_is_given_back_when_nobody_has_it_any_more(layout: Any) -> None:
    exporter = Handmade(layout)
    array = dlpack.as_numpy(exporter)
    assert (array.dtype.name, array.view(np.uint8).tolist()) == ("float8_e4m3fn", [8, 9, 10, 11])
    assert array.flags.writeable
    part = array[1:]
    del array
    assert exporter.released == 0
    del part
    assert exporter.released == 1


def test_a_borrowed_array_keeps_its_owner() -> None:
    x = torch.arange(6).reshape(2, 3).T.to(torch.bfloat16)
    before = sys.getrefcount(x)
    array = dlpack.as_numpy(Foreign(x))
    assert array.tolist() == x.tolist() and array.strides == (2, 6)
    array[1, 1] = 9
    assert x[1, 1] == 9
    del array
    assert sys.getrefcount(x) == before


def test_memory_that_may_not_be_written() -> None:
    x = np.zeros(4, np.float32)
    x.flags.writeable = False
    with pytest.raises(LaunchError, match="writes to argument 'out', a read-only array"):
        doubled[(1,)](x, Foreign(x), 4, BLOCK=4)


@pytest.mark.parametrize(
    ("exporter", "message"),
    [
        (Handmade(_Versioned, flags=2), "lends only a copy"),
        (Handmade(_Versioned, major=2), "exports DLPack 2.0; tilewright reads versions up to 1.x"),
        (Handmade(_Managed, device=7), r"memory of a device \(DLPack type 7, number 0\); copy it to the CPU"),
        (Handmade(_Managed, type=(17, 4, 2)), "code 17, 4 bits, 2 lanes.*convert it first"),
        (Foreign(torch.zeros(4, dtype=torch.complex64)), "complex64"),
        (Handmade(_Versioned, ndim=-1), "describes no memory: -1 axes"),
        (Handmade(_Managed, ndim=65), "describes no memory: 65 axes"),
        (Handmade(_Versioned, ndim=2**31 - 1), "describes no memory: 2147483647 axes"),
        (Handmade(_Versioned, shape=None), "describes no memory: 1 axes and no extents"),
        (Handmade(_Managed, shape=None), "describes no memory: 1 axes and no extents"),
        (Handmade(_Versioned, extent=-4), r"describes no memory: the extents \[-4\]"),
        (Handmade(_Versioned, extent=2**62), "describes no memory: elements at"),
        (Handmade(_Managed, extent=2**63 - 1), "describes no memory: elements at"),
        (Handmade(_Versioned, data=0), "describes no memory: elements at 0x8"),
        (Handmade(_Managed, data=0), "describes no memory: elements at 0x8"),
        (Handmade(_Versioned, stride=2**62), "describes no memory: elements at"),
        (Handmade(_Versioned, stride=-(2**60), type=(2, 32, 1)), "describes no memory: elements at"),
        (Handmade(_Versioned, data=2**64 - 4096), "describes no memory: elements at"),
        (Handmade(_Versioned, data=2**64 - 16, type=(2, 32, 1)), "describes no memory: elements at"),
        (Foreign(torch.zeros(4, requires_grad=True)), r"cannot read this Foreign through DLPack \(Can't export"),
    ],
)
def test_what_cannot_be_read_says_why(exporter: Any, message: str) -> None:
    with pytest.raises(LaunchError, match=message):
        doubled[(1,)](exporter, np.zeros(4, np.float32), 4, BLOCK=4)


@pytest.mark.parametrize("error", [KeyError, OSError, MemoryError, ZeroDivisionError, StopIteration])
def test_exporters_that_raise(error: type[Exception]) -> None:
    class Raising:
        def __dlpack__(self, **keywords: Any) -> Any:
            raise error

    with pytest.raises(LaunchError, match=r"cannot read this Raising through DLPack \((KeyError|OSError|\w+)\)"):
        doubled[(1,)](Raising(), np.zeros(4, np.float32), 4, BLOCK=4)


def stable_name(value: object) -> str:
    """A test's name, the same in every process: an object's own text has its address."""
    return "object" if type(value) is object else str(value)


@pytest.mark.parametrize("answer", [None, (), (1,), "cpu", ("a", 0), object()], ids=stable_name)
def test_devices_that_are_none(answer: Any) -> None:
    class Nowhere(Foreign):
        def __dlpack_device__(self) -> Any:
            return answer

    with pytest.raises(LaunchError, match="__dlpack_device__ of this Nowhere does not tell where its memory is"):
        doubled[(1,)](Nowhere(torch.zeros(4)), np.zeros(4, np.float32), 4, BLOCK=4)


@pytest.mark.parametrize("answer", [None, 3, "dltensor", object()], ids=stable_name)
def test_what_is_no_capsule(answer: Any) -> None:
    class Nonsense:
        def __dlpack__(self, **keywords: Any) -> Any:
            return answer

    with pytest.raises(LaunchError, match="and no DLPack capsule"):
        doubled[(1,)](Nonsense(), np.zeros(4, np.float32), 4, BLOCK=4)


def test_extents_that_no_array_has() -> None:
    exporter = Handmade(_Managed, ndim=2, type=(0, 64, 1))
    exporter.extents = (ctypes.c_int64 * 2)(0, 2**63 - 1)
    exporter.record.tensor.shape = exporter.extents
    with pytest.raises(LaunchError, match="describes no memory"):
        dlpack.as_numpy(exporter)


def test_a_record_without_elements_may_have_no_memory() -> None:
    for layout in (_Managed, _Versioned):
        assert dlpack.as_numpy(Handmade(layout, extent=0, data=0)).shape == (0,)


def test_a_capsule_that_was_read_before() -> None:
    class Spent(Foreign):
        def __dlpack__(self, **keywords: Any) -> Any:
            capsule = self.array.__dlpack__()
            torch.utils.dlpack.from_dlpack(capsule)
            return capsule

    with pytest.raises(LaunchError, match="no DLPack capsule that has not been read"):
        doubled[(1,)](Spent(torch.zeros(4)), np.zeros(4, np.float32), 4, BLOCK=4)
