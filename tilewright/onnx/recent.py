"""What was compiled for the calls that came last."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Hashable
from typing import Generic, TypeVar

from tilewright import forks

MOST_ENGINES = 16  # of one model: compiling again costs less than memory for all that ever came

Key = TypeVar("Key", bound=Hashable)
Made = TypeVar("Made")


class RecentlyUsed(Generic[Key, Made]):
    """What is made once for each key and kept while it is among the last ones used. Several threads may call it."""

    def __init__(self) -> None:
        self._made: OrderedDict[Key, Made] = OrderedDict()
        self._lock = forks.lock()

    def get(self, key: Key, make: Callable[[], Made]) -> Made:
        """What `make` gave for a key; one thread makes it, others wait."""
        with self._lock:
            if key not in self._made:
                self._made[key] = make()
                if len(self._made) > MOST_ENGINES:
                    self._made.popitem(last=False)
            self._made.move_to_end(key)
            return self._made[key]

    def __contains__(self, key: object) -> bool:
        return key in self._made

    def __len__(self) -> int:
        return len(self._made)

    def clear(self) -> None:
        """Forget everything."""
        with self._lock:
            self._made.clear()
