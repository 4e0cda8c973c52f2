"""Random ONNX programs with graphs inside, sequences, functions, quantized numbers and other domains, as `onnx_types`
compares them: a piece of the program is computed by ONNX Runtime as a whole, then the program here."""

from __future__ import annotations

from tools.fuzz.onnx_pieces import PIECES
from tools.fuzz.targets import onnx_types


class Program(onnx_types.Program):
    steps = PIECES


class Target(onnx_types.Target):
    program = Program


TARGET = Target()
