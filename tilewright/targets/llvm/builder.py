"""A small builder of LLVM IR text: typed values, blocks, structured loops, vectors.

A `Module` collects declarations and finished functions and prints them.  A `LLVMBuilder` writes one
function.  It keeps its basic blocks as objects, so code can be added to an earlier block (a loop's
preheader, the entry) at any time:

    module = Module()
    builder = LLVMBuilder(module, "sum", "float", [("ptr", "data", "noalias"), ("i64", "count", "")])
    data, count = builder.arguments
    with builder.loop(builder.integer(0), count, 1, [builder.constant("float", 0.0)]) as loop:
        element = builder.load("float", builder.gep(data, loop.index, "float"))
        loop.next([builder.binary("fadd", loop.values[0], element)])
    builder.ret(loop.results[0])
    builder.finish()

Types are LLVM's own text (``i64``, ``float``, ``<16 x float>``, ``ptr``).  Arithmetic on integer
constants is folded on the way, which keeps the text small.
"""

from __future__ import annotations

import re
import struct
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field

import ml_dtypes
import numpy as np

from tilewright.targets.llvm.debug import DebugLines, SourcePlace

_FLOAT_TYPES = {"half": 16, "bfloat": 16, "float": 32, "double": 64}
_INTEGER_FOLDS = {"add": lambda a, b: a + b, "sub": lambda a, b: a - b, "mul": lambda a, b: a * b}


@dataclass(frozen=True)
class LLVMValue:
    """A value: its LLVM type and the text that names it (``%12``, ``5``, ``0x3FF0000000000000``)."""

    type: str
    text: str

    def __str__(self) -> str:
        return f"{self.type} {self.text}"

    @property
    def is_vector(self) -> bool:
        return self.type.startswith("<")

    @property
    def lanes(self) -> int:
        """Number of vector lanes; 1 for a scalar."""
        return lane_count(self.type)

    @property
    def element(self) -> str:
        """The lane type; the type itself for a scalar."""
        return element_type(self.type)

    @property
    def is_float(self) -> bool:
        return self.element in _FLOAT_TYPES

    @property
    def constant(self) -> int | None:
        """The value of an integer literal, else None."""
        if self.element.startswith("i") and self.text.lstrip("-").isdigit():
            return int(self.text)
        return None

    @property
    def truth(self) -> bool | None:
        """The value of a truth literal, else None."""
        return {"true": True, "false": False}.get(self.text) if self.type == "i1" else None

    @property
    def float_constant(self) -> float | None:
        """The value of a float32 literal, in a vector of all lanes, else None."""
        text = self.text.removeprefix("splat (float ").removesuffix(")")
        if self.element != "float" or not text.startswith("0x"):
            return None
        value: float = struct.unpack("<d", int(text, 16).to_bytes(8, "little"))[0]
        return value


def vector_type(element: str, lanes: int) -> str:
    """``<lanes x element>``, or `element` itself for one lane."""
    return element if lanes == 1 else f"<{lanes} x {element}>"


def element_type(type_text: str) -> str:
    return type_text[1:-1].split(" x ", 1)[1] if type_text.startswith("<") else type_text


def lane_count(type_text: str) -> int:
    return int(type_text[1:-1].split(" x ", 1)[0]) if type_text.startswith("<") else 1


def suffix(type_text: str) -> str:
    """The mangled form in an overloaded intrinsic's name: ``<16 x float>`` -> ``v16f32``."""
    if type_text.startswith("<"):
        return f"v{lane_count(type_text)}{suffix(element_type(type_text))}"
    names = {"half": "f16", "bfloat": "bf16", "float": "f32", "double": "f64", "ptr": "p0"}
    return names.get(type_text, type_text)


