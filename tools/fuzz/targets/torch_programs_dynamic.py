"""Random PyTorch programs at five sizes of one engine, 1 and the ends of the range among them, against PyTorch."""

from tools.fuzz.programs.modes import DynamicPrograms

TARGET = DynamicPrograms()
