"""Tables of numbers in a GPU's memory (`runtime.tables`), made when a launch first wants them."""

from __future__ import annotations

import numpy as np

from tilewright.runtime.cuda.device import Device
from tilewright.runtime.cuda.driver import api, check
from tilewright.runtime.cuda.memory import DeviceArray
from tilewright.runtime.cuda.streams import new_stream
from tilewright.runtime.tables import RUN_TIME_TABLES

_ROOM = 1 << 20  # bytes that are allocated at once: an allocation takes longer than a table
_TABLE_ALIGNMENT = 256


class DeviceTables:
    """The tables that launches of one session read; they stay until `clear`."""

    def __init__(self, device: Device) -> None:
        self._device = device
        self._entries: dict[tuple[str, tuple[int, ...]], tuple[int, int]] = {}
        self._arrays: list[DeviceArray] = []
        self._end = 0  # of what is taken of the last room
        self._stream: int | None = None  # for copies, which wait for nothing else on the GPU

    def __call__(self, name: str, sizes: tuple[int, ...]) -> tuple[int, int]:
        """The address of a table, and how many numbers a row has."""
        key = (name, sizes)
        if key not in self._entries:
            table = np.ascontiguousarray(RUN_TIME_TABLES[name](*sizes))
            self._entries[key] = (self._copied(table), int(table.shape[-1]))
        return self._entries[key]

    @property
    def memory(self) -> list[DeviceArray]:
        """What the tables are in now, for graphs that refer to them."""
        return list(self._arrays)

    def clear(self) -> None:
        """Give all tables up; nothing that reads one may be running."""
        self._entries.clear()
        self._arrays.clear()

    def _copied(self, table: np.ndarray) -> int:
        """The address of a copy in the GPU's memory, which is there when this returns."""
        cuda = api()
        with self._device.active():
            if self._stream is None:
                self._stream = new_stream()
            address = self._place(table.nbytes)
            check(cuda.cuMemcpyHtoDAsync(address, table.ctypes.data, table.nbytes, self._stream), "copying a table")
            check(cuda.cuStreamSynchronize(self._stream), "copying a table")
        return address

    def _place(self, size: int) -> int:
        if not self._arrays or self._end + size > self._arrays[-1].nbytes:
            self._arrays.append(DeviceArray((max(_ROOM, size),), np.uint8, self._device.ordinal))
            self._end = 0
        address = self._arrays[-1].address + self._end
        self._end += -(-size // _TABLE_ALIGNMENT) * _TABLE_ALIGNMENT
        return address
