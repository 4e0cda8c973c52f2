"""Launches are packed as the driver wants them: a stand-in for the driver reads what it is given."""

from __future__ import annotations

import contextlib
import ctypes
import struct
from collections.abc import Callable, Iterator
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from tilewright.dtypes import bfloat16
from tilewright.errors import DeviceError, LaunchError
from tilewright.runtime.cuda import launch, tensor_map
from tilewright.runtime.cuda.device import current_device
from tilewright.runtime.cuda.memory import DeviceArray
from tilewright.runtime.cuda.staging import PinnedBuffer
from tilewright.runtime.gpu_program import Program, TensorMapUse, runs_on


class Driver:
    """Takes launches as cuLaunchKernelEx does and keeps what it read; `statuses` are its answers."""

    def __init__(self, sizes: tuple[int, ...], statuses: tuple[int, ...] = ()) -> None:
        self.sizes = sizes  # of the parameters
        self.statuses = list(statuses)
        self.launches: list[dict[str, Any]] = []
        self.entered = 0
        self.meanwhile: Callable[[], None] = lambda: None  # what another thread does while a launch is tried again

    def __call__(self, config: int, function: int, parameters: int, extra: None) -> int:
        fields = struct.unpack("<7I4xQQI4x", ctypes.string_at(config, 56))
        attributes = ctypes.string_at(fields[8], 72 * fields[9]) if fields[9] else b""
        addresses = struct.unpack(f"<{len(self.sizes)}Q", ctypes.string_at(parameters, 8 * len(self.sizes)))
        read = [ctypes.string_at(address, size) for address, size in zip(addresses, self.sizes, strict=True)]
        record = {"grid": fields[:3], "block": fields[3:6], "shared": fields[6], "stream": fields[7]}
        ids = [struct.unpack_from("<I4x3I", attributes, 72 * number) for number in range(fields[9])]
        aligned = [address % 64 == 0 for address in addresses]
        self.launches.append({**record, "attributes": ids, "function": function, "read": read, "aligned": aligned})
        return self.statuses.pop(0) if self.statuses else 0

    @contextlib.contextmanager
    def active(self) -> Iterator[None]:
        self.entered += 1
        self.meanwhile()
        yield


def program(parameters: tuple[str, ...], **changes: Any) -> Program:
    facts = {"image": b"", "symbol": "f", "architecture": "sm_90a", "threads": 128, "shared_bytes": 1024}
    return Program(**{**facts, "parameters": parameters, **changes})


def test_every_parameter_is_packed_in_its_own_format() -> None:
    kinds = ("*f32", "i32", "i64", "u8", "f32", "f16", "bf16", "f64", "i1")
    driver = Driver((8, 4, 8, 1, 4, 2, 2, 8, 1))
    start = launch.build(program(kinds), 77, driver, driver.active)
    start(3, 2, 1, 0xABC, 1 << 40, -5, -(1 << 50), 200, 1.5, 0.25, 3.140625, 1e300, True)
    (found,) = driver.launches
    assert (found["grid"], found["block"], found["shared"], found["stream"]) == ((3, 2, 1), (128, 1, 1), 1024, 0xABC)
    assert (found["function"], found["attributes"]) == (77, [])
    expected = [
        struct.pack("<Q", 1 << 40), struct.pack("<i", -5), struct.pack("<q", -(1 << 50)), b"\xc8",
        struct.pack("<f", 1.5), struct.pack("<e", 0.25), np.asarray(3.140625, ml_dtypes.bfloat16).tobytes(),
        struct.pack("<d", 1e300), b"\x01",
    ]  # fmt: skip
    assert found["read"] == expected


def test_attributes_of_a_launch() -> None:
    driver = Driver(())
    facts = program((), cluster=(2, 1, 1), dependent_launch=True, cooperative=True)
    start = launch.build(facts, 1, driver, driver.active)
    start(4, 1, 1, 0)
    assert driver.launches[0]["attributes"] == [(2, 1, 0, 0), (4, 2, 1, 1), (6, 1, 0, 0)]
    with pytest.raises(LaunchError, match="multiple"):
        start(3, 1, 1, 0)
    start(0, 1, 1, 0)  # nothing to run
    assert len(driver.launches) == 1


