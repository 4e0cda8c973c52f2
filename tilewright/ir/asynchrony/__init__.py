"""The interpreter of explicit kernels: roles as coroutines, copies and products as events in an adverse order.

    run_explicit(function, values, extents, memory, order=7)

One cluster of CTAs runs at a time; in it, each copy of each role is an agent (`agents.py`) that the machine
(`machine.py`) lets run for a while, in an order drawn from `order`.  Copies in bulk and products are events: they read
and write at a random time between their issue and the wait that ends them.  Whether that can do harm is not left to
the draw: every access to shared memory (`memory.py`) is checked against those that it is not ordered after.  An access
is a bit; what an agent knows to be over is a set of bits, which barriers (`synchronisation.py`) pass on from those who
arrive to those who wait.  So a race is found in any order in which both accesses happen.

Findings are `ExecutionError`s: what (race, use before wait, wrong phase, …), where, in which role, and what to do.
"""

from tilewright.ir.asynchrony.machine import run_explicit

__all__ = ["run_explicit"]
