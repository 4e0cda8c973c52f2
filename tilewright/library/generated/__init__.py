"""Kernels and epilogues generated from expressions."""
