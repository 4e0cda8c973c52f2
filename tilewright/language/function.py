"""Functions written in the tile language: their source, signature and captured names.

`SourceFunction` is what the front end traces.  `tilewright.jit` makes a subclass that can also be
launched; the functions of `standard` need no more than this.
"""

from __future__ import annotations

import ast
import dis
import hashlib
import inspect
import linecache
import textwrap
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from types import CodeType, FunctionType, ModuleType
from typing import Any

from tilewright.errors import CompilationError, LaunchError, a_kind, brief
from tilewright.forks import cached_property
from tilewright.ir.core import Location
from tilewright.ir.diagnostics import render
from tilewright.language.records import contents, is_record, is_users
from tilewright.language.types import NAMES, ConstexprFunction, constexpr, dtype, pointer_type


@dataclass(frozen=True)
class ParameterInfo:
    """One parameter of a function: how it is bound and what its annotation fixes."""

    name: str
    kind: str  # "plain", "keyword", "variadic"
    default: Any = inspect.Parameter.empty
    constexpr: bool = False
    dtype: dtype | None = None  # the type fixed by an annotation such as ``n: tl.int64``
    const: bool = False  # a read-only pointer: ``x: tl.const``
    pointer: pointer_type | None = None  # of ``x: tl.pointer_type(tl.float32)``, ``x: "*fp32"``: a number is an address
    aggregate: type | None = None  # the class of an annotation such as ``x: tx.tensor_map``

    @property
    def has_default(self) -> bool:
        return self.default is not inspect.Parameter.empty


