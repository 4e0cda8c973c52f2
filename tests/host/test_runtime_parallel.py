"""The runtime's linker, its providers of threads, and launches: with kernels written as LLVM text."""

import ctypes
import os
import struct
import subprocess
import sys
import threading
import time
from pathlib import Path

import llvmlite.binding as llvm
import numpy as np
import pytest

from tests.documents import blocks
from tests.host.handmade import compile_text
from tilewright.errors import SettingsError
from tilewright.runtime import glue as glue_module
from tilewright.runtime import parallel
from tilewright.runtime.glue import glue_text
from tilewright.runtime.launch import launch
from tilewright.runtime.library import load_objects, system_address
from tilewright.runtime.memory import BUFFER_ALIGNMENT, AlignedBuffer, BufferPool
from tilewright.settings import _cpu_quota, settings

# Adds 1 to x[i] for every instance i, through its scratch memory.
ADD_ONE = """
define void @add_one(ptr %arguments, ptr %scratch, i64 %begin, i64 %end) {
entry:
  %x = load ptr, ptr %arguments
  br label %loop
loop:
  %i = phi i64 [ %begin, %entry ], [ %next, %loop ]
  %p = getelementptr i64, ptr %x, i64 %i
  %old = load i64, ptr %p
  store volatile i64 %old, ptr %scratch
  %same = load volatile i64, ptr %scratch
  %new = add i64 %same, 1
  store i64 %new, ptr %p
  %next = add i64 %i, 1
  %more = icmp slt i64 %next, %end
  br i1 %more, label %loop, label %out
out:
  ret void
}
"""
EXPONENTIAL = """
declare float @expf(float)
define void @exponential(ptr %arguments, ptr %scratch, i64 %begin, i64 %end) {
  %x = load ptr, ptr %arguments
  %value = load float, ptr %x
  %result = call float @expf(float %value)
  store float %result, ptr %x
  ret void
}
"""


@pytest.fixture(scope="module")
def add_one():
    library = load_objects([compile_text(ADD_ONE)], ["add_one"])
    yield library.address("add_one")


ROOT = Path(__file__).resolve().parents[2]


def providers() -> list[str]:
    found = []
    for name in ("openmp", "libdispatch", "threads", "none"):
        try:
            parallel._find_provider(name)
        except ValueError:
            continue
        found.append(name)
    return found


def test_the_program_of_the_page():
    (block,) = [block for marker, block in blocks(ROOT / "docs" / "internals" / "runtime.md") if marker == "object"]
    space = {"image": compile_text(ADD_ONE)}
    exec(block, space)
    np.testing.assert_array_equal(space["x"], 1)


def test_objects_link_to_each_other_and_to_libm():
    caller = """
    declare void @exponential(ptr, ptr, i64, i64)
    define void @caller(ptr %arguments, ptr %scratch, i64 %begin, i64 %end) {
      call void @exponential(ptr %arguments, ptr %scratch, i64 %begin, i64 %end)
      ret void
    }"""
    library = load_objects([compile_text(caller), compile_text(EXPONENTIAL)], ["caller"])
    x = np.ones(1, np.float32)
    launch(library.address("caller"), struct.pack("<q", x.ctypes.data), (1, 1, 1))
    np.testing.assert_allclose(x, np.exp(1), rtol=1e-6)


def test_a_missing_symbol_is_named(capfd):
    image = compile_text("declare void @nowhere()\ndefine void @f() {\n call void @nowhere()\n ret void\n}")
    with pytest.raises(RuntimeError):
        load_objects([image], ["f"])
    assert "nowhere" in capfd.readouterr().err
    assert system_address("nowhere") is None
    assert system_address("expf")


def test_a_damaged_object_is_refused():
    with pytest.raises(RuntimeError):
        load_objects([compile_text(ADD_ONE)[:100]], ["add_one"])


@pytest.mark.parametrize("name", providers())
@pytest.mark.parametrize("threads", [1, 2, 5])
def test_every_instance_runs_once(add_one, name, threads):
    with settings.scope(parallel=name):
        for total in (1, 2, 7, 1000):
            x = np.arange(total)
            launch(add_one, struct.pack("<q", x.ctypes.data), (total, 1, 1), scratch_bytes=8, threads=threads)
            np.testing.assert_array_equal(x, np.arange(total) + 1)
        assert parallel.provider().name == name


def test_an_empty_grid_does_nothing(add_one):
    launch(add_one, struct.pack("<q", 0), (4, 0, 1))


