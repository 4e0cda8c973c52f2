"""The launches of softmax and norms of the rows of arrays on GPUs."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from tilewright.launch.jit import JITFunction
from tilewright.launch.sizes import cdiv
from tilewright.library.rows import simt_kernel
from tilewright.library.rows.simt_config import RowConfig, row_config
from tilewright.targets.machine import Machine


@dataclass(frozen=True)
class RowLaunch:
    """``kernel[grid](…, **options)``."""

    kernel: JITFunction
    grid: tuple[int, ...]
    options: dict[str, Any]


def softmax_launch(rows: int, columns: int, machine: Machine) -> RowLaunch:
    """A softmax of so many rows."""
    config = row_config(rows, columns, machine.processors)
    return _launch(simt_kernel.softmax_long if config.long else simt_kernel.softmax, config, rows, columns, machine)


def norm_launch(rows: int, columns: int, inputs: int, weighted: bool, machine: Machine) -> RowLaunch:
    """A norm of the sum of so many `inputs`; `weighted`: with weights or a bias."""
    config = row_config(rows, columns, machine.processors, inputs, weighted)
    kernel = simt_kernel.normalize_long if config.long else simt_kernel.normalize
    timing = {} if config.long else {"EARLY": config.early, "AHEAD": config.ahead}
    return _launch(kernel, config, rows, columns, machine, timing)


def _launch(
    kernel: JITFunction, config: RowConfig, rows: int, columns: int, machine: Machine, own: dict[str, Any] | None = None
) -> RowLaunch:
    options = {**(own or {}), "BLOCK": config.block, "num_warps": machine.warps(config.threads)}
    if not config.long:
        options |= {"ROWS": config.rows, "MASK": rows % config.rows != 0 or columns != config.block}
    return RowLaunch(kernel, (cdiv(rows, config.rows),), options)