class SourceFunction:
    """A Python function whose source is tile language. Nothing is parsed before it is needed."""

    def __init__(self, function: Callable[..., Any]) -> None:
        if not isinstance(function, FunctionType):
            raise TypeError(f"a function defined with def is needed, got {brief(function)}")
        self.function: FunctionType = function
        self.name = function.__name__
        self.file = function.__code__.co_filename
        self.__name__ = function.__name__
        self.__qualname__ = function.__qualname__
        self.__module__ = function.__module__ or ""  # None for functions that were made by exec
        self.__doc__ = function.__doc__
        self.__globals__ = function.__globals__  # generated programs look names up there
        self.__wrapped__ = function

    @cached_property
    def _block(self) -> tuple[list[str], ast.FunctionDef] | None:
        return _parsed_block(self.function)

    @cached_property
    def _lines(self) -> tuple[list[str], int]:
        """Source lines (decorators included) and the number of the first in its file."""
        if self._block is not None:
            return self._block[0], self.function.__code__.co_firstlineno
        try:
            return inspect.getsourcelines(self.function)
        except (OSError, TypeError) as error:
            raise CompilationError(
                f"the source of kernel '{self.name}' is not available ({error})\n"
                "  help: define kernels in a file, or build them with JITFunction.from_source"
            ) from error

    @cached_property
    def source(self) -> str:
        """The text from ``def`` on, without decorators and indentation."""
        lines, _ = self._lines
        text = textwrap.dedent("".join(lines))
        return "\n".join(text.split("\n")[self.definition.lineno - self.first_line :])

    @cached_property
    def first_line(self) -> int:
        """Number in the file of the first source line."""
        return self._lines[1] or 1

    @cached_property
    def indentation(self) -> int:
        """Columns that were cut off every source line."""
        first = self._lines[0][0]
        return len(first) - len(first.lstrip())

    @cached_property
    def definition(self) -> ast.FunctionDef:
        """The parsed ``def``; line numbers are those of the file."""
        kind = _foreign_kind(self.function)
        if kind:
            head = kind.removeprefix("an ").removeprefix("a ")
            message = f"{kind} function is not part of the tile language"
            raise self._error(message, self._header(head), "write the kernel as a function with def")
        if self._block is not None:
            return self._block[1]
        text = textwrap.dedent("".join(self._lines[0]))
        try:
            (node,) = ast.parse(text).body
        except (SyntaxError, ValueError) as error:
            raise CompilationError(f"the source of kernel '{self.name}' cannot be parsed: {error}") from error
        if not isinstance(node, ast.FunctionDef):
            advice = "write the kernel as a function with def"
            raise self._error(f"'{self.name}' is not a function definition", self._header(self.name), advice)
        ast.increment_lineno(node, self.first_line - 1)
        return node

    def _header(self, word: str) -> Location:
        """The place of a word in the first lines of the function, after its decorators."""
        lines, first = _file_lines(self.function)
        body = [(line, column) for line, _, column, _ in self.function.__code__.co_positions() if column]
        for number, text in enumerate(lines[first : first + 20], first + 1):
            if word in text and not text.lstrip().startswith("@"):
                before = min((column for line, column in body if line == number), default=0)  # the nearest of several
                column = text.rfind(word, 0, before) if before else text.index(word)
                return Location(self.file, number, max(column, 0), self.name, width=len(word))
        return Location(self.file, first + 1, 0, self.name)

    def _error(self, message: str, place: Location, advice: str) -> CompilationError:
        error = CompilationError(render(message, place, place.width, advice))
        error.message, error.location, error.advice = message, place, advice
        return error

    @cached_property
    def parameters(self) -> tuple[ParameterInfo, ...]:
        """All parameters in order."""
        return tuple(self._parameter(entry) for entry in inspect.signature(self.function).parameters.values())

    @cached_property
    def argument_names(self) -> tuple[str, ...]:
        return tuple(parameter.name for parameter in self.parameters)

    def _parameter(self, entry: inspect.Parameter) -> ParameterInfo:
        kinds: dict[Any, str] = {
            inspect.Parameter.VAR_POSITIONAL: "variadic",
            inspect.Parameter.KEYWORD_ONLY: "keyword",
        }
        if entry.kind is inspect.Parameter.VAR_KEYWORD:
            node = self.definition.args.kwarg
            assert node is not None
            place = Location(self.file, node.lineno, node.col_offset + self.indentation, self.name, width=len(node.arg))
            advice = "name each parameter; a tuple, a NamedTuple or a dataclass holds several values in one"
            raise self._error(f"a kernel takes no **{entry.name}", place, advice)
        annotation = self._annotation(entry.annotation)
        is_constexpr = annotation is constexpr or getattr(annotation, "__origin__", None) is constexpr
        fixed = NAMES.get(annotation) if isinstance(annotation, str) else annotation
        return ParameterInfo(
            entry.name,
            kinds.get(entry.kind, "plain"),
            entry.default,
            is_constexpr,
            fixed if isinstance(fixed, dtype) and not fixed.is_ptr() else None,
            annotation is const or isinstance(annotation, pointer_type) and annotation.const,
            annotation if isinstance(annotation, pointer_type) else None,
            annotation if isinstance(annotation, type) else None,
        )

    def _annotation(self, annotation: Any) -> Any:
        """An annotation's value; a string naming no dtype is looked up among the function's globals."""
        if not isinstance(annotation, str) or annotation in NAMES:
            return annotation
        text = annotation.strip("\"' ")
        if text in NAMES:
            return text
        if text.startswith("*"):
            read_only = text[1:2] == "k" and text[2:] in NAMES
            element = NAMES.get(text[2:] if read_only else text[1:])
            return None if element is None else pointer_type(element, const=read_only)
        if text.endswith(")") and text.partition("(")[0].endswith("pointer_type"):
            inner = self._annotation(text.partition("(")[2][:-1])
            inner = NAMES.get(inner) if isinstance(inner, str) else inner
            return pointer_type(inner) if isinstance(inner, dtype) else None
        head, *rest = text.split(".")
        value = self.captured(head, default=None)
        for name in rest:
            value = getattr(value, name, None)
        if value is None and text.endswith("constexpr"):
            return constexpr
        return value

    _MISSING = object()

    def captured(self, name: str, default: Any = _MISSING) -> Any:
        """The value of a name used inside but defined outside: a closure variable or a global."""
        code = self.function.__code__
        if name in code.co_freevars and self.function.__closure__ is not None:
            cell = self.function.__closure__[code.co_freevars.index(name)]
            try:
                return cell.cell_contents
            except ValueError:
                pass
        elif name in self.function.__globals__:
            return self.function.__globals__[name]
        if default is SourceFunction._MISSING:
            raise KeyError(name)
        return default

    @cached_property
    def captured_paths(self) -> tuple[tuple[str, ...], ...]:
        """Every outside name that the body mentions, with the attributes read from it: ``("numbers", "LIMIT")``.

        Modules of the language are left out.
        """
        names = sorted(_global_names(self.function.__code__))
        values = {name: self.captured(name, default=None) for name in names}
        found = [(name,) for name, value in values.items() if value is not None and not isinstance(value, ModuleType)]
        modules = {name for name, value in values.items() if isinstance(value, ModuleType) and not is_language(value)}
        if not modules:
            return tuple(found)
        paths: dict[tuple[str, ...], None] = {}
        for node in self.definition.body:
            for entry in ast.walk(node):
                path = _dotted(entry)
                if path is not None and path[0] in modules:
                    paths[path] = None
        return (*found, *paths)

    def captured_values(self) -> Iterator[tuple[tuple[str, ...], Any]]:
        """The present values of `captured_paths`, modules and functions of the language left out."""
        for path in self.captured_paths:
            value = self.captured(path[0], default=None)
            depth = 1
            while isinstance(value, ModuleType) and depth < len(path):
                value = getattr(value, path[depth], None)
                depth += 1
            if not isinstance(value, ModuleType):
                yield path[:depth], value

    @property
    def is_own(self) -> bool:
        """Whether this is a function of the language's own modules that captures nothing else."""
        return self.__module__.startswith("tilewright.language.") and not self.function.__code__.co_freevars

    def fingerprint(self, seen: set[int] | None = None) -> str:
        """A hash of the source and of everything that it captures, transitively.

        Functions of the language itself go by their names: keys hold a hash of the language's sources.
        """
        if self.is_own:
            return f"{self.__module__}.{self.__qualname__}"
        seen = set() if seen is None else seen
        seen.add(id(self))
        text = _quick_text(self.function) or self.source
        digest = hashlib.sha256(f"{self.name}\0{text}\0".encode())
        for path, value in self.captured_values():
            digest.update(f"{'.'.join(path)}={describe(value, seen)}\0".encode())
        for parameter in self.parameters:
            if parameter.has_default:
                digest.update(f"{parameter.name}={describe(parameter.default, seen)}\0".encode())
        return digest.hexdigest()

    @property
    def fn(self) -> FunctionType:
        """The Python function (Triton's name)."""
        return self.function

    @property
    def src(self) -> str:
        """The text from ``def`` on (Triton's name)."""
        return self.source

    def _unsafe_update_src(self, text: str) -> None:
        """Give the function another text, from ``def`` on, with the same parameters (Triton's name).

        It sees the globals and the enclosing variables of the function that it had.
        """
        self.function = _with_text(self.function, text)
        self.file = self.function.__code__.co_filename
        for name in [name for name in vars(self) if isinstance(getattr(type(self), name, None), cached_property)]:
            del vars(self)[name]

    def __call__(self, *arguments: Any, **keywords: Any) -> Any:
        raise TypeError(f"'{self.name}' is a function of the tile language: call it inside a kernel")

    def __repr__(self) -> str:
        return f"<tile function {self.__module__}.{self.__qualname__}>"


