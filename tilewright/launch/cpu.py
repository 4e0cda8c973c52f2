"""Launching on CPUs: `compiled.CompiledKernel` is the kernel class, as it is the base of others."""

from __future__ import annotations

from tilewright.launch.compiled import CompiledKernel
from tilewright.launch.driver import Driver
from tilewright.launch.launchers import Launching

CPU_LAUNCHING = Launching(kernel=CompiledKernel, driver=Driver)
