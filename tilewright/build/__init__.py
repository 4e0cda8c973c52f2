"""Builds an engine from a graph: choose, tune and compile kernels, lay out memory, write and compile the plan."""
