"""The data structure of the Tile IR: values, operations, regions, functions.

Control flow is structured, so a region is one list of operations that ends in a terminator
(``yield``, ``condition`` or ``return``) and has arguments of its own; there are no branches.

    function   := name, region (its arguments are the kernel's parameters), parameter attributes
    region     := arguments: [value], operations: [operation]
    operation  := opcode, operands: [value], attributes: {name: attribute}, regions, results: [value], location
    attribute  := bool | int | float | str | DType | PointerType | tuple of attributes

Operations are not changed once built: a pass that has something to change builds a new function
(`ir.rewrite`), and a pass that has not returns the function it was given.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Union

from tilewright.dtypes import DType
from tilewright.ir.types import PointerType, TensorType

Attribute = Union[bool, int, float, str, DType, PointerType, tuple["Attribute", ...]]


@dataclass(frozen=True)
class Location:
    """A place in the user's source; `caller` is the call site when the code was inlined.

    `width` is how many columns of the line belong to it, for the caret of errors.
    """

    file: str
    line: int
    column: int = 0
    function: str = ""
    caller: Location | None = None
    width: int = field(default=1, compare=False)

    def __str__(self) -> str:
        return f"{self.file}:{self.line}:{self.column}"

    def __hash__(self) -> int:  # not of all callers in turn
        return hash((self.file, self.line, self.column))


@dataclass(eq=False, slots=True)
class SSAValue:
    """An SSA value: the result of an operation or an argument of a region. Compared by identity."""

    type: TensorType
    name: str = ""
    definition: Operation | None = field(default=None, repr=False)  # None for a region's argument


@dataclass(eq=False, slots=True)
class Region:
    """A list of operations ended by a terminator, with arguments."""

    arguments: list[SSAValue] = field(default_factory=list)
    operations: list[Operation] = field(default_factory=list)

    @property
    def terminator(self) -> Operation:
        return self.operations[-1]


@dataclass(eq=False, slots=True)
class Operation:
    """One operation; see `ir.ops` for the table of opcodes. Compared by identity."""

    opcode: str
    operands: list[SSAValue]
    result_types: list[TensorType]
    attributes: dict[str, Attribute] = field(default_factory=dict)
    regions: list[Region] = field(default_factory=list)
    location: Location | None = None
    results: list[SSAValue] = field(default_factory=list)

    def __post_init__(self) -> None:
        if not self.results:
            self.results = [SSAValue(result_type, definition=self) for result_type in self.result_types]

    @property
    def result(self) -> SSAValue:
        """The only result."""
        (value,) = self.results
        return value

    def walk(self) -> Iterator[Operation]:
        """This operation and all operations in its regions, in program order."""
        yield self
        for region in self.regions:
            for operation in region.operations:
                yield from operation.walk()


@dataclass(frozen=True)
class Parameter:
    """What is known of one kernel parameter besides its type.

    `divisibility` is a power of two known to divide the value (a pointer's address in bytes, or an
    integer); `alias_free` promises that no other pointer parameter reaches the same memory.
    """

    name: str
    divisibility: int = 1
    alias_free: bool = False


# How functions become text: `ir.printer` adds it, which knows the op table, which knows these classes.
_printers: list[Callable[[Function], str]] = []


def prints_functions(printer: Callable[[Function], str]) -> Callable[[Function], str]:
    """Let `str` of a function use this."""
    _printers.append(printer)
    return printer


@dataclass(eq=False)
class Function:
    """A kernel: `region.arguments` are its parameters (scalars), described by `parameters`."""

    name: str
    region: Region
    parameters: list[Parameter]
    attributes: dict[str, Attribute] = field(default_factory=dict)

    def __str__(self) -> str:
        """The kernel's text, without locations (`ir.printer`)."""
        return _printers[-1](self)

    def walk(self) -> Iterator[Operation]:
        """All operations in program order."""
        for operation in self.region.operations:
            yield from operation.walk()
