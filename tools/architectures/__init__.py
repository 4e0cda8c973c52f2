"""Architectures of common libraries, built small with random weights, and what becomes of each in each way of use."""