def _foreign_kind(function: FunctionType) -> str:
    """What kind of function cannot be a kernel whatever it holds; empty for an ordinary one."""
    if function.__name__ == "<lambda>":
        return "a lambda"
    asynchronous = inspect.CO_COROUTINE | inspect.CO_ASYNC_GENERATOR
    return "an async" if function.__code__.co_flags & asynchronous else ""


def _with_text(function: FunctionType, text: str) -> FunctionType:
    """A function of another text in the place of `function`: with its globals, closure and defaults."""
    name, outer = function.__name__, function.__code__.co_freevars
    lines = [f"def enclosing({', '.join(outer)}):", *(f"    {line}" for line in text.splitlines())]
    whole = "\n".join([*lines, f"    return {name}", ""])
    file = f"<tilewright:{name}:{hashlib.sha256(whole.encode()).hexdigest()[:16]}>"
    try:
        module = compile(whole, file, "exec")
    except SyntaxError as error:
        raise CompilationError(f"the new text of kernel '{name}' is not Python: {error}") from error
    linecache.cache[file] = (len(whole), None, whole.splitlines(keepends=True), file)
    (enclosing,) = (entry for entry in module.co_consts if isinstance(entry, CodeType))
    code = next(entry for entry in enclosing.co_consts if isinstance(entry, CodeType) and entry.co_name == name)
    cells = dict(zip(outer, function.__closure__ or (), strict=True))
    closure = tuple(cells[free] for free in code.co_freevars)
    result = FunctionType(code, function.__globals__, name, function.__defaults__, closure)
    result.__kwdefaults__, result.__annotations__ = function.__kwdefaults__, function.__annotations__
    result.__module__, result.__qualname__, result.__doc__ = (
        function.__module__,
        function.__qualname__,
        function.__doc__,
    )
    return result


