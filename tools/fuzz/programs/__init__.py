"""Random PyTorch programs: how they are drawn, and what their results may differ by."""