def test_tensor_maps_are_encoded_once_for_each_tensor(monkeypatch: pytest.MonkeyPatch) -> None:
    encoded: list[tuple[Any, ...]] = []

    class Form:
        def __init__(self, use: TensorMapUse, *form: Any, name: str) -> None:
            self.form = form

        def at(self, address: int, active: Any) -> bytes:
            encoded.append((address, *self.form))
            return bytes([len(encoded)]) * 128

    monkeypatch.setattr(tensor_map, "TensorForm", Form)
    driver = Driver((4, 128, 8, 128))
    uses = (TensorMapUse(1, (64, 64), bfloat16), TensorMapUse(3, (64, 64), bfloat16))
    kinds = ("i32", "tensormap<64x64xbf16>", "*f32", "tensormap<64x64xbf16>")
    start = launch.build(program(kinds, tensor_maps=uses), 1, driver, driver.active)
    x, y = (1 << 20, (128, 64), (64, 1)), (1 << 21, (256, 64), (64, 1))
    for _ in range(2):
        start(1, 1, 1, 0, 9, x, 4096, y)
    start(1, 1, 1, 0, 9, y, 4096, y)
    assert encoded == [x, y, y]  # the same tensor in two parameters is two maps: their boxes may differ
    assert [record["read"][1][0] for record in driver.launches] == [1, 1, 3]
    assert all(record["aligned"][1] and record["aligned"][3] for record in driver.launches)
    assert struct.unpack("<i", driver.launches[0]["read"][0]) == (9,)


@pytest.mark.parametrize("status", [201, 400])
def test_launches_in_another_context_are_tried_again(status: int) -> None:
    driver = Driver((8,), statuses=(status, 0, 0))
    start = launch.build(program(("*f32",)), 1, driver, driver.active)
    driver.meanwhile = lambda: start(1, 1, 1, 0, 128)
    start(1, 1, 1, 0, 64)
    found = [struct.unpack("<Q", record["read"][0])[0] for record in driver.launches]
    assert found == [64, 128, 64]  # the launch between took another packet
    assert driver.entered == 1


