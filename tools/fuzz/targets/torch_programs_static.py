"""Random PyTorch programs of fixed sizes against PyTorch."""

from tools.fuzz.programs.modes import Programs

TARGET = Programs()