def literal(type_text: str, number: float | int | bool) -> str:
    """The text of a scalar constant of a scalar type."""
    if type_text == "i1":
        return "true" if number else "false"
    if type_text.startswith("i"):
        return str(int(number))
    if type_text == "double":
        return f"0x{struct.unpack('<Q', struct.pack('<d', float(number)))[0]:016X}"
    if type_text == "float":  # LLVM writes float constants as the double of equal value
        with np.errstate(over="ignore"):
            rounded = float(np.float32(number))
        return f"0x{struct.unpack('<Q', struct.pack('<d', rounded))[0]:016X}"
    narrow = np.float16 if type_text == "half" else ml_dtypes.bfloat16
    with np.errstate(over="ignore"):
        bits = int(np.array(number, dtype=narrow).view(np.uint16))
    return f"0x{'H' if type_text == 'half' else 'R'}{bits:04X}"


@dataclass
class Block:
    """A basic block: lines, then one terminator line once it is closed."""

    label: str
    lines: list[str] = field(default_factory=list)
    terminator: str | None = None
    phis: list[str] = field(default_factory=list)
    following: Block | None = None  # the next one in the function's text


class Module:
    """Declarations, globals and functions of one LLVM module; `text` prints it."""

    def __init__(self, header: str = "", features: frozenset[str] = frozenset()) -> None:
        """`features` are the target's, for code that has a better form with some of them."""
        self.features = features
        self.header = header  # e.g. target triple and data layout lines
        self._declarations: dict[str, str] = {}
        self._globals: dict[str, str] = {}
        self._metadata: dict[str, int] = {}
        self._metadata_nodes: list[str] = []
        self._named_metadata: dict[str, list[str]] = {}
        self.functions: list[str] = []
        self.defined: set[str] = set()  # names of the functions that are or are being written

    def declare(self, name: str, return_type: str, parameters: Sequence[str], attributes: str = "") -> None:
        """Declare an external function or intrinsic once."""
        self._declarations.setdefault(
            name, f"declare {return_type} @{name}({', '.join(parameters)}) {attributes}".rstrip()
        )

    def string(self, text: str) -> LLVMValue:
        """A pointer to a private zero-terminated constant string."""
        data = text.encode() + b"\0"
        escaped = "".join(chr(byte) if 32 <= byte < 127 and byte not in (34, 92) else f"\\{byte:02X}" for byte in data)
        return self.constant_array(f'[{len(data)} x i8] c"{escaped}"', "text")

    def constant_array(self, initializer: str, hint: str = "table", align: int = 0) -> LLVMValue:
        """A pointer to a private constant; `initializer` is typed text; equal ones are shared."""
        key = f"{initializer}, align {align}" if align else initializer
        if key not in self._globals:
            self._globals[key] = f"@.{hint}.{len(self._globals)}"
        return LLVMValue("ptr", self._globals[key])

    def metadata(self, node: str) -> str:
        """The number (``!3``) of a metadata node such as ``!{!"llvm.loop.unroll.disable"}``; equal nodes are shared."""
        if node not in self._metadata:
            self._metadata[node] = len(self._metadata_nodes)
            self._metadata_nodes.append(node)
        return f"!{self._metadata[node]}"

    def distinct_metadata(self, template: str) -> str:
        """A distinct node; ``{self}`` in the template is its own number (as loop metadata needs)."""
        number = len(self._metadata_nodes)
        self._metadata_nodes.append("distinct " + template.replace("{self}", f"!{number}"))
        return f"!{number}"

    def named_metadata(self, name: str, node: str) -> None:
        """Add a node (``!3``) to the list of a name such as ``llvm.dbg.cu``, once."""
        nodes = self._named_metadata.setdefault(name, [])
        if node not in nodes:
            nodes.append(node)

    @property
    def text(self) -> str:
        parts = [self.header] if self.header else []
        parts += [f"{name} = private unnamed_addr constant {key}" for key, name in self._globals.items()]
        defined = "\n".join(line for text in self.functions for line in text.splitlines() if line.startswith("define "))
        parts += self.functions
        parts += [text for name, text in self._declarations.items() if f" @{name}(" not in defined]
        parts += [f"!{name} = !{{{', '.join(nodes)}}}" for name, nodes in self._named_metadata.items()]
        parts += [f"!{number} = {node}" for number, node in enumerate(self._metadata_nodes)]
        return "\n".join(parts) + "\n"


