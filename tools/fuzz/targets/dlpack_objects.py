"""DLPack records written by hand, right and wrong: read as they are or refused, and given back exactly once."""

from __future__ import annotations

import ctypes
import gc
import math
import random
from typing import Any

import numpy as np

from tilewright.errors import TilewrightError
from tilewright.runtime import dlpack, tensors
from tools.fuzz.target import Base, Failed

COMPARED = 1 << 20  # elements of an array that is looked through
BYTES = 4096
_new = ctypes.pythonapi.PyCapsule_New
_new.restype, _new.argtypes = ctypes.py_object, [ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p]
_NAMES = (b"used_dltensor", b"used_dltensor_versioned", b"tensor", b"", None)
_TYPES = (
    (2, 32),
    (2, 32),
    (2, 64),
    (2, 16),
    (0, 8),
    (0, 64),
    (1, 8),
    (4, 16),
    (6, 8),
    (10, 8),
    (12, 8),
    (5, 64),
    (9, 9),
)
_EXTENTS = (0, 1, 2, 3, 4, 8, -1, -(2**63), 2**62, 2**63 - 1)
_STRIDES = (0, 1, 2, 8, -1, 2**62, -(2**63), 2**60)


class Exporter:
    """What ``__dlpack__`` gives for one case; `released` counts the calls of the deleter."""

    def __init__(self, chance: random.Random) -> None:
        self.memory = (ctypes.c_uint8 * (3 * BYTES))(*[number % 251 for number in range(3 * BYTES)])
        self.released = self.exported = 0
        self.deleter = ctypes.CFUNCTYPE(None, ctypes.c_void_p)(self._release)
        versioned = chance.random() < 0.6
        self.record = (dlpack._Versioned if versioned else dlpack._Managed)()
        self.name = b"dltensor_versioned" if versioned else b"dltensor"
        odd = chance.random() < 0.5  # one field or more that no exporter should write
        if versioned:
            self.record.major, self.record.minor = (chance.choice((0, 1, 2, 2**32 - 1)) if odd else 1), 0
            self.record.flags = chance.choice((0, 0, 1, 2, 3, 2**63)) if odd else chance.choice((0, 0, 1))
        if chance.random() < 0.9:
            self.record.deleter = ctypes.cast(self.deleter, ctypes.c_void_p).value
        self._fill(chance, odd)
        if odd and chance.random() < 0.15:
            self.name = chance.choice(_NAMES)
        self.raises = chance.choice((KeyError, BufferError, OSError)) if chance.random() < 0.05 else None
        self.wrong = chance.random() < 0.05
        self.old = chance.random() < 0.3

    def _fill(self, chance: random.Random, odd: bool) -> None:
        tensor = self.record.tensor
        rank = chance.randrange(4)
        self.extents = [chance.choice((0, 1, 2, 3, 4, 8)) for _ in range(rank)]
        self.strides = [chance.choice((0, 1, 2, 8, -1)) for _ in range(rank)] if chance.random() < 0.5 else None
        if odd and rank and chance.random() < 0.4:
            self.extents[chance.randrange(rank)] = chance.choice(_EXTENTS)
            # An extent that the memory does not have is seen only where no memory at all has it.
        if odd and rank and self.strides and chance.random() < 0.4:
            self.strides[chance.randrange(rank)] = chance.choice(_STRIDES)
        tensor.code, tensor.bits = chance.choice(_TYPES)
        tensor.lanes = chance.choice((0, 1, 2, 65535)) if odd and chance.random() < 0.2 else 1
        tensor.device_type = chance.choice((0, 1, 2, 3, 7, 13, -1)) if odd and chance.random() < 0.2 else 1
        tensor.data = ctypes.addressof(self.memory) + BYTES
        tensor.byte_offset = chance.choice((0, 0, 8, 3))
        if odd and chance.random() < 0.1:
            tensor.data = chance.choice((0, 1, 8, 2**64 - 8))
        tensor.ndim = rank
        self.shape = (ctypes.c_int64 * max(1, rank))(*self.extents)
        self.steps = (ctypes.c_int64 * max(1, rank))(*(self.strides or ()))
        tensor.shape = None if odd and chance.random() < 0.1 else self.shape
        tensor.strides = self.steps if self.strides is not None else None
        if odd and chance.random() < 0.15:
            tensor.ndim = chance.choice((-1, -(2**31), 65, 1000, 2**31 - 1))

    def _release(self, record: int) -> None:
        self.released += 1

    def __dlpack__(self, **options: Any) -> Any:
        if self.old and options:
            raise TypeError("unexpected keywords")
        if self.raises is not None:
            raise self.raises("no")
        if self.wrong:
            return (None, 3, object(), "dltensor")[len(self.extents)]
        self.exported += 1
        return _new(ctypes.addressof(self.record), self.name, None)

    def __dlpack_device__(self) -> tuple[int, int]:
        return self.record.tensor.device_type, 0

    @property
    def expected(self) -> np.ndarray:
        """The array that a right record describes, read from the memory."""
        tensor = self.record.tensor
        size = tensor.bits // 8
        whole = np.frombuffer(self.memory, np.uint8)
        start = BYTES + tensor.byte_offset
        strides = self.strides if self.strides is not None else dlpack.packed(tuple(self.extents))
        if 0 in self.extents:
            return whole[:0]
        indices = np.zeros(self.extents, np.int64)
        for axis, stride in enumerate(strides):
            along = np.arange(self.extents[axis]) * stride * size
            indices += along.reshape([-1 if other == axis else 1 for other in range(len(strides))])
        return np.stack([whole[start + indices + byte] for byte in range(size)], -1)


class Target(Base):
    def run(self, seed: int) -> str:
        chance = random.Random(seed)
        exporter = Exporter(chance)
        before = bytes(exporter.memory)
        try:
            label = self._read(exporter, chance)
        except TilewrightError as error:
            label = f"refused: {type(error).__name__}"
            error.__traceback__ = None
            for other in (error.__cause__, error.__context__):
                if other is not None:
                    other.__traceback__ = None
        if bytes(exporter.memory) != before:
            raise Failed("changed", "reading changed the memory")
        if exporter.released > 1:
            gc.collect()
        if exporter.released > exporter.exported:
            raise Failed("wrong", f"given back {exporter.released} times", "released")
        if label == "right" and exporter.record.deleter and exporter.released != exporter.exported:
            raise Failed("wrong", f"taken {exporter.exported} times, given back {exporter.released}", "kept")
        return label

    def _read(self, exporter: Exporter, chance: random.Random) -> str:
        if chance.random() < 0.3:
            found = tensors.view(exporter, "x", "float32")
            assert found.dtype == "float32"
            array = found.owner
        else:
            array = dlpack.as_numpy(exporter)
        if math.prod(exporter.extents) > COMPARED:  # strides of 0 make long arrays of little memory
            return "not compared"
        expected = exporter.expected
        given = np.ascontiguousarray(array)
        if given.tobytes() != expected.tobytes():
            raise Failed("wrong", f"{given!r} instead of {expected!r}", "values")
        return "right"


TARGET = Target()
