"""The parts of a row of the op table: effects, attributes, and the row itself. `ir.ops` has the rows."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import Any

from tilewright.ir.inference import Rule


class Effect(Enum):
    """What an operation does besides computing its results."""

    READ = "reads memory"
    WRITE = "writes memory"
    OBSERVE = "is seen by the user or orders memory (print, assert, barrier)"
    FACT = "states a fact; is kept, orders nothing"
    ALLOCATE = "gives memory of its own, each time another; may go when it is not used"


PURE: frozenset[Effect] = frozenset()
READ = frozenset({Effect.READ})
WRITE = frozenset({Effect.WRITE})
ATOMIC = frozenset({Effect.READ, Effect.WRITE})
OBSERVE = frozenset({Effect.OBSERVE})
FACT = frozenset({Effect.FACT})
ALLOCATE = frozenset({Effect.ALLOCATE})
SYNCHRONIZE = frozenset({Effect.READ, Effect.WRITE, Effect.OBSERVE})

REQUIRED = object()


@dataclass(frozen=True)
class AttributeInfo:
    """Kind of an attribute (see `ops.ATTRIBUTE_CHECKS`), its default, and the allowed values when they are few."""

    kind: str
    default: Any = REQUIRED
    choices: tuple[Any, ...] = ()


@dataclass(frozen=True)
class OpInfo:
    """One row of the table."""

    opcode: str
    summary: str
    operands: tuple[int, int | None]  # least and greatest number; None is any
    infer: Rule
    evaluate: Callable[..., Any] | None = None  # evaluate(*arrays, **attributes)
    attributes: Mapping[str, AttributeInfo] = field(default_factory=dict)
    effects: frozenset[Effect] = PURE
    regions: int | None = 0  # None: any number
    terminator: bool = False
    commutative: bool = False
    speculatable: bool = True  # may run though the program would not have reached it
    rearranges: bool = False  # the result has the operand's elements at other places, some of them several times
    broadcasts: bool = False  # it rearranges by a new axis, or by repeating along one: elements stay in their order
    elementwise: bool = False  # each element of the result comes from the operands' elements at its place
    cost: int = 1  # of an element, in additions: what an elementwise operation takes that is done once more
    section: str = ""
