"""Choosing among candidates by their times: what `tilewright.ops`, engines and `@autotune` have in common.

    labels, estimates -> the close candidates (`choosing`) -> times on record (`record`), or taken now (`timers`)

It knows callables, texts and keys; what a candidate computes is known to who asks.
"""
