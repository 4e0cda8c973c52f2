"""Properties that are computed once, however many threads ask first."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Generic, TypeVar, overload

from tilewright import forks

Value = TypeVar("Value")


class once(Generic[Value]):
    """Like `functools.cached_property`, for values of which there must be one: loaded machine code, sessions.

    `cached_property` has no lock since Python 3.12: of two threads that ask at once each makes a value, and the one
    that is replaced is freed while its address is in use.  Here the first thread makes the value and the others wait.
    Threads that ask other objects do not wait.  A failure leaves no value: the next one to ask tries again.
    """

    def __init__(self, make: Callable[[Any], Value]) -> None:
        self._make = make
        self._name = make.__name__
        self.__doc__ = make.__doc__

    @overload
    def __get__(self, instance: None, owner: type) -> once[Value]: ...

    @overload
    def __get__(self, instance: object, owner: type) -> Value: ...

    def __get__(self, instance: object | None, owner: type) -> once[Value] | Value:
        if instance is None:
            return self
        values, lock_name = vars(instance), f"{self._name} is being made"
        with values.setdefault(lock_name, forks.lock()):
            if self._name not in values:  # nobody was faster
                values[self._name] = self._make(instance)
            # Who took this lock finds the value from here on, and so does who makes a new one.
            values.pop(lock_name, None)
        value: Value = values[self._name]
        return value
