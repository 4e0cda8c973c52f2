"""Chooses among candidates by time, for `tilewright.ops`, engines and `@autotune`.

    labels, estimates -> the close candidates (`choosing`) -> times on record (`record`), or taken now (`timers`)

It knows callables, texts and keys; what a candidate computes is known to who asks.
"""