def _file_lines(function: FunctionType) -> tuple[list[str], int]:
    """The lines of a function's file, and the index of its first one (a decorator, if it has some)."""
    code = function.__code__
    linecache.checkcache(code.co_filename)
    return linecache.getlines(code.co_filename, function.__globals__), code.co_firstlineno - 1


def _ends(lines: list[str], first: int) -> Iterator[int]:
    """Where the block that begins at line `first` may end: before each line that is not indented deeper."""
    indentation = _indentation(lines[first])
    for end in range(first + 1, len(lines)):
        text = lines[end].lstrip()
        if text and text[0] != "#" and len(lines[end]) - len(text) <= indentation:
            yield end
    yield len(lines)


def _parsed_block(function: FunctionType) -> tuple[list[str], ast.FunctionDef] | None:
    """A function's lines and their syntax tree; None where `inspect` has to look.

    `inspect.getsourcelines` splits the text into tokens, which takes longer than loading a compiled kernel.  Here a
    block ends where it parses: before that, a line of less indentation lies between decorators, inside brackets or
    in a string.
    """
    lines, first = _file_lines(function)
    if not 0 <= first < len(lines):
        return None
    for end in _ends(lines, first):
        block = _without_tail(lines[first:end])
        try:
            tree = ast.parse("\n" * first + textwrap.dedent("".join(block)))  # with the file's line numbers
        except (SyntaxError, ValueError):
            continue
        node = tree.body[0] if len(tree.body) == 1 else None
        return (block, node) if isinstance(node, ast.FunctionDef) and node.name == function.__code__.co_name else None
    return None


def _quick_text(function: FunctionType) -> str | None:
    """A function's text from ``def`` on, found without parsing; None where that fails.

    The block ends at the first possible place after all of its code.
    """
    lines, first = _file_lines(function)
    if not 0 <= first < len(lines):
        return None
    last = _last_line(function.__code__)
    end = next((end for end in _ends(lines, first) if end >= last), None)
    if end is None:  # the file has become shorter since it was imported
        return None
    indentation = _indentation(lines[first])
    for start in range(first, end):
        if lines[start].startswith(f"def {function.__code__.co_name}", indentation):
            return textwrap.dedent("".join(_without_tail(lines[start:end])))
    return None


def _last_line(code: CodeType) -> int:
    """The number of the last line that a function has code on."""
    own = max((line for _, _, line in code.co_lines() if line is not None), default=code.co_firstlineno)
    return max([own, *(_last_line(entry) for entry in code.co_consts if isinstance(entry, CodeType))])


def _without_tail(block: list[str]) -> list[str]:
    """A block without the blank lines and comments that follow it."""
    end = len(block)
    indentation = _indentation(block[0])
    while end > 1:
        text = block[end - 1].lstrip()
        if text and (text[0] != "#" or len(block[end - 1]) - len(text) > indentation):
            break
        end -= 1
    return block[:end]


def _global_names(code: CodeType) -> set[str]:
    """Names that code reads from outside its function: globals and variables of enclosing functions."""
    names = set(code.co_freevars)
    opcodes = code.co_code
    extended = 0
    for position in range(0, len(opcodes), 2):
        operation, argument = opcodes[position], opcodes[position + 1] | extended
        extended = argument << 8 if operation == _EXTENDED_ARG else 0
        if operation == _LOAD_GLOBAL:
            names.add(code.co_names[argument >> 1])
    for entry in code.co_consts:
        if isinstance(entry, CodeType):
            names |= _global_names(entry)
    return names


