"""Kernels' source text at random, and mutated: it compiles, or a `CompilationError` says where and what to do."""

from __future__ import annotations

import ast
import random
import re
import warnings
from pathlib import Path

from tests.host.test_frontend_fuzz import TYPES, Author, check, names
from tilewright.errors import CompilationError
from tilewright.ir.verifier import verify
from tilewright.launch.jit import JITFunction
from tools.fuzz.target import Base, Failed


class Target(Base):
    def prepare(self, folder: Path) -> None:
        warnings.simplefilter("ignore")  # Python's, of such sources

    def run(self, seed: int) -> str:
        draw = random.Random(seed)
        source = Author(draw).kernel()
        if draw.random() < 0.6:
            source = _mutated(draw, source)
        if len(ast_of(source)) > 1:
            return "more than a function"  # a change ended the body early: the rest is a module's code, not a kernel's
        try:
            verify(JITFunction.from_source(source, "kernel", names()).trace(TYPES, {"N": 8}))
        except CompilationError as error:
            try:
                check(source, error)
            except AssertionError as wrong:
                raise Failed("wrong", str(wrong), "error without place or advice") from error
            return "told"
        return "compiled"


def ast_of(source: str) -> list[ast.stmt]:
    """The statements of a source text; none where it is no Python."""
    try:
        return ast.parse(source).body
    except (SyntaxError, ValueError):
        return []


def _mutated(draw: random.Random, source: str) -> str:
    """The body with some words dropped, repeated or exchanged."""
    head, body = source.split("\n", 1)
    words = re.findall(r"\s+|\w+|.", body)
    for _ in range(draw.randint(1, 4)):
        place, other = draw.randrange(len(words)), draw.randrange(len(words))
        kind = draw.randrange(3)
        if kind == 0:
            words[place] = ""
        elif kind == 1:
            words.insert(place, words[other])
        else:
            words[place] = words[other]
    return head + "\n" + "".join(words)


TARGET = Target()