@pytest.mark.parametrize("name", providers())
def test_launches_from_several_threads_do_not_meet(add_one, name):
    def work(x: np.ndarray) -> None:
        for _ in range(200):
            launch(add_one, struct.pack("<q", x.ctypes.data), (x.size, 1, 1), scratch_bytes=64, threads=2)

    arrays = [np.zeros(50 + index, np.int64) for index in range(4)]
    with settings.scope(parallel=name):
        threads = [threading.Thread(target=work, args=(x,)) for x in arrays]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(timeout=60)
            assert not thread.is_alive()
    for x in arrays:
        np.testing.assert_array_equal(x, 200)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="the system has no fork()")
def test_threads_that_ask_at_once_get_one_copy_of_the_functions(monkeypatch):
    """A second copy would be unloaded while threads of a team are inside it."""
    monkeypatch.setattr(glue_module, "_glue", None)
    found, together = [], threading.Barrier(4)

    def ask():
        together.wait()
        found.append(glue_module.glue())

    threads = [threading.Thread(target=ask) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(found) == 4 and all(entry is found[0] for entry in found)


@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded")
@pytest.mark.parametrize("name", providers())
def test_a_forked_child_can_launch(add_one, name):
    x = np.zeros(1000, np.int64)
    slots = struct.pack("<q", x.ctypes.data)
    with settings.scope(parallel=name):
        launch(add_one, slots, (1000, 1, 1), 8, threads=2)
        child = os.fork()
        if child == 0:
            launch(add_one, slots, (1000, 1, 1), 8, threads=2)
            launch(add_one, slots, (1000, 1, 1), 8, threads=2)
            os._exit(0 if (x == 3).all() else 1)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


@pytest.mark.parametrize(
    "files, cpus",
    [
        ({}, None),
        ({"cpu.max": "max 100000"}, None),
        ({"cpu.max": "250000 100000"}, 2),
        ({"cpu.max": "50000 100000"}, 1),
        ({"cpu/cpu.cfs_quota_us": "-1", "cpu/cpu.cfs_period_us": "100000"}, None),
        ({"cpu/cpu.cfs_quota_us": "400000", "cpu/cpu.cfs_period_us": "100000"}, 4),
        ({"cpu.max": "nonsense"}, None),
    ],
)
def test_a_container_limits_the_threads(tmp_path, files, cpus):
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text)
    assert _cpu_quota(tmp_path) == cpus


def test_a_number_of_workers_for_each_run(add_one):
    x = np.zeros(200, np.int64)
    with settings.scope(parallel="threads"):
        for threads in (4, 2, 3, 5, 2, 4) * 10:
            launch(add_one, struct.pack("<q", x.ctypes.data), (200, 1, 1), scratch_bytes=64, threads=threads)
    np.testing.assert_array_equal(x, 60)


def test_a_system_that_gives_no_threads_is_served(add_one, monkeypatch, caplog):
    def refuse(thread):
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(threading.Thread, "start", refuse)
    x = np.zeros(100, np.int64)
    with settings.scope(parallel="threads"):
        launch(add_one, struct.pack("<q", x.ctypes.data), (100, 1, 1), scratch_bytes=8, threads=7)
    np.testing.assert_array_equal(x, 1)
    assert "only 1 of 7 threads" in caplog.text


def _own_threads() -> int:
    return sum(thread.name.startswith("tilewright-") for thread in threading.enumerate())


def _wait_until(condition, seconds: float = 30.0) -> bool:
    end = time.monotonic() + seconds
    while not condition() and time.monotonic() < end:
        time.sleep(0.05)
    return bool(condition())


def test_idle_threads_end_and_come_back(add_one):
    """Whatever numbers of workers were asked for; a run after that is as good as the first."""
    x = np.zeros(200, np.int64)
    with settings.scope(parallel="threads"):
        for threads in range(2, 30):
            launch(add_one, struct.pack("<q", x.ctypes.data), (200, 1, 1), scratch_bytes=64, threads=threads)
        assert _own_threads() > 100
        assert _wait_until(lambda: _own_threads() == 0)
        for threads in (3, 29, 3):
            launch(add_one, struct.pack("<q", x.ctypes.data), (200, 1, 1), scratch_bytes=64, threads=threads)
        assert _own_threads() == 30
    np.testing.assert_array_equal(x, 31)


