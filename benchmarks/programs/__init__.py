"""Cases of `benchmarks/triton_programs.py`: kernels written for Triton, read from where packages are installed."""
