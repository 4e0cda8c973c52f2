"""Kernels on a GPU: `harness` times contestants in turns, every other module registers a family of cases."""
