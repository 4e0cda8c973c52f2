"""From a graph to an engine: kernels chosen, tuned and compiled, memory laid out, the plan written and compiled."""
