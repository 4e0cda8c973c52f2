"""CUDA graphs of whole plans: captured once for each shape, updated in place when the caller's memory has moved."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from typing import Any

from tilewright.runtime.cuda.driver import api, check

Key = tuple[int, ...]


class _Graph:
    """An executable graph, and the addresses that it was captured with."""

    def __init__(self, executable: Any, addresses: Key) -> None:
        self.executable = executable
        self.addresses = addresses


class GraphCache:
    """Executable graphs by shape, the least recently used of more than `limit` given up."""

    def __init__(self, limit: int = 32) -> None:
        self.limit = limit
        self.captures = 0  # so far, for tests and people
        self._graphs: OrderedDict[Key, _Graph] = OrderedDict()
        self._stream: Any = None  # on which nothing but captures happens

    def launch(self, shape: Key, addresses: Key, stream: int, enqueue: Callable[[int], None]) -> None:
        """Launch the graph of `shape` on memory at `addresses`; `enqueue(stream)` launches its kernels one by one,
        and is called when there is no graph yet, or one for other addresses. A context is current."""
        found = self._graphs.get(shape)
        if found is None or found.addresses != addresses:
            found = self._captured(shape, addresses, enqueue)
        self._graphs.move_to_end(shape)
        check(api().cuGraphLaunch(found.executable, stream), "launching a plan")

    def clear(self) -> None:
        """Give all graphs up; none may be running."""
        for graph in self._graphs.values():
            check(api().cuGraphExecDestroy(graph.executable), "giving up a graph")
        self._graphs.clear()

    def _captured(self, shape: Key, addresses: Key, enqueue: Callable[[int], None]) -> _Graph:
        cuda = api()
        graph = self._capture(enqueue)
        try:
            found = self._graphs.get(shape)
            if found is not None:
                status, *_ = cuda.cuGraphExecUpdate(found.executable, graph)
                if int(status) == 0:
                    found.addresses = addresses
                    return found
                self._drop(shape)
            executable = check(cuda.cuGraphInstantiate(graph, 0), "preparing a plan's graph")
        finally:
            check(cuda.cuGraphDestroy(graph), "giving up a captured graph")
        if len(self._graphs) >= self.limit:
            self._drop(next(iter(self._graphs)))
        self._graphs[shape] = _Graph(executable, addresses)
        return self._graphs[shape]

    def _drop(self, shape: Key) -> None:
        """Give a graph up; the driver frees it when it has run to its end."""
        check(api().cuGraphExecDestroy(self._graphs.pop(shape).executable), "giving up a graph")

    def _capture(self, enqueue: Callable[[int], None]) -> Any:
        cuda = api()
        if self._stream is None:
            flags = cuda.CUstream_flags.CU_STREAM_NON_BLOCKING
            self._stream = check(cuda.cuStreamCreate(flags), "making a stream for captures")
        self.captures += 1
        return capture(int(self._stream), enqueue)


def capture(stream: int, enqueue: Callable[[int], None]) -> Any:
    """The graph of what `enqueue(stream)` enqueues. A context is current."""
    cuda = api()
    mode = cuda.CUstreamCaptureMode.CU_STREAM_CAPTURE_MODE_THREAD_LOCAL
    check(cuda.cuStreamBeginCapture(stream, mode), "capturing a plan")
    try:
        enqueue(stream)
    finally:
        graph = check(cuda.cuStreamEndCapture(stream), "capturing a plan")
    return graph


def is_capturing(stream: int) -> bool:
    """Whether the caller is capturing this stream into a graph of its own."""
    cuda = api()
    status = check(cuda.cuStreamIsCapturing(stream), "asking whether a stream is captured")
    return bool(status != cuda.CUstreamCaptureStatus.CU_STREAM_CAPTURE_STATUS_NONE)
