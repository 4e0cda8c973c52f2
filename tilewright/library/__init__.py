"""The library: a folder for each operation, with its kernels for each kind of machine, their configs and costs."""
