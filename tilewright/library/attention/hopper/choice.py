"""Which form of Hopper attention suits a problem.

Forms are listed by head size, with the block of keys that registers leave room for; of these the one is taken that
computes least beyond the queries and keys there are.  Rates are relative, measured on an H200 over long sequences.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import tilewright.language as tl
from tilewright.library.attention.hopper.config import AttentionForm
from tilewright.library.hopper import is_possible

FEW_QUERIES = 64  # that one warpgroup has


@dataclass(frozen=True)
class AttentionProblem:
    """What a form depends on; queries and keys may be typical numbers of a range."""

    size: int  # of a head
    queries: int
    keys: int
    causal: bool = False
    window: bool = False
    lengths: bool = False
    statistics: bool = False
    bias: int = 0
    type: Any = tl.bfloat16


# By head size up to …: consumers, keys of a block, stages, whether tiles are joined (`FLAT`), relative rate.
_FORMS: dict[int, tuple[tuple[int, int, int, bool, float], ...]] = {
    64: ((4, 64, 4, False, 1.0), (3, 96, 2, True, 0.95), (2, 160, 2, True, 0.87), (2, 128, 2, True, 0.87),
         (2, 112, 2, True, 0.83), (2, 96, 2, True, 0.83), (1, 128, 2, False, 0.5), (1, 64, 2, False, 0.4)),
    128: ((3, 80, 2, True, 1.0), (2, 128, 2, True, 0.93), (2, 112, 2, True, 0.9), (2, 96, 2, True, 0.88),
          (1, 128, 2, False, 0.5), (1, 64, 2, False, 0.4)),
    256: ((2, 80, 2, False, 1.0), (1, 64, 2, False, 0.5)),
}  # fmt: skip
# More than these keep too much in registers: (bias, largest head size, consumers).
_TOO_MUCH = {(1, 64, 4), (1, 128, 3), (2, 64, 3), (2, 64, 4), (2, 128, 3)}


def attention_forms(problem: AttentionProblem) -> list[AttentionForm]:
    """The forms that a problem can be computed with, the one that promises most first."""
    limit = next(limit for limit in _FORMS if problem.size <= limit)
    found: list[tuple[float, AttentionForm]] = []
    for consumers, block, stages, flat, rate in _FORMS[limit]:
        # Four warpgroups with unequal numbers of blocks lose by turns (1.3 percent), with equal ones they gain (0.8).
        turns = 1 < consumers < 4 or (consumers == 4 and not problem.causal)
        form = AttentionForm(
            D=problem.size, BN=block, CONSUMERS=consumers, STAGES=stages, CAUSAL=problem.causal,
            WINDOW=problem.window, LENGTHS=problem.lengths, LSE=problem.statistics, FLAT=flat, TURNS=turns,
            TYPE=problem.type, BIAS=problem.bias,
        )  # fmt: skip
        if (problem.bias, limit, consumers) in _TOO_MUCH or (problem.window and consumers > 2):
            continue
        if not is_possible(form):
            continue
        queries, keys = (-(-problem.queries // form.BM) * form.BM, -(-problem.keys // block) * block)
        found.append((queries * keys / rate, form))
    return [form for _, form in sorted(found, key=lambda entry: entry[0])]
