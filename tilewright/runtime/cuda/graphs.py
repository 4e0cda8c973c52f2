"""CUDA graphs of whole plans: captured for each shape and place of the caller's memory, updated when that moves on."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from typing import Any

from tilewright.runtime.cuda.driver import api, check
from tilewright.runtime.cuda.streams import new_stream

Key = tuple[int, ...]
_MET = 64


class CapturedGraph:
    """An executable graph of one shape; it is None when the graph was given up, or is another one's now."""

    __slots__ = ("executable", "shape", "used")

    def __init__(self, executable: Any, shape: Key, used: int) -> None:
        self.executable = executable
        self.shape = shape
        self.used = used  # the number of the last launch


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
        self._graphs: dict[tuple[Key, Key], CapturedGraph] = {}
        self._met: OrderedDict[tuple[Key, Key], None] = OrderedDict()  # once, and not captured yet
        self._launched = 0
        self._stream: int | None = None  # on which nothing but captures happens

    def launch(self, shape: Key, addresses: Key, stream: int, enqueue: Callable[[int], None]) -> CapturedGraph | None:
        """Run a plan of `shape` on memory at `addresses`: its graph, which is returned, or what `enqueue(stream)`
        launches one by one, of which a graph is made when it comes again. A context is current."""
        key = (shape, addresses)
        graph = self._graphs.get(key)
        if graph is None:
            if not self._came_before(key):
                enqueue(stream)
                return None
            graph = self._captured(key, enqueue)
        self.again(graph, stream)
        return graph

    def again(self, graph: CapturedGraph, stream: int) -> bool:
        """Run a graph that `launch` returned; False when it is there no more. A context is current."""
        if graph.executable is None:
            return False
        self._launched += 1
        graph.used = self._launched
        check(api().cuGraphLaunch(graph.executable, stream), "launching a plan")
        return True

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
        while self._graphs:
            self._give_up(next(iter(self._graphs)))

    def _give_up(self, key: tuple[Key, Key]) -> None:
        """The driver frees a graph that is running when it has run to its end."""
        check(api().cuGraphExecDestroy(self._removed(key)), "giving up a graph")

    def _removed(self, key: tuple[Key, Key]) -> Any:
        """The executable of a graph that is no more."""
        graph = self._graphs.pop(key)
        executable, graph.executable = graph.executable, None
        return executable

    def _oldest(self, shape: Key | None) -> tuple[Key, Key]:
        """The least recently used graph, of a shape."""
        keys = [key for key, graph in self._graphs.items() if shape in (None, graph.shape)]
        return min(keys, key=lambda key: self._graphs[key].used)

    def _updated(self, graph: Any, shape: Key) -> Any:
        """The oldest executable of a shape with the work of a graph, where there are enough of them; None else."""
        if sum(found.shape == shape for found in self._graphs.values()) < self.variants:
            return None
        cuda, executable = api(), self._removed(self._oldest(shape))
        status, *_ = cuda.cuGraphExecUpdate(executable, graph)
        if int(status) == 0:
            return executable
        check(cuda.cuGraphExecDestroy(executable), "giving up a graph")
        return None

    def _captured(self, key: tuple[Key, Key], enqueue: Callable[[int], None]) -> CapturedGraph:
        cuda = api()
        shape, _ = key
        graph = self._capture(enqueue)
        try:
            executable = self._updated(graph, shape)
            if executable is None:
                executable = check(cuda.cuGraphInstantiate(graph, 0), "preparing a plan's graph")
        finally:
            check(cuda.cuGraphDestroy(graph), "giving up a captured graph")
        while len(self._graphs) >= self.limit:
            self._give_up(self._oldest(None))
        self._graphs[key] = CapturedGraph(executable, shape, self._launched)
        return self._graphs[key]

    def _capture(self, enqueue: Callable[[int], None]) -> Any:
        if self._stream is None:
            self._stream = new_stream()
        self.captures += 1
        return capture(self._stream, enqueue)


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
