"""A fuzzing target whose cases fail in every way there is."""

import os
import time

from tilewright.errors import InputError
from tools.fuzz.target import Base, Failed


class Target(Base):
    seconds = 1.0
    megabytes = 200

    def run(self, seed: int) -> str:
        if seed == 3:
            os.abort()
        if seed == 5:
            time.sleep(600)
        if seed == 6:
            time.sleep(3)  # longer than it may compute
        if seed == 15:
            while True:
                pass
        if seed == 7:
            self.block = b"x" * (400 << 20)
            time.sleep(1)
        if seed == 9:
            raise ValueError("not one of ours")
        if seed == 11:
            raise Failed("wrong", "2 is 3")
        if seed == 13:
            raise InputError("refused")
        return "right"


TARGET = Target()