def test_refused_launches_say_why(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(launch, "failure", lambda status, what: DeviceError(f"{what}: status {status}"))
    driver = Driver((), statuses=(1, 701, 719))
    start = launch.build(program(()), 1, driver, driver.active)
    with pytest.raises(LaunchError, match=r"at most \(2147483647, 65535, 65535\)"):
        start(1, 70000, 1, 0)
    with pytest.raises(LaunchError, match="128 threads"):
        start(1, 1, 1, 0)
    with pytest.raises(DeviceError, match="status 719"):
        start(1, 1, 1, 0)


@pytest.mark.parametrize(
    ("tensor", "box", "problem"),
    [
        ((8, (64, 64), (64, 1)), (64, 64), "multiple of 16"),
        ((16, (64, 64), (65, 1)), (64, 64), "stride of 65"),
        ((16, (64, 64), (64, 2)), (64, 64), "contiguous"),
        ((16, (64,), (1,)), (64, 64), "1 axes"),
        ((16, (64, 64), (64, 1)), (512, 64), "beyond 256"),
        ((16, (64, 64), (64, 1)), (64, 4), "8 bytes"),
        ((16, (64, 64), (64, 1)), (64, 128), "256 bytes, more than the pattern of 128"),
    ],
)
def test_tensors_that_cannot_be_described(
    monkeypatch: pytest.MonkeyPatch, tensor: Any, box: tuple[int, ...], problem: str
) -> None:
    monkeypatch.setattr(tensor_map, "_codes", lambda *_: (0,) * 5)
    with pytest.raises(LaunchError, match=problem):
        tensor_map.TensorForm(TensorMapUse(0, box, bfloat16, swizzle=128), *tensor[1:]).at(tensor[0])


def test_a_tensor_is_described_in_a_context_where_there_is_none(monkeypatch: pytest.MonkeyPatch) -> None:
    statuses = [201, 0, 0]
    monkeypatch.setattr(tensor_map, "_codes", lambda *_: (0,) * 5)
    monkeypatch.setattr(tensor_map, "_driver_encode", lambda: lambda *_: statuses.pop(0))
    driver = Driver(())
    maps = tensor_map.TensorMaps(TensorMapUse(0, (64, 64), bfloat16), "x", driver.active)
    first, second = (maps((address, (64, 64), (64, 1))) for address in (1 << 20, 1 << 21))
    assert len(first) == len(second) == 128 and driver.entered == 1 and not statuses


def test_code_runs_on_later_minor_versions() -> None:
    assert runs_on("sm_80", (8, 6)) and runs_on("sm_86", (8, 6)) and runs_on("sm_100", (10, 3))
    assert not runs_on("sm_86", (8, 0)) and not runs_on("sm_80", (9, 0))
    assert runs_on("sm_90a", (9, 0)) and not runs_on("sm_100a", (10, 3)) and runs_on("sm_100f", (10, 3))


def test_the_driver_gets_a_tensor_in_its_own_terms(monkeypatch: pytest.MonkeyPatch) -> None:
    """A function of this process stands for cuTensorMapEncodeTiled, and is called as the driver's would be."""
    import ctypes
    from types import SimpleNamespace

    told: list[Any] = []
    pointer, number = ctypes.c_void_p, ctypes.c_int
    prototype = ctypes.CFUNCTYPE(
        number, pointer, number, ctypes.c_uint32, pointer, pointer, pointer, pointer, pointer, *[number] * 4
    )

    @prototype
    def described(target, kind, rank, address, extents, strides, box, steps, *codes) -> int:  # type: ignore[no-untyped-def]
        longs = [list((ctypes.c_uint64 * n).from_address(where)) for n, where in ((rank, extents), (rank - 1, strides))]
        words = [list((ctypes.c_uint32 * rank).from_address(where)) for where in (box, steps)]
        told.append((target % 64, kind, address, *longs, *words, codes))
        ctypes.memset(target, 0x5A, 128)
        return 0

    def names(**numbers: int) -> SimpleNamespace:
        return SimpleNamespace(**{f"CU_TENSOR_MAP_{name}": value for name, value in numbers.items()})

    driver = SimpleNamespace(
        cuGetProcAddress=lambda name, version, flags: (0, ctypes.cast(described, pointer).value, 0),
        CUtensorMapDataType=names(DATA_TYPE_BFLOAT16=9),
        CUtensorMapInterleave=names(INTERLEAVE_NONE=0),
        CUtensorMapSwizzle=names(SWIZZLE_128B=3),
        CUtensorMapL2promotion=names(L2_PROMOTION_L2_128B=2),
        CUtensorMapFloatOOBfill=names(FLOAT_OOB_FILL_NONE=0),
    )
    monkeypatch.setattr(tensor_map, "api", lambda: driver)
    tensor_map._driver_encode.cache_clear()
    tensor_map._codes.cache_clear()
    try:
        use = TensorMapUse(0, (1, 8, 64), bfloat16, swizzle=128)
        found = tensor_map.TensorForm(use, (3, 100, 72), (8000, 80, 1), False, (1, 2, 1)).at(4096)
    finally:
        tensor_map._driver_encode.cache_clear()
        tensor_map._codes.cache_clear()
    assert found == b"\x5a" * 128
    assert told == [(0, 9, 4096, [72, 100, 3], [160, 16000], [64, 16, 1], [1, 2, 1], (0, 3, 2, 0))]


def test_arrays_are_made_and_freed_while_a_graph_is_captured(driver: Any) -> None:
    driver.cuStreamBeginCapture(5, 1)
    values = np.arange(100, dtype=np.float32)
    array = DeviceArray.from_numpy(values, 0)
    assert driver.cuMemAlloc(16) == (900, 0)  # whoever asks otherwise ends the capture
    driver.cuStreamEndCapture(5)
    assert np.array_equal(array.numpy(), values)
    driver.cuStreamBeginCapture(5, 1)
    address = array.address
    del array
    assert address not in driver.memory


def test_host_memory_is_locked_and_freed_while_a_graph_is_captured(driver: Any) -> None:
    driver.cuStreamBeginCapture(5, 1)
    buffer = PinnedBuffer(current_device())
    buffer.reserve(100)
    buffer.reserve(1 << 17)  # frees the first; raises where that ends the capture
    assert list(driver.memory) == [buffer.address]
