"""Signals during long launches: Python's handlers are called, and one that raises ends the launch."""

from __future__ import annotations

import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import numpy as np
import pytest

import tilewright
import tilewright.language as tl
from tilewright import dtypes
from tilewright.build.builder import build
from tilewright.errors import ExecutionError
from tilewright.graph.build import GraphBuilder
from tilewright.settings import settings

pytestmark = pytest.mark.skipif(not hasattr(signal, "setitimer"), reason="the system has no timers that send signals")
INSTANCES, LONG, SHORT = 1024, 300_000, 3  # steps of an instance: all of LONG take a minute, of SHORT a millisecond


@tilewright.jit
def waves(x, out, n, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    value = tl.load(x + i)
    for _ in range(n):
        value = tl.sin(value) + 1
    tl.store(out + i, value)


def launch(steps: int) -> np.ndarray:
    x, out = np.zeros(INSTANCES * 16, np.float32), np.zeros(INSTANCES * 16, np.float32)
    try:
        waves[(INSTANCES,)](x, out, steps, BLOCK=16)
    finally:
        launched.append(out)
    return out


launched: list[np.ndarray] = []


@contextmanager
def alarm(handler: Callable[[int, object], object], number: int = signal.SIGALRM) -> Iterator[None]:
    """A signal in a moment, and what Python does then."""
    before = signal.signal(number, handler)
    main = threading.main_thread().ident
    assert main is not None
    timer = threading.Timer(0.15, lambda: signal.pthread_kill(main, number))
    timer.start()
    try:
        yield
    finally:
        timer.cancel()
        timer.join()
        signal.signal(number, before)


def times_out(number: int, frame: object) -> None:
    raise TimeoutError("enough")


@pytest.mark.parametrize("threads", [1, 2])
def test_a_handler_that_raises_ends_a_walk_of_planes(threads: int) -> None:
    """The steps of a recurrent layer, whose threads wait for each other; a further run is whole again."""
    b = GraphBuilder("walk")
    steps, hidden = b.symbol("steps"), 1024
    x = b.input("x", dtypes.float32, (steps, 1, 1, hidden))
    inputs = [x, b.constant(np.eye(hidden, dtype=np.float32)[None]), b.constant(np.zeros((1, 1, hidden), np.float32))]
    b.output(b.op("recurrent", inputs, cell="rnn", functions=("tanh",), reverse=(False,)), "y")
    with settings.scope(threads=2):
        engine = build(b.finish(), "cpu")
    assert [step.evidence["chosen"] for step in engine.plan.steps] == ["recurrent planes"]
    begun = time.monotonic()
    with alarm(times_out), pytest.raises(TimeoutError, match="enough"):
        engine.run({"x": np.zeros((30_000, 1, 1, hidden), np.float32)}, threads=threads)
    assert time.monotonic() - begun < 5
    short = np.ones((3, 1, 1, hidden), np.float32)
    assert np.ptp(engine.run({"x": short}, threads=threads)["y"], axis=-1).max() == 0


@pytest.mark.parametrize("threads", [1, 2, 4])
@pytest.mark.parametrize(
    ("number", "handler", "error"),
    [(signal.SIGINT, signal.default_int_handler, KeyboardInterrupt), (signal.SIGTERM, times_out, TimeoutError)],
    ids=["Ctrl-C", "another handler"],
)
def test_a_handler_that_raises_ends_a_launch(threads: int, number: int, handler: Callable, error: type) -> None:
    with settings.scope(threads=threads):
        launch(SHORT)
        begun = time.monotonic()
        with pytest.raises(error), alarm(handler, number):
            launch(LONG)
        assert time.monotonic() - begun < 10
        assert not launched[-1].all()  # instances were left out
        for _ in range(3):  # and the threads go on to work
            assert launch(SHORT).all()


@pytest.mark.parametrize("threads", [1, 2])
def test_a_handler_that_returns_changes_nothing(threads: int) -> None:
    seen: list[int] = []
    with settings.scope(threads=threads), alarm(lambda number, frame: seen.append(number)):
        deadline = time.monotonic() + 20
        while not seen and time.monotonic() < deadline:
            assert launch(2000).all()
    assert seen == [signal.SIGALRM]


def test_launches_of_other_threads_go_on() -> None:
    results: list[np.ndarray] = []
    with settings.scope(threads=1):
        launch(SHORT)
        other = threading.Thread(target=lambda: results.append(launch(10_000)))
        with pytest.raises(KeyboardInterrupt), alarm(signal.default_int_handler, signal.SIGINT):
            other.start()
            launch(LONG)
        other.join()
    assert results[0].all()


@pytest.mark.parametrize("threads", [1, 2])
def test_an_engine_ends_too_and_runs_again(threads: int) -> None:
    size = 2048
    builder = GraphBuilder("products")
    x = value = builder.input("x", dtypes.float32, (size, size))
    for _ in range(200):
        value = builder.op("matmul", [value, x])
        value = builder.op("tanh", [value])
    builder.output(value, "y")
    with settings.scope(threads=threads):
        engine = build(builder.finish())
        data = np.zeros((size, size), np.float32)
        with pytest.raises(KeyboardInterrupt), alarm(signal.default_int_handler, signal.SIGINT):
            engine.run({"x": data})
        begun = time.monotonic()
        with pytest.raises(KeyboardInterrupt), alarm(signal.default_int_handler, signal.SIGINT):
            engine.run({"x": data})
        assert time.monotonic() - begun < 5


@tilewright.jit
def never_ends(x, n):
    i = 1
    while i != 0:
        i = (i + 1) % n + 1
        tl.store(x + tl.program_id(0), i)


@tilewright.jit
def walks(value):
    while value != 1:
        value = (value + 1) % 5 + 2
    return value


@tilewright.jit
def never_ends_mapped(x, n):
    i = tl.arange(0, 4)
    tl.store(x + i, tl.map_elementwise(walks, tl.load(x + i)) + n)


@pytest.mark.slow(but_every=5)
@pytest.mark.parametrize("threads", [1, 2, 4])
@pytest.mark.parametrize("kernel", [never_ends, never_ends_mapped], ids=["a loop", "a mapped function"])
@pytest.mark.parametrize("checked", [False, True], ids=["", "bounds checked"])
def test_a_loop_without_end_is_interrupted(kernel: object, threads: int, checked: bool) -> None:
    x, compiled = np.zeros(16, np.int32), kernel.warmup  # type: ignore[attr-defined]
    with settings.scope(threads=threads, check_bounds=checked):
        compiled(x, 5, grid=(8,))
        for _ in range(2):
            begun = time.monotonic()
            with pytest.raises(KeyboardInterrupt), alarm(signal.default_int_handler, signal.SIGINT):
                kernel[(8,)](x, 5)  # type: ignore[index]
            assert time.monotonic() - begun < 10
            assert launch(SHORT).all()  # all threads of the team work again


@tilewright.jit
def counts_up(x, n):
    i = 0
    while i < n:
        i += 1
        tl.store(x + tl.program_id(0), i)


@pytest.mark.parametrize("threads", [1, 2])
def test_a_loop_goes_on_after_a_handler_that_launches(threads: int) -> None:
    x, inner = np.zeros(4, np.int32), np.zeros(4, np.int32)
    seen = []

    def launches(number: int, frame: object) -> None:
        counts_up[(4,)](inner, 10)
        seen.append(inner.tolist())

    with settings.scope(threads=threads):
        counts_up[(4,)](x, 10)
        with alarm(launches):
            deadline = time.monotonic() + 30
            while not seen and time.monotonic() < deadline:
                counts_up[(4,)](x, 100_000_000)
                assert x.tolist() == [100_000_000] * 4
    assert seen == [[10] * 4]


@tilewright.jit(debug=True)
def fails_or_never_ends(x, n):
    i = 1
    tl.device_assert(tl.program_id(0) != 1, "the second")
    while i != 0:
        i = (i + 1) % n + 1
    tl.store(x, i)


def test_a_failed_instance_ends_loops_of_others() -> None:
    with settings.scope(threads=2), pytest.raises(ExecutionError, match="the second"):
        fails_or_never_ends[(2,)](np.zeros(4, np.int32), 5)


def test_kernels_whose_loops_have_bounds_ask_for_nothing() -> None:
    x = np.zeros(16, np.float32)
    assert not waves.warmup(x, x, 3, BLOCK=16, grid=(1,)).binary.records
    assert never_ends.warmup(np.zeros(4, np.int32), 5, grid=(1,)).binary.asks


_PROGRAM = """
import signal
import sys
import numpy as np
import tilewright
from tests.host.test_loops import walk
from tests.host.test_runtime_signals import never_ends
from tilewright.settings import settings

signal.signal(signal.SIGINT, signal.default_int_handler)  # which a process in a shell's background inherits ignored
settings.threads = int(sys.argv[1])
x, engine = np.zeros(64, np.int32), walk()
if sys.argv[2] == "kernel":
    compiled = never_ends.warmup(x, 5, grid=(8,))
    run = lambda: compiled[(8,)](x, 5)
else:
    run = lambda: engine.run({"start": np.float32(2), "table": np.ones(20, np.float32)})
for _ in range(2):
    try:
        print("begins", flush=True)
        run()
    except KeyboardInterrupt:
        print("interrupted", flush=True)
"""


@pytest.mark.slow(but_every=3)
@pytest.mark.parametrize("threads", ["1", "2"])
@pytest.mark.parametrize("what", ["kernel", "engine"])
def test_a_process_is_interrupted_from_outside(what: str, threads: str) -> None:
    command = [sys.executable, "-c", _PROGRAM, threads, what]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        watch = threading.Timer(120, process.kill)  # reading ends then, too
        watch.start()
        try:
            for _ in range(2):
                assert process.stdout is not None and process.stdout.readline() == "begins\n"
                time.sleep(0.5)
                process.send_signal(signal.SIGINT)
                assert process.stdout.readline() == "interrupted\n"
            assert process.wait(30) == 0
        finally:
            watch.cancel()
            process.kill()
