"""Random PyTorch programs under torch.compile over changing sizes, against PyTorch."""

from tools.fuzz.programs.modes import CompiledPrograms

TARGET = CompiledPrograms()