class Loop:
    """A loop being built: `index`, `values` (carried, inside), `results` (after).

    `guard` is the block before the loop, which runs even when the loop does not; `preheader` only when it does.
    """

    def __init__(self, index: LLVMValue, values: list[LLVMValue], guard: Block, preheader: Block, body: Block) -> None:
        self.index = index
        self.values = values
        self.guard = guard
        self.preheader = preheader
        self.body = body
        self.results: list[LLVMValue] = []
        self.yielded: list[LLVMValue] | None = None

    def next(self, values: Sequence[LLVMValue]) -> None:
        """Give the carried values of the next iteration; call once, last in the body."""
        self.yielded = list(values)


class LLVMBuilder:
    """Writes one function; see the module's docstring. `arguments` are its parameters as values."""

    def __init__(
        self,
        module: Module,
        name: str,
        return_type: str,
        parameters: Sequence[tuple[str, str, str]],
        *,
        linkage: str = "",
        attributes: str = "nounwind",
    ) -> None:
        """`parameters` are (type, name, attribute text); `attributes` go on the function."""
        self.module = module
        module.defined.add(name)
        self.name = name
        self.return_type = return_type
        self.parameters = list(parameters)
        self.linkage = linkage
        self.attributes = attributes
        self.debug: DebugLines | None = None  # set it to keep source lines
        self._line_note = ""  # of the place that instructions come from
        self.float_flags = ""  # fast-math flags of every floating-point operation, e.g. "contract"
        self.arguments = [LLVMValue(type_text, f"%{argument}") for type_text, argument, _ in parameters]
        self._names: dict[str, int] = {}
        self._counter = 0
        self.entry = Block("entry")
        self.block = self.entry

    # -- Blocks ---------------------------------------------------------------------------------

    def new_block(self, hint: str = "block") -> Block:
        """A new block, not yet placed; `start` places it."""
        number = self._names.get(hint, 0)
        self._names[hint] = number + 1
        return Block(f"{hint}.{number}")

    def start(self, block: Block) -> None:
        """Place `block` after the current one and emit into it."""
        block.following, self.block.following = self.block.following, block
        self.block = block

    def branch(self, block: Block) -> None:
        self._terminate(f"br label %{block.label}")

    def branch_if(
        self, condition: LLVMValue, then: Block, otherwise: Block, weights: tuple[int, int] | None = None
    ) -> None:
        """Conditional branch; `weights` is how often each side is taken, as a hint."""
        note = ""
        if weights:
            listed = ", ".join(f"i32 {weight}" for weight in weights)
            node = '!{!"branch_weights", ' + listed + "}"
            note = f", !prof {self.module.metadata(node)}"
        self._terminate(f"br i1 {condition.text}, label %{then.label}, label %{otherwise.label}{note}")

    def switch(self, value: LLVMValue, default: Block, cases: Sequence[tuple[int, Block]]) -> None:
        listed = " ".join(f"{value.type} {number}, label %{block.label}" for number, block in cases)
        self._terminate(f"switch {value}, label %{default.label} [ {listed} ]")

    def ret(self, value: LLVMValue | None = None) -> None:
        self._terminate("ret void" if value is None else f"ret {value}")

    def unreachable(self) -> None:
        self._terminate("unreachable")

    def _terminate(self, text: str) -> None:
        assert self.block.terminator is None, f"block {self.block.label} is already closed"
        self.block.terminator = text

    @contextmanager
    def at(self, block: Block) -> Iterator[None]:
        """Emit at the end of an existing block (before its terminator) for a while."""
        saved, self.block = self.block, block
        try:
            yield
        finally:
            self.block = saved

    # -- Instructions ---------------------------------------------------------------------------

    def emit(self, text: str, type_text: str) -> LLVMValue:
        """Add ``%n = text`` and return %n of `type_text`."""
        value = LLVMValue(type_text, f"%v{self._counter}")
        self._counter += 1
        self.block.lines.append(f"{value.text} = {text}{self._line_note}")
        return value

    def line(self, text: str) -> None:
        """Add an instruction without a result."""
        self.block.lines.append(text + self._line_note)

    def locate(self, place: SourcePlace | None) -> None:
        """Where in the source the instructions from now on come from; forgotten unless `debug` is set."""
        if self.debug is not None:
            self._line_note = "" if place is None else self.debug.note(place)

    def phi(self, block: Block, type_text: str, incoming: Sequence[tuple[LLVMValue, Block]]) -> LLVMValue:
        value = LLVMValue(type_text, f"%v{self._counter}")
        self._counter += 1
        pairs = ", ".join(f"[ {source.text}, %{origin.label} ]" for source, origin in incoming)
        block.phis.append(f"{value.text} = phi {type_text} {pairs}")
        return value

    def fill_phi(self, block: Block, value: LLVMValue, incoming: Sequence[tuple[LLVMValue, Block]]) -> None:
        """Define a reserved value as a phi of `block`."""
        pairs = ", ".join(f"[ {source.text}, %{origin.label} ]" for source, origin in incoming)
        block.phis.append(f"{value.text} = phi {value.type} {pairs}")

    def constant(self, type_text: str, number: float | int | bool) -> LLVMValue:
        """A constant; for a vector type, all lanes equal."""
        text = literal(element_type(type_text), number)
        return LLVMValue(
            type_text, text if not type_text.startswith("<") else f"splat ({element_type(type_text)} {text})"
        )

    def integer(self, number: int, type_text: str = "i64") -> LLVMValue:
        return LLVMValue(type_text, str(number))

    def lane_numbers(self, lanes: int, element: str = "i64") -> LLVMValue:
        """The constant vector 0, 1, …"""
        return LLVMValue(f"<{lanes} x {element}>", f"<{', '.join(f'{element} {lane}' for lane in range(lanes))}>")

    def zero(self, type_text: str) -> LLVMValue:
        return LLVMValue(
            type_text,
            "zeroinitializer" if type_text.startswith("<") else literal(type_text, 0) if type_text != "ptr" else "null",
        )

    def poison(self, type_text: str) -> LLVMValue:
        return LLVMValue(type_text, "poison")

    def binary(self, operator: str, left: LLVMValue, right: LLVMValue, flags: str = "") -> LLVMValue:
        """An LLVM binary instruction (``add``, ``fmul``, ``shl`` …); constants of integers and truth values are
        folded."""
        assert left.type == right.type, f"{operator}: {left} and {right}"
        if left.type == "i1" and (known := _folded_truth(operator, left, right)) is not None:
            return known
        if operator in _INTEGER_FOLDS and not left.is_vector:
            folded = self._fold(operator, left, right)
            if folded is not None:
                return folded
        if operator[0] == "f" and not flags:
            flags = self.float_flags
        return self.emit(f"{operator} {flags + ' ' if flags else ''}{left}, {right.text}", left.type)

    def _fold(self, operator: str, left: LLVMValue, right: LLVMValue) -> LLVMValue | None:
        a, b = left.constant, right.constant
        if a is not None and b is not None and left.type == "i64":
            return LLVMValue(left.type, str(_INTEGER_FOLDS[operator](a, b)))
        if b == 0:
            return left if operator != "mul" else right
        if a == 0 and operator != "sub":
            return right if operator == "add" else left
        if operator == "mul" and (a == 1 or b == 1):
            return right if a == 1 else left
        return None

    def add(self, left: LLVMValue, right: LLVMValue | int) -> LLVMValue:
        return self.binary("add", left, self._same(right, left))

    def subtract(self, left: LLVMValue, right: LLVMValue | int) -> LLVMValue:
        return self.binary("sub", left, self._same(right, left))

    def multiply(self, left: LLVMValue, right: LLVMValue | int) -> LLVMValue:
        return self.binary("mul", left, self._same(right, left))

    def minimum(self, left: LLVMValue, right: LLVMValue | int) -> LLVMValue:
        """Signed integer minimum."""
        return self._extremum("smin", left, self._same(right, left))

    def maximum(self, left: LLVMValue, right: LLVMValue | int) -> LLVMValue:
        """Signed integer maximum."""
        return self._extremum("smax", left, self._same(right, left))

    def _extremum(self, name: str, left: LLVMValue, right: LLVMValue) -> LLVMValue:
        a, b = left.constant, right.constant
        if a is not None and b is not None and not left.is_vector:
            return LLVMValue(left.type, str(min(a, b) if name == "smin" else max(a, b)))
        return self.intrinsic(name, [left, right])

    def _same(self, value: LLVMValue | int, like: LLVMValue) -> LLVMValue:
        return self.constant(like.type, value) if isinstance(value, int) else value

    def negate(self, value: LLVMValue) -> LLVMValue:
        flags = f"{self.float_flags} " if self.float_flags else ""
        if not value.is_float:
            return self.binary("sub", self.zero(value.type), value)
        return self.emit(f"fneg {flags}{value}", value.type)

    def inverse(self, value: LLVMValue) -> LLVMValue:
        """An integer with all its bits inverted; where a condition does not hold."""
        return self.binary("xor", value, self.constant(value.type, -1))

    def compare(self, predicate: str, left: LLVMValue, right: LLVMValue | int) -> LLVMValue:
        """``icmp`` or ``fcmp`` by the operands' type; the predicate is LLVM's (``slt``, ``olt`` …)."""
        right = self._same(right, left)
        assert left.type == right.type, f"compare: {left} and {right}"
        opcode = "fcmp" if left.is_float else "icmp"
        return self.emit(f"{opcode} {predicate} {left}, {right.text}", vector_type("i1", left.lanes))

    def select(self, condition: LLVMValue, then: LLVMValue, otherwise: LLVMValue) -> LLVMValue:
        return self.emit(f"select {condition}, {then}, {otherwise}", then.type)

    def cast(self, operator: str, value: LLVMValue, type_text: str) -> LLVMValue:
        """``sext``, ``trunc``, ``fpext``, ``sitofp``, ``bitcast`` … to `type_text` (a full type)."""
        if value.type == type_text:
            return value
        if operator in ("sext", "zext") and value.constant is not None and value.constant >= 0 and not value.is_vector:
            return LLVMValue(type_text, value.text)
        return self.emit(f"{operator} {value} to {type_text}", type_text)

    # -- Memory ---------------------------------------------------------------------------------

    def gep(self, pointer: LLVMValue, index: LLVMValue | int, element: str) -> LLVMValue:
        """``pointer + index`` in units of `element`; pointer or index may be vectors."""
        if isinstance(index, int):
            index = self.integer(index)
        if index.constant == 0 and not index.is_vector:
            return pointer
        lanes = max(pointer.lanes, index.lanes)
        return self.emit(f"getelementptr {element}, {pointer}, {index}", vector_type("ptr", lanes))

    def load(
        self, type_text: str, pointer: LLVMValue, align: int = 0, notes: str = "", volatile: bool = False
    ) -> LLVMValue:
        aligned = f", align {align}" if align else ""
        return self.emit(f"load {'volatile ' if volatile else ''}{type_text}, {pointer}{aligned}{notes}", type_text)

    def load_each(self, element: str, count: int, pointer: LLVMValue, align: int) -> list[LLVMValue]:
        """Neighbouring elements by one load, each by itself."""
        whole = self.load(vector_type(element, count), pointer, align)
        return [whole] if count == 1 else [self.extract(whole, lane) for lane in range(count)]

    def store(self, value: LLVMValue, pointer: LLVMValue, align: int = 0, notes: str = "") -> None:
        self.line(f"store {value}, {pointer}{f', align {align}' if align else ''}{notes}")

    def masked_load(
        self, type_text: str, pointer: LLVMValue, mask: LLVMValue, passthrough: LLVMValue | None = None, align: int = 1
    ) -> LLVMValue:
        """Contiguous lanes from `pointer`; lanes whose mask is false are not accessed and give `passthrough` (zero)."""
        passthrough = passthrough or self.zero(type_text)
        pointer = LLVMValue(f"ptr align {align}", pointer.text)
        return self.call(
            f"llvm.masked.load.{suffix(type_text)}.p0",
            type_text,
            [pointer, mask, passthrough],
            declared=["ptr", mask.type, type_text],
        )

    def masked_store(self, value: LLVMValue, pointer: LLVMValue, mask: LLVMValue, align: int = 1) -> None:
        pointer = LLVMValue(f"ptr align {align}", pointer.text)
        self.call(
            f"llvm.masked.store.{suffix(value.type)}.p0",
            "void",
            [value, pointer, mask],
            declared=[value.type, "ptr", mask.type],
        )

    def gather(
        self, type_text: str, pointers: LLVMValue, mask: LLVMValue, passthrough: LLVMValue | None = None, align: int = 1
    ) -> LLVMValue:
        """One element from each of a vector of pointers."""
        passthrough = passthrough or self.zero(type_text)
        typed = LLVMValue(f"{pointers.type} align {align}", pointers.text)
        name = f"llvm.masked.gather.{suffix(type_text)}.{suffix(pointers.type)}"
        return self.call(name, type_text, [typed, mask, passthrough], declared=[pointers.type, mask.type, type_text])

    def scatter(self, value: LLVMValue, pointers: LLVMValue, mask: LLVMValue, align: int = 1) -> None:
        typed = LLVMValue(f"{pointers.type} align {align}", pointers.text)
        name = f"llvm.masked.scatter.{suffix(value.type)}.{suffix(pointers.type)}"
        self.call(name, "void", [value, typed, mask], declared=[value.type, pointers.type, mask.type])

    def alloca(self, type_text: str, count: int = 1, align: int = 0) -> LLVMValue:
        """Stack memory, reserved in the entry block; keep it small."""
        with self.at(self.entry):
            return self.emit(f"alloca {type_text}, i64 {count}{f', align {align}' if align else ''}", "ptr")

    # -- Calls ----------------------------------------------------------------------------------

    def call(
        self, name: str, return_type: str, arguments: Sequence[LLVMValue], *, declared: Sequence[str] | None = None,
        attributes: str = "", flags: str = "",
    ) -> LLVMValue:  # fmt: skip
        """Call a function by name and declare it if the module does not define it.

        `declared` gives the declaration's parameter types when the call's argument types carry attributes.
        """
        self.module.declare(name, return_type, declared or [argument.type for argument in arguments], attributes)
        listed = ", ".join(str(argument) for argument in arguments)
        text = f"call {flags + ' ' if flags else ''}{return_type} @{name}({listed})"
        if return_type == "void":
            self.line(text)
            return LLVMValue("void", "")
        return self.emit(text, return_type)

    def intrinsic(
        self,
        name: str,
        arguments: Sequence[LLVMValue],
        return_type: str | None = None,
    ) -> LLVMValue:
        """``llvm.<name>`` overloaded on the first argument's type, which it returns unless there is a `return_type`."""
        result = return_type or arguments[0].type
        return self.call(
            f"llvm.{name}.{suffix(arguments[0].type)}",
            result,
            arguments,
            flags=self.float_flags if element_type(result) in _FLOAT_TYPES else "",
        )

    # -- Vectors --------------------------------------------------------------------------------

    def splat(self, value: LLVMValue, lanes: int) -> LLVMValue:
        """All `lanes` equal to a scalar; a vector or one lane is returned as it is."""
        if lanes == 1 or value.is_vector:
            return value
        type_text = f"<{lanes} x {value.type}>"
        if not value.text.startswith("%") and not value.text.startswith("@"):
            return LLVMValue(
                type_text, "zeroinitializer" if value.text == "null" else f"splat ({value.type} {value.text})"
            )
        single = self.emit(f"insertelement {type_text} poison, {value}, i64 0", type_text)
        return self.emit(
            f"shufflevector {type_text} {single.text}, {type_text} poison, <{lanes} x i32> zeroinitializer", type_text
        )

    def insert(self, vector: LLVMValue, value: LLVMValue, lane: int | LLVMValue) -> LLVMValue:
        index = self.integer(lane) if isinstance(lane, int) else lane
        return self.emit(f"insertelement {vector}, {value}, {index}", vector.type)

    def extract(self, vector: LLVMValue, lane: int | LLVMValue) -> LLVMValue:
        index = self.integer(lane) if isinstance(lane, int) else lane
        return self.emit(f"extractelement {vector}, {index}", vector.element)

    def shuffle(self, left: LLVMValue, right: LLVMValue | None, lanes: Sequence[int]) -> LLVMValue:
        """Lanes of `left` followed by `right`, chosen by number; -1 is undefined."""
        other = right or self.poison(left.type)
        listed = ", ".join(f"i32 {lane}" if lane >= 0 else "i32 poison" for lane in lanes)
        return self.emit(
            f"shufflevector {left}, {other}, <{len(lanes)} x i32> <{listed}>", f"<{len(lanes)} x {left.element}>"
        )

    def reversed(self, value: LLVMValue) -> LLVMValue:
        """A vector's lanes, the last one first."""
        return self.shuffle(value, None, range(value.lanes - 1, -1, -1))

    def with_lanes(self, value: LLVMValue, lanes: int) -> LLVMValue:
        """The first `lanes` of a scalar or vector; those that it does not have are undefined."""
        if value.lanes == lanes:
            return value
        if lanes == 1:
            return self.extract(value, 0)
        if value.lanes == 1:
            return self.insert(self.poison(f"<{lanes} x {value.element}>"), value, 0)
        return self.shuffle(value, None, [lane if lane < value.lanes else -1 for lane in range(lanes)])

    def lane_mask(self, count: LLVMValue, lanes: int) -> LLVMValue:
        """Lanes 0 .. count - 1 true (count is signed i64, any value)."""
        if count.constant is not None:
            bits = ", ".join(f"i1 {'true' if lane < count.constant else 'false'}" for lane in range(lanes))
            return LLVMValue(f"<{lanes} x i1>", f"<{bits}>")
        narrow = self.cast("trunc", self.maximum(self.minimum(count, lanes), 0), "i32")
        return self.compare("ult", self.lane_numbers(lanes, "i32"), self.splat(narrow, lanes))

    # -- Structure ------------------------------------------------------------------------------

    @contextmanager
    def loop(
        self,
        lower: LLVMValue,
        upper: LLVMValue,
        step: int | LLVMValue,
        carried: Sequence[LLVMValue] = (),
        *,
        hint: str = "loop",
        metadata: str = "",
    ) -> Iterator[Loop]:
        """``for index in range(lower, upper, step)`` with loop-carried values; step > 0.

        The test is at the bottom; a guard is added before unless the bounds are constants.
        """
        stride = self.constant(lower.type, step) if isinstance(step, int) else step
        known = lower.constant is not None and upper.constant is not None
        nonempty = known and lower.constant < upper.constant  # type: ignore[operator]
        guard = self.block
        preheader, body, exit_block = (
            self.new_block(f"{hint}.pre"),
            self.new_block(f"{hint}.body"),
            self.new_block(f"{hint}.exit"),
        )
        if nonempty:
            self.branch(preheader)
        else:
            self.branch_if(self.compare("slt", lower, upper), preheader, exit_block)
        self.start(preheader)
        self.start(body)
        index = self.reserve(lower.type)
        values = [self.reserve(value.type) for value in carried]
        loop = Loop(index, values, guard, preheader, body)
        yield loop
        following = loop.yielded if loop.yielded is not None else []
        assert len(following) == len(values), "loop.next was not given all carried values"
        latch = self.block
        advanced = self.emit(f"add nsw {index}, {stride.text}", index.type)
        more = self.compare("slt", advanced, upper)
        note = f", !llvm.loop {metadata}" if metadata else ""
        self._terminate(f"br i1 {more.text}, label %{body.label}, label %{exit_block.label}{note}")
        preheader.terminator = f"br label %{body.label}"
        for value, start, end in zip([index, *values], [lower, *carried], [advanced, *following], strict=True):
            body.phis.append(
                f"{value.text} = phi {value.type} [ {start.text}, %{preheader.label} ], [ {end.text}, %{latch.label} ]"
            )
        self.start(exit_block)
        for start, end in zip(carried, following, strict=True):
            incoming = [(end, latch)] if nonempty else [(start, guard), (end, latch)]
            loop.results.append(self.phi(exit_block, end.type, incoming))

    def reserve(self, type_text: str) -> LLVMValue:
        """A value that `fill_phi` will define."""
        self._counter += 1
        return LLVMValue(type_text, f"%v{self._counter - 1}")

    @contextmanager
    def when(self, condition: LLVMValue, weights: tuple[int, int] | None = None, hint: str = "when") -> Iterator[None]:
        """Code that runs only if `condition` (i1) holds."""
        then, after = self.new_block(f"{hint}.then"), self.new_block(f"{hint}.end")
        self.branch_if(condition, then, after, weights)
        self.start(then)
        yield
        if self.block.terminator is None:
            self.branch(after)
        self.start(after)

    def finish(self) -> None:
        """Add the function's text to the module."""
        if self.block.terminator is None:
            self.ret()
        listed = ", ".join(
            f"{type_text} {attribute + ' ' if attribute else ''}%{name}"
            for type_text, name, attribute in self.parameters
        )
        linkage = f"{self.linkage} " if self.linkage else ""
        note = "" if self.debug is None else f" !dbg {self.debug.subprogram}"
        lines = [f"define {linkage}{self.return_type} @{self.name}({listed}) {self.attributes}{note} {{"]
        block: Block | None = self.entry
        while block is not None:
            lines.append(f"{block.label}:")
            lines += [f"  {text}" for text in [*block.phis, *block.lines, block.terminator or "unreachable"]]
            block = block.following
        if "contract" in self.float_flags:
            lines = _with_rounded_products(lines)
        self.module.functions.append("\n".join([*lines, "}"]))


