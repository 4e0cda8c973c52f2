"""Tables on a GPU of the texts whose tokens change the logits of the next one: how often each was seen, and biases.

A text has a row of the tables while steps choose its tokens; steps count them there.  A row is given to another text
when neither the last step nor the next one has its text, which is then written again if it goes on.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from tilewright.llm.sampling import Draw, Sampler
from tilewright.runtime.cuda.memory import DeviceArray, DevicePart

_NOTHING = (0, 0.0, 0.0, 1.0)


class TokenCounts:
    """The tables; their first row is nobody's.  They are small until a text needs them."""

    def __init__(self, texts: int, vocabulary: int) -> None:
        self._texts, self._vocabulary = texts, vocabulary
        self.seen, self.biases = self._table(1, np.int32), self._table(1, np.float32)
        self._rows: dict[Sampler, int] = {}  # those of the last step are the last ones
        self._free: list[int] = []

    def _table(self, rows: int, dtype: type) -> DeviceArray:
        return DeviceArray.from_numpy(np.zeros(rows * self._vocabulary, dtype))

    def make_room(self) -> bool:
        """Have tables with a row for each text; whether they are new ones."""
        if self.seen.shape[0] > self._vocabulary:
            return False
        rows = self._texts + 1
        self.seen, self.biases = self._table(rows, np.int32), self._table(rows, np.float32)
        self._free = list(range(1, rows))
        return True

    def hold(self, draws: Sequence[Draw | None]) -> None:
        """Write the texts of a step to rows, where they have none; there is room for all."""
        wanted = [draw.history for draw in draws if draw is not None and draw.history is not None]
        for text in wanted:
            if text in self._rows:
                self._rows[text] = self._rows.pop(text)
        for text in wanted:
            if text not in self._rows:
                self._write(text)

    def numbers(self, draw: Draw) -> tuple[int, float, float, float]:
        """The row of a draw's text, and its penalties."""
        return _NOTHING if draw.history is None else (self._rows[draw.history], *draw.history.penalties)

    def _write(self, text: Sampler) -> None:
        """Give a text a row, which stays free if this fails."""
        seen, biases = text.tables(self._vocabulary)
        if not self._free:
            self._free.append(self._rows.pop(next(iter(self._rows))))
        row = self._free[-1]
        for table, values in ((self.seen, seen), (self.biases, biases)):
            begin = row * values.nbytes
            DevicePart(table, begin, values.shape, values.dtype).write(values)
        self._rows[text] = self._free.pop()
