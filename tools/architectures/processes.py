"""Trials in copies of this process, which has imported and tried everything that they have in common.

A trial may crash, hang or take all memory: that ends its own process, and is its outcome.
"""

from __future__ import annotations

import gc
import importlib.util
import multiprocessing
import os
import resource
import signal
import time
from typing import Any

import torch

from tools.architectures.entry import Entry, Inputs, images
from tools.architectures.trial import Outcome, attempt

CLOCK = 30  # times the limit of CPU time: longer by the clock is a hang; a busy machine makes none
MEMORY = 8 << 30  # bytes that a trial may add
WARMING = ("static", "dynamic", "compile")


def warm() -> None:
    """Try small modules here, so that the copies have what every trial imports, and what is made at first use."""
    torch.set_num_threads(1)  # a copy has no threads but its own
    for entry in _common():
        for way in WARMING:
            attempt(entry, way)
    torch._dynamo.reset()
    gc.collect()
    gc.freeze()  # what is there stays, and need not be looked through in each copy


def _common() -> list[Entry]:
    def convolution() -> tuple[torch.nn.Module, Inputs]:
        layers = torch.nn.Conv2d(3, 4, 3), torch.nn.BatchNorm2d(4), torch.nn.ReLU(), torch.nn.Flatten()
        return torch.nn.Sequential(*layers, torch.nn.Linear(4, 4)), lambda batch: {"input": images(batch, 3)}

    found = [Entry("common layers", "torch", convolution)]
    if importlib.util.find_spec("transformers"):
        from tools.architectures.entries import text

        found += [entry for entry in text.ENTRIES if entry.name == "BertModel"]
    return found


def outcome(entry: Entry, way: str, limit: float) -> Outcome:
    """What comes of one trial in a process of its own, of `limit` seconds of CPU time, and the times it took."""
    context = multiprocessing.get_context("fork")
    receiver, sender = context.Pipe(duplex=False)
    start = time.monotonic()
    process = context.Process(target=_child, args=(entry, way, limit, sender))
    before = _seconds()
    process.start()
    sender.close()
    found: Outcome = {"outcome": "timeout", "reason": f"more than {CLOCK * limit:.0f} s by the clock"}
    try:
        if receiver.poll(CLOCK * limit):
            found = receiver.recv()
    except EOFError:
        process.join()
        found = _ended(process.exitcode, limit)
    if found["outcome"] == "timeout":
        process.kill()
    process.join()
    took = {"seconds": round(_seconds() - before, 1), "clock": round(time.monotonic() - start, 1)}
    return {**found, **took, "torch": torch.__version__.partition("+")[0]}


def _ended(code: int | None, limit: float) -> Outcome:
    if code == -signal.SIGXCPU:
        return {"outcome": "timeout", "reason": f"more than {limit:.0f} s"}
    return {"outcome": "crash", "reason": f"the process ended with {code}"}


def _seconds() -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def _child(entry: Entry, way: str, limit: float, sender: Any) -> None:
    resource.setrlimit(resource.RLIMIT_CPU, (int(limit) + 1, int(limit) + 10))
    resource.setrlimit(resource.RLIMIT_DATA, (_data() + MEMORY, -1))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    sender.send(attempt(entry, way))
    sender.close()
    os._exit(0)  # nothing that the parent had is the child's to end


def _data() -> int:
    """Bytes of this process's private memory."""
    with open("/proc/self/status") as lines:
        return next(int(line.split()[1]) << 10 for line in lines if line.startswith("VmData:"))