_NAME = re.compile(r"%v\d+")
_PRODUCT = re.compile(r"  (%v\d+) = (fmul contract [^!]*)")  # without its place in the source


def _folded_truth(operator: str, left: LLVMValue, right: LLVMValue) -> LLVMValue | None:
    """What ``and``, ``or`` and ``xor`` give where one of two conditions is known; None where that leaves work."""
    for known, other in ((left, right), (right, left)):
        if known.truth is None:
            continue
        if operator in ("and", "or"):
            return other if known.truth == (operator == "and") else known
        if operator == "xor" and not known.truth:
            return other
        if operator == "xor" and other.truth is not None:
            return LLVMValue("i1", literal("i1", not other.truth))
    return None


def _with_rounded_products(lines: list[str]) -> list[str]:
    """The lines of a function, products with several uses rounded by themselves.

    LLVM's GPU targets fuse a product with each sum that it is part of, also where another use needs the product itself:
    then ``p - p`` and ``p - max(p)`` would be what rounding takes from ``p``, not 0.
    """
    products = {
        number: (found[1], found[2])
        for number, line in enumerate(lines)
        if "fmul contract" in line and (found := _PRODUCT.match(line))
    }
    if not products:
        return lines
    named = Counter(_NAME.findall("\n".join(lines)))  # once where it is defined
    uses: Counter[str] = Counter()
    for name, text in products.values():
        uses[text] += named[name] - 1  # LLVM makes one of equal products
    rewritten = list(lines)
    for number, (_, text) in products.items():
        if uses[text] > 1:
            rewritten[number] = lines[number].replace("fmul contract", "fmul", 1)
    return rewritten
