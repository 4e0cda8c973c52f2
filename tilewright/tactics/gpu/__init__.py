"""Tactics of groups whose kernels on a GPU are not those of the CPU."""
