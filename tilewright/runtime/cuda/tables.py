"""Tables of numbers in a GPU's memory (`runtime.tables`), made when a launch first wants them."""

from __future__ import annotations

from tilewright.runtime.cuda import streams
from tilewright.runtime.cuda.device import Device
from tilewright.runtime.cuda.memory import DeviceArray
from tilewright.runtime.tables import TABLES


class DeviceTables:
    """The tables that launches of one session read; they stay until `clear`."""

    def __init__(self, device: Device) -> None:
        self._device = device
        self._kept: dict[tuple[str, tuple[int, ...]], tuple[DeviceArray, int]] = {}

    def __call__(self, name: str, sizes: tuple[int, ...]) -> tuple[int, int]:
        """The address of a table, and how many numbers a row has."""
        key = (name, sizes)
        if key not in self._kept:
            table = TABLES[name](*sizes)
            self._kept[key] = (DeviceArray.from_numpy(table, self._device.ordinal), int(table.shape[-1]))
            # A copy may still be under way when the driver returns, and streams of launches need not wait for it.
            streams.synchronize(self._device.ordinal)
        memory, columns = self._kept[key]
        return memory.address, columns

    def clear(self) -> None:
        """Give all tables up; nothing that reads one may be running."""
        self._kept.clear()
