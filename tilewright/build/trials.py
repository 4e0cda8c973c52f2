"""Timing the candidates of fused groups on a GPU, each in a CUDA graph like the plan's.

A trial's graph has many launches of one candidate, one behind the other.  Activations lie where they lay in the launch
before, as what the step ahead has just written does: in the L2 cache if they fit it.  Weights are cold where the
model's do not fit the cache: then each launch reads another copy of them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from statistics import median
from typing import Any

import numpy as np

from tilewright.build.kernels import KernelSet
from tilewright.dtypes import DType
from tilewright.errors import DeviceError, TilewrightError
from tilewright.graph.core import Graph, Value
from tilewright.library import packing
from tilewright.library.candidate import Candidate, KernelCall, Operand, PackedConstant, TiledOperand
from tilewright.runtime.cuda.device import Device
from tilewright.runtime.cuda.driver import api, check
from tilewright.runtime.cuda.extern import extern_start, is_extern
from tilewright.runtime.cuda.launch import Start, launcher
from tilewright.runtime.cuda.launches import Binder, Launch
from tilewright.runtime.cuda.memory import DeviceArray
from tilewright.runtime.cuda.staging import DeviceBuffer
from tilewright.runtime.cuda.tables import DeviceTables
from tilewright.runtime.cuda.timing import replay_times
from tilewright.runtime.plan import BufferReference
from tilewright.symbolic import evaluate, product
from tilewright.targets.base import Target
from tilewright.targets.nvidia.binary import CudaBinary

_GRAPH_SECONDS = 1e-4  # that one replay of a trial takes at least
_LAUNCHES = 64  # of one replay, at most
_SECONDS = 3e-3  # for all replays of a candidate, or five of them
_ALIGNMENT = 256
_POOL_BYTES = 1 << 20  # of random numbers, repeated to fill tensors


@dataclass
class _Tensor:
    """Memory that trials of a group share: its number among the addresses, and whether every launch has its own."""

    number: int
    bytes: int
    dtype: DType
    weight: bool


@dataclass
class _Tensors:
    """The tensors of a group's candidates by name, for known sizes."""

    graph: Graph
    sizes: Mapping[str, int]
    found: dict[str, _Tensor] = field(default_factory=dict)

    def place(self, operand: Operand) -> BufferReference:
        """Where an operand lies: each tensor is an input of its own."""
        if isinstance(operand, PackedConstant):
            array = self.graph.constants[operand.value]
            name = f"{operand.value.name} {operand.recipe}"
            extent = int(np.prod(packing.packed_shape(operand.recipe, array.shape), dtype=np.int64))
            value = operand.value
        else:
            assert isinstance(operand, Value)
            value, name, extent = operand, operand.name, evaluate(product(operand.shape), self.sizes)
        if name not in self.found:
            weight = value in self.graph.constants
            self.found[name] = _Tensor(len(self.found), extent * value.dtype.itemsize, value.dtype, weight)
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

    @property
    def context(self) -> str:
        """How candidates are timed, for people."""
        return f"in a graph, activations in place, weights {'cold' if self.cold else 'as they lie in the L2 cache'}"

    def microseconds(
        self, candidates: Sequence[Candidate], sizes: Mapping[str, int]
    ) -> tuple[dict[int, float], dict[int, str]]:
        """The median time of each candidate by its number, and why those without one could not be run.

        Raises `DeviceError` when the GPU's memory does not suffice, or a kernel breaks the GPU's context.
        """
        tensors = _Tensors(self.graph, sizes)
        launches: dict[int, list[Launch]] = {}
        failures: dict[int, str] = {}
        with self.device.active():
            for number, candidate in enumerate(candidates):
                try:
                    launches[number] = self._launches(candidate, tensors)
                except TilewrightError as error:
                    failures[number] = f"{type(error).__name__}: {error}"
            copies = self._copies(tensors)
            addresses = self._layout(tensors, copies)
            for number in list(launches):
                try:
                    for launch in launches[number]:
                        launch(0, addresses[0])
                except TilewrightError as error:
                    failures[number] = f"{type(error).__name__}: {error}"
                    del launches[number]
            check(api().cuCtxSynchronize(), "trying kernels")
            return self._timed(candidates, launches, addresses), failures

    def _timed(
        self, candidates: Sequence[Candidate], launches: Mapping[int, list[Launch]], addresses: Sequence[list[int]]
    ) -> dict[int, float]:
        if not launches:
            return {}
        expected = min(max(candidates[number].cost.seconds, 1e-6) for number in launches)
        count = max(len(addresses), min(_LAUNCHES, max(2, round(_GRAPH_SECONDS / expected))))
        rounds = max(5, min(15, int(_SECONDS / (count * expected))))

        def work(number: int) -> Callable[[int], None]:
            def enqueue(stream: int) -> None:
                for position in range(count):
                    for launch in launches[number]:
                        launch(stream, addresses[position % len(addresses)])

            return enqueue

        times = replay_times([work(number) for number in launches], rounds)
        return {number: median(found) / count * 1e3 for number, found in zip(launches, times, strict=True)}

    # -- Launches -----------------------------------------------------------------------------------------------------

    def _launches(self, candidate: Candidate, tensors: _Tensors) -> list[Launch]:
        """A candidate's launches for the sizes."""
        calls = [taken_call(stage.calls, tensors.sizes) for stage in candidate.stages]
        choices = [self.kernels.choice(call, tensors.place) for call in calls]
        for choice in choices:
            if choice.kernel not in self._starts and is_extern(choice.kernel):
                self._starts[choice.kernel] = extern_start(choice.kernel, self.device)
            elif choice.kernel not in self._starts:
                entry = self.kernels.entries[choice.kernel]
                assert isinstance(entry.binary, CudaBinary)
                self._starts[choice.kernel] = launcher(entry.binary.program(entry.name), self.device)
        numbers = {("input", name): tensor.number for name, tensor in tensors.found.items()}
        binder = Binder(self._starts, numbers, _nowhere, self._tables)
        return binder.launches(choices, tensors.sizes)

    # -- Memory -------------------------------------------------------------------------------------------------------

    def _copies(self, tensors: _Tensors) -> int:
        """How many copies of the weights make each launch find its own cold."""
        weights = sum(tensor.bytes for tensor in tensors.found.values() if tensor.weight)
        if not self.cold or not weights:
            return 1
        return max(1, min(_LAUNCHES, -(-2 * self.device.l2_bytes // weights)))

    def _layout(self, tensors: _Tensors, copies: int) -> list[list[int]]:
        """Addresses of all tensors, with random contents, for each copy of the weights."""
        table = [[0] * len(tensors.found) for _ in range(copies)]
        regions: list[tuple[int, int, DType]] = []  # offset, bytes, element type
        end = 0
        for tensor in tensors.found.values():
            count = copies if tensor.weight else 1
            size = -(-tensor.bytes // _ALIGNMENT) * _ALIGNMENT
            for number, row in enumerate(table):
                row[tensor.number] = end + (number * size if tensor.weight else 0)
            regions.append((end, count * size, tensor.dtype))
            end += count * size
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


def taken_call(calls: Sequence[KernelCall], sizes: Mapping[str, int]) -> KernelCall:
    """The alternative of a stage that sizes take."""
    return next(c for c in calls if c.condition is None or evaluate(c.condition[0], sizes) <= c.condition[1])


def operand_tensor(operand: Operand) -> Value | None:
    """The graph's value that an operand is, or is made of; None for sizes and numbers."""
    if isinstance(operand, TiledOperand):
        operand = operand.value
    if isinstance(operand, PackedConstant):
        return operand.value
    return operand if isinstance(operand, Value) else None


def _nowhere(place: BufferReference) -> int:
    raise AssertionError(f"{place} is no tensor of a trial")


def _random(dtype: DType) -> Any:
    """A pool of numbers: floats around 0, small whole numbers, true and false."""
    generator = np.random.default_rng(0)
    count = _POOL_BYTES // dtype.itemsize
    if dtype.is_float:
        return generator.standard_normal(count, np.float32).astype(dtype.numpy)
    return generator.integers(0, 2 if dtype.bits == 1 else 64, count).astype(dtype.numpy)
