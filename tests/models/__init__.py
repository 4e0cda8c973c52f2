"""Models that the tests and the benchmarks share, written in plain PyTorch.

Each file gives a module and a function `specification(...) -> ModelSpecification`: the module in eval
mode, example inputs by name, dynamic shapes, and a generator of inputs for other sizes.
"""