def test_threads_are_bounded(add_one):
    """Idle teams of other sizes are sent away for a new one."""
    x = np.zeros(64, np.int64)
    slots = struct.pack("<q", x.ctypes.data)
    provider = parallel.ThreadProvider()
    provider._MOST_THREADS = 100
    for count, workers in enumerate([2, 40, 3, 41, 42, 43, 60, 90, 44, 45, 101, 46]):
        provider.start(glue_module.glue().launch_body, context(add_one, slots, 64), *scratch(workers), workers)
        assert sum(size * teams for size, teams in provider._counts.items()) <= 100
        np.testing.assert_array_equal(x, count + 1)
    assert _wait_until(lambda: _own_threads() <= 100)


def context(function: int, slots: bytes, total: int) -> bytes:
    return struct.pack("<qq", function, total) + slots + struct.pack("<3q", total, 1, 1)


_SCRATCH = np.zeros(128 * 128, np.uint8)


def scratch(workers: int) -> tuple[int, int]:
    assert workers <= 128
    return _SCRATCH.ctypes.data, 128


def test_too_many_threads_are_refused(add_one):
    x = np.zeros(200_000, np.int64)
    with pytest.raises(SettingsError, match="at most 1024"):
        launch(add_one, struct.pack("<q", x.ctypes.data), (200_000, 1, 1), scratch_bytes=8, threads=100_000)
    assert not x.any()


@pytest.mark.skipif(not hasattr(os, "fork"), reason="the system has no fork()")
def test_a_limit_of_the_system_gives_fewer_threads():
    """A process that may create few threads runs with those, and says so once in a while, not at each run."""
    code = (
        "import resource, numpy as np\n"
        "from tests.host.handmade import make_engine\n"
        "from tilewright.settings import settings\n"
        "import threading\n"
        "settings.parallel = 'threads'\n"
        "threading.stack_size(1 << 30)\n"
        "used = int(open('/proc/self/statm').read().split()[0]) * 4096\n"
        "resource.setrlimit(resource.RLIMIT_AS, (used + (5 << 30), used + (5 << 30)))\n"
        "engine = make_engine()\n"
        "for _ in range(50):\n"
        "    engine.run({'x': np.ones((64, 8), np.float32), 'cache': np.zeros(4, np.int64)}, threads=64)\n"
    )
    environment = {**os.environ, "TILEWRIGHT_LOG": "warning"}
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT, env=environment)
    assert result.returncode == 0, result.stderr
    assert result.stderr.count(" of 64 threads") == 1


def test_a_process_may_end_at_any_time():
    code = (
        "import struct, numpy as np\n"
        "from tests.host.handmade import make_engine\n"
        "engine = make_engine()\n"
        "for _ in range(3):\n"
        "    engine.run({'x': np.ones((64, 8), np.float32), 'cache': np.zeros(4, np.int64)}, threads=3)\n"
    )
    for _ in range(5):
        result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT)
        assert result.returncode == 0, result.stderr


def test_an_unknown_provider_is_an_error():
    with settings.scope(parallel="carrier pigeon"), pytest.raises(ValueError, match="carrier pigeon"):
        parallel.provider()


@pytest.mark.parametrize("triple", ["x86_64-pc-windows-msvc", "aarch64-apple-darwin", "arm64-apple-darwin", "riscv64"])
def test_the_glue_is_valid_for_other_machines(triple):
    llvm.parse_assembly(glue_text(triple, can_yield=False, clock_id=None, can_ask=False)).verify()
    llvm.parse_assembly(glue_text(triple, can_yield=True, clock_id=6, can_ask=True)).verify()


def test_buffers_are_aligned_and_reused():
    pool = BufferPool(keep=1)
    with pool.borrow(100) as first:
        assert first.address % BUFFER_ALIGNMENT == 0
        with pool.borrow(100) as second:
            assert second.address != first.address
    with pool.borrow(80) as again:
        assert again in (first, second)
    with pool.borrow(200) as larger:
        assert larger.capacity == 200


def test_memory_holds_no_subnormal_numbers_at_first():
    used = [np.full(24, 0x5555, np.uint64) for _ in range(64)]  # what buffers of that size would find
    del used
    buffers = [AlignedBuffer(64) for _ in range(64)]
    assert not any(ctypes.string_at(buffer.address, buffer.capacity).strip(b"\0") for buffer in buffers)


def test_the_runtime_does_not_import_the_compiler():
    code = (
        "import sys, tilewright.runtime.launch\n"
        "bad = [name for name in sys.modules if name.startswith('tilewright.') and name.split('.')[1]\n"
        "       not in ('runtime', 'settings', 'errors', 'dtypes', 'symbolic', 'forks', 'host')]\n"
        "sys.exit(', '.join(bad) or 0)"
    )
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert result.returncode == 0, result.stderr
