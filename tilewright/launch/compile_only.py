"""Kernels for targets without a driver: compiled and shown, and never launched."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NoReturn

from tilewright.errors import DeviceError
from tilewright.ir.memory import Extent
from tilewright.launch.compiled import CompiledKernel
from tilewright.launch.driver import Driver


class CompileOnlyKernel(CompiledKernel):
    """Machine code that nothing here launches: what needs a device raises `DeviceError`."""

    def _refuse(self) -> NoReturn:
        raise DeviceError(
            f"kernel '{self.name}' is for {self.target.description}, which has no driver here: its code can be read "
            "(dump, asm, explain), not loaded or launched"
        )

    @property
    def address(self) -> int:
        self._refuse()

    @property
    def n_regs(self) -> int:
        self._refuse()

    @property
    def n_spills(self) -> int:
        self._refuse()

    @property
    def n_max_threads(self) -> int:
        self._refuse()

    def _init_handles(self) -> None:
        self._refuse()

    def __getitem__(self, grid: Sequence[int]) -> Callable[..., None]:
        self._refuse()

    def run(self, grid: tuple[int, int, int], slots: Sequence[Any], extents: Sequence[Extent] = ()) -> None:
        self._refuse()

    def run_given(
        self, grid: tuple[int, int, int], slots: Sequence[Any], values: Sequence[Any], ordinal: int, stream: int
    ) -> None:
        self._refuse()


class AbsentDriver(Driver):
    """Devices that this machine does not have."""

    @classmethod
    def is_active(cls) -> bool:
        return False
