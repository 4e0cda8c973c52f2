"""Plans and sizes as JSON: whatever is read costs little, and can be evaluated, bounded and printed."""

from __future__ import annotations

import copy
import json
import random
from pathlib import Path
from typing import Any

from tests.host.handmade import make_plan
from tilewright.engine.bounded_json import read_json
from tilewright.engine.plan_json import plan_from_json, plan_to_json
from tilewright.symbolic import Size, evaluate, free_symbols, lower_bound, to_json, upper_bound
from tools.fuzz.engine_files import change_value, flip_bits, overwrite, splice, truncate
from tools.fuzz.target import Base


def draw_size(draw: random.Random, depth: int) -> Any:
    """A size as JSON, often one that would grow without bounds."""
    if depth <= 0 or draw.random() < 0.1:
        return draw.choice([0, 1, 3, 64, -5, 2**31, 2**63, 2**64 + 1, 10**30, {"terms": [[1, [["batch", 1]]]]}])
    if depth > 8 or draw.random() < 0.3:
        child = draw_size(draw, depth - 1)
        return _size(draw, child, child)
    return _size(draw, draw_size(draw, depth - 1), draw_size(draw, depth - 2))


def _size(draw: random.Random, left: Any, right: Any) -> Any:
    terms = []
    for _ in range(draw.choice([1, 1, 2, 3])):
        atoms: list[Any] = []
        for _ in range(draw.choice([1, 1, 2])):
            atom = draw.choice(["batch", "other", [draw.choice(["max", "min", "//", "%", "+"]), left, right]])
            atoms.append([atom, draw.choice([1, 1, 1, 2, 8, 0, 9])])
        terms.append([draw.choice([1, 1, 2, -1, 2**62, 0]), atoms])
    return {"terms": terms}


class Target(Base):
    megabytes = 700

    def prepare(self, folder: Path) -> None:
        self.data = plan_to_json(make_plan())
        self.text = json.dumps(self.data).encode()

    def run(self, seed: int) -> str:
        draw = random.Random(seed)
        if draw.random() < 0.2:
            text = draw.choice([flip_bits, overwrite, splice, truncate])(self.text, draw)
        else:
            data = copy.deepcopy(self.data)
            data["symbols"].append(["other", 1, draw.choice([1, 100, 2**31 - 1, 2**62])])
            for _ in range(draw.choice([0, 1, 2])):
                change_value(data, draw)
            name = draw.choice(["arena_bytes", "nanoseconds", "scratch_bytes"])
            data[name] = draw_size(draw, draw.choice([1, 3, 6, 10, 16]))
            text = json.dumps(data).encode()
        try:
            plan = plan_from_json(read_json(text, 64 << 20))
        except ValueError:
            return "refused"
        values = {symbol.name: draw.choice([symbol.low, symbol.high]) for symbol in plan.symbols.values()}
        for size in (plan.arena_bytes, plan.nanoseconds):
            _use(size, values)
        plan_to_json(plan)
        return "read"


def _use(size: Size, values: dict[str, int]) -> None:
    str(size), to_json(size), free_symbols(size)
    assert lower_bound(size) <= upper_bound(size)
    try:
        evaluate(size, values)
    except ZeroDivisionError:
        pass  # the step that such a size belongs to is never reached


TARGET = Target()
