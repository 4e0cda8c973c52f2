"""Timing the candidates of fused groups on a GPU, each in a CUDA graph like the plan's.

A trial's graph has many launches of one candidate (`measure.timers.in_graphs`).  Activations lie where they lay in the
launch before, as what the step ahead has just written does: in the L2 cache if they fit it.  Weights are cold where the
model's do not fit the cache: then each launch reads another copy of them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, cast

import numpy as np

from tilewright.build.kernels import KernelSet
from tilewright.dtypes import DType, from_numpy
from tilewright.errors import DeviceError, TilewrightError
from tilewright.graph.core import Graph, Value
from tilewright.library import packing
from tilewright.library.candidate import Candidate, Operand, PackedConstant
from tilewright.measure import timers
from tilewright.measure.choosing import Measured, attempt
from tilewright.runtime.cuda.device import Device
from tilewright.runtime.cuda.driver import api, check
from tilewright.runtime.cuda.extern import extern_start
from tilewright.runtime.cuda.launch import Start, launcher
from tilewright.runtime.cuda.launches import Binder, Launch
from tilewright.runtime.cuda.memory import DeviceArray
from tilewright.runtime.cuda.staging import DeviceBuffer
from tilewright.runtime.cuda.tables import DeviceTables
from tilewright.runtime.extern import is_extern
from tilewright.runtime.plan import BufferReference
from tilewright.symbolic import evaluate, product
from tilewright.targets.base import Target
from tilewright.targets.gpu.binary import GpuBinary

_ALIGNMENT = 256
_COLD_SECONDS = 5e-3  # for a launch on each copy of the weights
_POOL_BYTES = 1 << 20  # of random numbers, repeated to fill tensors


@dataclass
class _TrialTensor:
    """Memory that trials of a group share: its number among the addresses, and whether every launch has its own."""

    number: int
    bytes: int
    dtype: DType
    weight: bool


@dataclass
class _TrialTensors:
    """The tensors of a group's candidates by name, for known sizes."""

    graph: Graph
    sizes: Mapping[str, int]
    found: dict[str, _TrialTensor] = field(default_factory=dict)

    def place(self, operand: Operand) -> BufferReference:
        """Where an operand lies: each tensor is an input of its own."""
        if isinstance(operand, PackedConstant):
            array = self.graph.constants[operand.value]
            name = f"{operand.value.name} {operand.recipe}"
            extent = int(np.prod(packing.packed_shape(operand.recipe, array.shape), dtype=np.int64))
            value, dtype = operand.value, from_numpy(packing.packed_dtype(operand.recipe, array.dtype))
        else:
            assert isinstance(operand, Value)
            value, name, extent = operand, operand.name, evaluate(product(operand.shape), self.sizes)
            dtype = value.dtype
        if name not in self.found:
            weight = value in self.graph.constants
            self.found[name] = _TrialTensor(len(self.found), 0, dtype, weight)
        # Candidates have temporaries of one name and several extents.
        self.found[name].bytes = max(self.found[name].bytes, extent * dtype.itemsize)
        return BufferReference("input", name)