_LOAD_GLOBAL, _EXTENDED_ARG = dis.opmap["LOAD_GLOBAL"], dis.opmap["EXTENDED_ARG"]


def _indentation(line: str) -> int:
    return len(line) - len(line.lstrip())


class const:
    """Annotation of a read-only pointer parameter: ``x: tl.const``."""


MUST_USE = "__tilewright_must_use__"


def must_use_result(function: Any = None, reason: Any = "") -> Any:
    """Decorator of functions whose result kernels must not drop: bare, or with a reason to be shown.

    A kernel that calls one as a statement of its own is refused.
    """
    if isinstance(function, str) or function is None:
        return lambda decorated: must_use_result(decorated, function or "")
    setattr(function, MUST_USE, reason if isinstance(reason, str) else "")
    return function


def language_function(function: Callable[..., Any]) -> SourceFunction:
    """Decorator: a function in the tile language that is only ever inlined, never launched."""
    return SourceFunction(function)


def is_language(module: ModuleType) -> bool:
    """Whether a module is the language's own (or this package), under its own name or under Triton's."""
    name = module.__name__
    return name == "tilewright" or name.startswith("tilewright.language") or name.partition(".")[0] == "triton"


def describe(value: Any, seen: set[int]) -> str:
    """Text that changes when a captured value does; functions of the language by their source."""
    if isinstance(value, SourceFunction):
        return f"{value.name}<recursive>" if id(value) in seen else value.fingerprint(seen)
    if isinstance(value, constexpr):
        return f"constexpr({describe(value.value, seen)})"
    if isinstance(value, ConstexprFunction):
        return _python_source(value.function)
    if isinstance(value, (tuple, list)):
        kind = _class_source(type(value)) if hasattr(value, "_fields") else ""  # properties are part of a NamedTuple
        return f"{kind}({', '.join(describe(entry, seen) for entry in value)})"
    if is_record(value) or is_users(value) and type(value).__repr__ is object.__repr__:  # whose repr is an address
        if id(value) in seen:
            return f"{type(value).__qualname__}<recursive>"
        fields = ", ".join(f"{name}={describe(entry, seen | {id(value)})}" for name, entry in contents(value).items())
        return f"{_class_source(type(value))}({fields})"
    if isinstance(value, (FunctionType, type)) or callable(value) and hasattr(value, "__qualname__"):
        return f"{value.__module__}.{value.__qualname__}"
    if type(value) is int:
        return f"int:{value:#x}"  # Python writes no more than 4300 decimal digits
    try:
        text = repr(value)
    except Exception as error:  # of the value's own code
        raise LaunchError(
            f"{a_kind(value)} cannot be a constant of a kernel: its repr, by which it is told from others, raises "
            f"{type(error).__name__}: {error}"
        ) from error
    return f"{type(value).__name__}:{text}" if not isinstance(value, dtype) else text


def _class_source(kind: type) -> str:
    """A class's text, or its name where there is none."""
    try:
        return inspect.getsource(kind)
    except (OSError, TypeError):
        return f"{kind.__module__}.{kind.__qualname__}"


def _python_source(function: Any) -> str:
    """A compile-time function's text, and the plain values that it reads from outside."""
    code = function.__code__
    try:
        text = inspect.getsource(function)
    except (OSError, TypeError):
        text = f"{function.__module__}.{function.__qualname__}:{code.co_code.hex()}:{code.co_consts!r}"
    outside = {name: function.__globals__.get(name) for name in code.co_names}
    for name, cell in zip(code.co_freevars, function.__closure__ or (), strict=True):
        outside[name] = cell.cell_contents
    plain = {name: value for name, value in outside.items() if isinstance(value, (bool, int, float, str, tuple))}
    return f"{text}{sorted(plain.items(), key=lambda item: item[0])!r}"


def _dotted(node: ast.AST) -> tuple[str, ...] | None:
    """``a.b.c`` as a path, or None for another node."""
    names: list[str] = []
    while isinstance(node, ast.Attribute):
        names.append(node.attr)
        node = node.value
    if not isinstance(node, ast.Name):
        return None
    return (node.id, *reversed(names))
