"""Models that the benchmarks run, with random weights."""
