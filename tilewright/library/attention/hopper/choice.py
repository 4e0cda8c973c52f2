"""Which config of Hopper attention suits a problem.

Configs are listed by head size, with the block of keys that registers leave room for; of these the one is taken that
computes least beyond the queries and keys there are.  Rates are relative, measured on an H200 over long sequences.
"""

from __future__ import annotations

import tilewright.language as tl
from tilewright.library.attention.hopper.config import AttentionConfig
from tilewright.library.attention.problem import AttentionProblem
from tilewright.library.hopper import is_possible
from tilewright.targets.base import Target
from tilewright.targets.machine import Machine

WARPGROUP_QUERIES = 64  # that one warpgroup has


_REACHED = 0.7  # of the rate of tensor cores
TILE_CLOCKS = 1500.0
BLOCK_CLOCKS = 1200.0  # of a block of keys that nothing else hides


def unsupported(problem: AttentionProblem, target: Target) -> str:
    """Why the kernel cannot compute an attention on a target; nothing where it can."""
    return target.without_wgmma or problem.obstacle


# By head size up to …: consumers, keys of a block, stages, whether tiles are joined (`FLAT`), relative rate.
_CONFIGS: dict[int, tuple[tuple[int, int, int, bool, float], ...]] = {
    64: ((4, 64, 4, False, 1.0), (3, 96, 2, True, 0.95), (2, 160, 2, True, 0.87), (2, 128, 2, True, 0.87),
         (2, 112, 2, True, 0.83), (2, 96, 2, True, 0.83), (1, 128, 2, False, 0.5), (1, 64, 2, False, 0.4)),
    128: ((3, 80, 2, True, 1.0), (2, 128, 2, True, 0.93), (2, 112, 2, True, 0.9), (2, 96, 2, True, 0.88),
          (1, 128, 2, False, 0.5), (1, 64, 2, False, 0.4)),
    256: ((2, 80, 2, False, 1.0), (1, 64, 2, False, 0.5)),
}  # fmt: skip
# More than these keep too much in registers: (bias, largest head size, consumers).
_TOO_MUCH = {(1, 64, 4), (1, 128, 3), (2, 64, 3), (2, 64, 4), (2, 128, 3)}


def attention_configs(problem: AttentionProblem) -> list[AttentionConfig]:
    """The configs that a problem can be computed with, the one that promises most first."""
    limit = next(limit for limit in _CONFIGS if problem.size <= limit)
    found: list[tuple[float, AttentionConfig]] = []
    for consumers, block, stages, flat, rate in _CONFIGS[limit]:
        # Four warpgroups with unequal numbers of blocks lose by ping-pong (1.3 percent), with equal ones gain (0.8).
        ping_pong = 1 < consumers < 4 or (consumers == 4 and not problem.causal)
        config = AttentionConfig(
            D=problem.size, BN=block, CONSUMERS=consumers, STAGES=stages, CAUSAL=problem.causal,
            WINDOW=problem.window > 0, LENGTHS=1 if problem.ragged else 2 * problem.counted,
            SOFTCAP=problem.softcap, LSE=problem.statistics, FLAT=flat, PING_PONG=ping_pong,
            TYPE=tl.dtype(problem.dtype), BIAS=problem.bias,
        )  # fmt: skip
        if (problem.bias, limit, consumers) in _TOO_MUCH or ((problem.window or problem.softcap) and consumers > 2):
            continue
        if not is_possible(config):
            continue
        queries, keys = (-(-problem.queries // config.BM) * config.BM, -(-problem.keys // block) * block)
        found.append((queries * keys / rate, config))
    return [config for _, config in sorted(found, key=lambda entry: entry[0])]


def seconds_of(config: AttentionConfig, problem: AttentionProblem, machine: Machine) -> float:
    """The expected time: waves of equal tiles, half of the blocks where the mask is causal."""
    pairs = problem.batches * problem.heads
    tiles = -(-problem.queries // config.BM)
    blocks = -(-problem.keys // config.BN)
    if problem.causal and problem.queries > config.BM:
        blocks = -(-blocks // 2)
    if problem.window:
        blocks = min(blocks, -(-(problem.window + config.BM) // config.BN) + 1)
    clocks = TILE_CLOCKS + blocks * block_clocks(config, machine)
    waves = max(1.0, tiles * pairs / machine.processors) if problem.causal else -(-tiles * pairs // machine.processors)
    return machine.launches.kernel + waves * clocks / machine.clock


def block_clocks(config: AttentionConfig, machine: Machine) -> float:
    """Clocks of a block of keys: a single warpgroup has nothing to do while it waits for its products."""
    work = config.BM * config.BN * config.D * 4 / (machine.wgmma * _REACHED)
    return work if config.CONSUMERS > 1 else max(work / 0.6, BLOCK_CLOCKS)