class Trials:
    """Times candidates on a GPU; buffers and compiled kernels are kept from one group to the next."""

    def __init__(self, graph: Graph, target: Target, device: Device, cold: bool) -> None:
        """`cold`: each launch finds the weights outside of the L2 cache."""
        self.graph = graph
        self.device = device
        self.cold = cold
        self.kernels = KernelSet(target, lambda stage, item, seconds: None)
        self._memory = DeviceBuffer(device)
        self._tables = DeviceTables(device)
        self._starts: dict[str, Start] = {}
        self._pools: dict[str, DeviceArray] = {}

    def measure(self, candidates: Mapping[int, Candidate], sizes: Mapping[str, int]) -> Measured:
        """The median times of candidates, by their numbers.

        Raises `DeviceError` when the GPU's memory does not suffice, or a kernel breaks the GPU's context.
        """
        tensors = _TrialTensors(self.graph, sizes)
        failures: dict[int, TilewrightError] = {}
        with self.device.active():
            makers = {number: partial(self._launches, each, tensors) for number, each in candidates.items()}
            launches = attempt(makers, failures)
            quickest = min((candidates[number].cost.seconds for number in launches), default=0.0)
            addresses = self._layout(tensors, self._copies(tensors, quickest))
            work = {n: [partial(_launch, each, places) for places in addresses] for n, each in launches.items()}
            usable = attempt({number: partial(each[0], 0) for number, each in work.items()}, failures)
            check(api().cuCtxSynchronize(), "trying kernels")
            expected = min((candidates[number].cost.seconds for number in usable), default=0.0)
            times = timers.in_graphs({number: work[number] for number in usable}, expected)
        weights = "cold" if self.cold else "as they lie in the L2 cache"
        return Measured(times, failures, f"in a graph, activations in place, weights {weights}")

    # -- Launches -----------------------------------------------------------------------------------------------------

    def _launches(self, candidate: Candidate, tensors: _TrialTensors) -> list[Launch]:
        """A candidate's launches for the sizes."""
        calls = [stage.call_for(tensors.sizes) for stage in candidate.stages]
        for stage in candidate.stages:
            for call in stage.calls:  # those of other sizes too: without one of them the candidate is of no use
                self.kernels.choice(call, tensors.place)
        choices = [self.kernels.choice(call, tensors.place) for call in calls]
        for choice in choices:
            if choice.kernel not in self._starts and is_extern(choice.kernel):
                self._starts[choice.kernel] = extern_start(choice.kernel, self.device)
            elif choice.kernel not in self._starts:
                entry = self.kernels.entries[choice.kernel]
                binary = cast(GpuBinary, entry.binary)  # targets whose kernels are timed have them
                self._starts[choice.kernel] = launcher(binary.program(entry.name), self.device)
        numbers = {("input", name): tensor.number for name, tensor in tensors.found.items()}
        binder = Binder(self._starts, numbers, _nowhere, self._tables)
        return binder.launches(choices, tensors.sizes)

    # -- Memory -------------------------------------------------------------------------------------------------------

    def _copies(self, tensors: _TrialTensors, seconds: float) -> int:
        """How many copies of the weights make each launch find its own cold. There is a launch for each: of those that
        take long there are few, which move more than a cache holds anyway."""
        weights = sum(tensor.bytes for tensor in tensors.found.values() if tensor.weight)
        if not self.cold or not weights:
            return 1
        copies = timers.cold_copies(weights, self.device.l2_bytes)
        return max(1, min(copies, round(_COLD_SECONDS / max(seconds, 1e-6))))

    def _layout(self, tensors: _TrialTensors, copies: int) -> list[list[int]]:
        """Addresses of all tensors, with random contents, for each copy of the weights."""
        table = [[0] * len(tensors.found) for _ in range(copies)]
        regions: list[tuple[int, int, DType]] = []  # offset, bytes, element type
        end = 0
        for tensor in tensors.found.values():
            size = -(-tensor.bytes // _ALIGNMENT) * _ALIGNMENT
            for number, row in enumerate(table):
                row[tensor.number] = end + (number * size if tensor.weight else 0)
            regions.append((end, size * (copies if tensor.weight else 1), tensor.dtype))
            end += regions[-1][1]
        if end > self.device.memory_bytes // 4:
            raise DeviceError(f"timing needs {end >> 20} MiB of the GPU's {self.device.memory_bytes >> 20} MiB")
        self._memory.reserve(end)
        base = self._memory.address
        for offset, size, dtype in regions:
            self._fill(base + offset, size, dtype)
        return [[base + offset for offset in row] for row in table]

    def _fill(self, address: int, size: int, dtype: DType) -> None:
        """Random numbers: power and time depend on what kernels compute with."""
        pool = self._pools.get(dtype.name)
        if pool is None:
            pool = self._pools[dtype.name] = DeviceArray.from_numpy(_random(dtype), self.device.ordinal)
        done = 0
        while done < size:
            source, count = (pool.address, min(pool.nbytes, size)) if not done else (address, min(done, size - done))
            check(api().cuMemcpyDtoD(address + done, source, count), "filling a tensor")
            done += count


def _launch(launches: Sequence[Launch], addresses: Sequence[int], stream: int) -> None:
    """Enqueue a candidate's launches, with its tensors at these addresses."""
    for launch in launches:
        launch(stream, addresses)


def _nowhere(place: BufferReference) -> int:
    raise AssertionError(f"{place} is no tensor of a trial")


def _random(dtype: DType) -> Any:
    """A pool of numbers: floats around 0, small whole numbers, true and false."""
    generator = np.random.default_rng(0)
    count = _POOL_BYTES // dtype.itemsize
    if dtype.is_float:
        return generator.standard_normal(count, np.float32).astype(dtype.numpy)
    return generator.integers(0, 2 if dtype.bits == 1 else 64, count).astype(dtype.numpy)
