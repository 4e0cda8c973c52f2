"""CUDA graphs of whole plans: captured for each shape and place of the caller's memory, updated when that moves on."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from typing import Any

from tilewright.runtime.cuda.driver import api, check

Key = tuple[int, ...]
_MET = 64


class GraphCache:
    """Executable graphs by shape and the addresses of the caller's memory.

    What is run for the first time is launched kernel by kernel, and captured when it comes again. A shape has up to
    `variants` graphs, for callers whose tensors come to lie in a few places in turn; then the least recently used one
    is updated in place. Of more than `limit` graphs the least recently used is given up.
    """

    def __init__(self, limit: int = 32, variants: int = 4) -> None:
        self.limit = limit
        self.variants = variants
        self.captures = 0  # so far, for tests and people
        self._graphs: OrderedDict[tuple[Key, Key], Any] = OrderedDict()  # the least recently used first
        self._met: OrderedDict[tuple[Key, Key], None] = OrderedDict()  # once, and not captured yet
        self._stream: Any = None  # on which nothing but captures happens

    def launch(self, shape: Key, addresses: Key, stream: int, enqueue: Callable[[int], None]) -> None:
        """Run a plan of `shape` on memory at `addresses`: its graph, or what `enqueue(stream)` launches one by one,
        of which a graph is made. A context is current."""
        executable = self.find(shape, addresses)
        if executable is None:
            if not self._came_before((shape, addresses)):
                enqueue(stream)
                return
            executable = self._captured(shape, addresses, enqueue)
        check(api().cuGraphLaunch(executable, stream), "launching a plan")

    def find(self, shape: Key, addresses: Key) -> Any:
        """The executable graph of a shape and addresses; None when there is none yet."""
        key = (shape, addresses)
        found = self._graphs.get(key)
        if found is not None:
            self._graphs.move_to_end(key)
        return found

    def _came_before(self, key: tuple[Key, Key]) -> bool:
        """Whether a plan was run like this lately."""
        if key in self._met:
            del self._met[key]
            return True
        if len(self._met) >= _MET:
            self._met.popitem(last=False)
        self._met[key] = None
        return False

    def clear(self) -> None:
        """Give all graphs up; none may be running."""
        self._met.clear()
        for executable in self._graphs.values():
            check(api().cuGraphExecDestroy(executable), "giving up a graph")
        self._graphs.clear()

    def _captured(self, shape: Key, addresses: Key, enqueue: Callable[[int], None]) -> Any:
        cuda = api()
        graph = self._capture(enqueue)
        try:
            others = [key for key in self._graphs if key[0] == shape]
            if len(others) >= self.variants:
                executable = self._graphs.pop(others[0])
                status, *_ = cuda.cuGraphExecUpdate(executable, graph)
                if int(status) == 0:
                    self._graphs[shape, addresses] = executable
                    return executable
                # The driver frees it when it has run to its end.
                check(cuda.cuGraphExecDestroy(executable), "giving up a graph")
            executable = check(cuda.cuGraphInstantiate(graph, 0), "preparing a plan's graph")
        finally:
            check(cuda.cuGraphDestroy(graph), "giving up a captured graph")
        while len(self._graphs) >= self.limit:
            _, oldest = self._graphs.popitem(last=False)
            check(cuda.cuGraphExecDestroy(oldest), "giving up a graph")
        self._graphs[shape, addresses] = executable
        return executable

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
    return int(check(api().cuStreamIsCapturing(stream), "asking whether a stream is captured")) != 0
