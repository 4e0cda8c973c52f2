"""Values that are made once, however many threads ask first: the property, and the code of kernels."""

from __future__ import annotations

import gc
import os
import signal
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest

import tilewright
import tilewright.language as tl
from tilewright.garbage import collector_paused
from tilewright.launch import cpu
from tilewright.once import once
from tilewright.runtime import library
from tilewright.targets.cpu.target import CPUTarget
from tilewright.targets.llvm import optimize

THREADS = 4


class Owner:
    def __init__(self) -> None:
        self.made: list[object] = []
        self.failures = 0

    @once
    def value(self) -> object:
        """What is made."""
        time.sleep(0.01)  # long enough for all threads to ask
        self.made.append(object())
        if self.failures:
            self.failures -= 1
            raise ValueError("it cannot be made")
        return self.made[-1]

    @once
    def twice(self) -> tuple[object, object]:
        return self.value, self.value


def ask_together(ask: Any) -> list[Any]:
    together = threading.Barrier(THREADS)

    def work(_: int) -> Any:
        together.wait()
        try:
            return ask()
        except ValueError as error:
            return error

    with ThreadPoolExecutor(THREADS) as pool:
        return list(pool.map(work, range(THREADS)))


def test_threads_that_ask_at_once_get_one_value() -> None:
    owner = Owner()
    found = ask_together(lambda: owner.twice)
    assert len(owner.made) == 1 and all(pair == (owner.made[0], owner.made[0]) for pair in found)
    assert vars(owner).keys() == {"made", "failures", "value", "twice"}  # no lock is left: objects can be pickled
    assert Owner.value.__doc__ == "What is made."


def test_after_a_failure_the_next_one_tries_again() -> None:
    owner = Owner()
    owner.failures = 2
    found = ask_together(lambda: owner.value)
    assert sum(isinstance(value, ValueError) for value in found) == 2
    assert len(owner.made) == 3 and {id(value) for value in found if not isinstance(value, ValueError)} == {
        id(owner.made[-1])
    }


@tilewright.jit
def double(x, out, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(out + i, tl.load(x + i) * 2)


def test_first_launches_from_several_threads_load_the_code_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """A second copy would be unloaded while a thread is about to run it."""
    loaded: list[object] = []
    load = cpu.load_kernels

    def slowly(*arguments: Any) -> Any:
        loaded.append(load(*arguments))
        time.sleep(0.01)
        return loaded[-1]

    monkeypatch.setattr(cpu, "load_kernels", slowly)
    kernel = tilewright.JITFunction(double.function)

    def launch() -> list[float]:
        x, out = np.arange(16, dtype=np.float32), np.zeros(16, np.float32)
        kernel[(2,)](x, out, BLOCK=8)
        return out.tolist()

    assert ask_together(launch) == [list(range(0, 32, 2))] * THREADS
    assert len(loaded) == 1


@pytest.mark.skipif(not hasattr(os, "fork"), reason="the system has no fork()")
def test_a_forked_child_waits_for_no_thread_that_did_not_come_along() -> None:
    entered, going_on = threading.Event(), threading.Event()

    class Slow:
        @once
        def value(self) -> int:
            if threading.current_thread() is not threading.main_thread():
                entered.set()
                going_on.wait(30)
            return 7

    def in_child(work: Any) -> bool:
        child = os.fork()
        if child == 0:
            signal.alarm(20)  # ends a child that waits for ever
            try:
                work()
                os._exit(0)
            finally:
                os._exit(1)
        return os.waitpid(child, 0)[1] == 0

    slow = Slow()
    maker = threading.Thread(target=lambda: slow.value)
    maker.start()
    assert entered.wait(30) and in_child(lambda: slow.value)
    going_on.set()
    maker.join()

    host = CPUTarget.host()
    options = optimize.MachineOptions(host.triple, host.cpu, "")
    text = "define i32 @seven() {\n  ret i32 7\n}\n"
    image = optimize.generate(text, options).image

    def use_llvm() -> None:
        optimize.generate(text, options)
        library._load_with_llvm([image], ["seven"], {})

    def many() -> None:
        while not stop.is_set():
            use_llvm()

    stop = threading.Event()
    user = threading.Thread(target=many)
    user.start()
    try:
        assert all(in_child(use_llvm) for _ in range(10))
    finally:
        stop.set()
        user.join()


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system has no fork")
def test_the_collector_is_paused_again_in_a_child_that_was_made_inside() -> None:
    with collector_paused:
        child = os.fork()
    if child == 0:
        with collector_paused:
            paused = not gc.isenabled()
        os._exit(0 if paused else 1)
    assert os.waitpid(child, 0)[1] == 0
