"""Reductions over the last dimension or over a middle one."""
