"""Kernels and epilogues made from expressions."""
