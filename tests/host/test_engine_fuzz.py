"""Damaged engine files: thousands of mutations, each refused with an `EngineError` or exactly right."""

import random
import struct
import zlib
from collections import Counter

import numpy as np
import pytest

from tests.host.handmade import COLUMNS, expected, make_package
from tilewright import Engine
from tilewright.errors import EngineError
from tools.fuzz.engine_files import BYTES, read_members, write_members

MUTATIONS = 2500
INPUT = np.linspace(-3, 3, 7 * COLUMNS, dtype=np.float32).reshape(7, COLUMNS)


@pytest.fixture(scope="module")
def original(tmp_path_factory):
    path = tmp_path_factory.mktemp("fuzz") / "tiny.engine"
    Engine(make_package()).save(path)
    return path.read_bytes()


def outcome(path) -> str:
    """What loading and running the file comes to; fails on a wrong answer or a foreign error."""
    try:
        engine = Engine.load(path)
        y, cache = engine(INPUT, np.zeros(4, np.int64), **{})
        engine.plan  # noqa: B018 - the steps are read when asked for
    except EngineError as error:
        assert str(path) in str(error) and len(str(error)) < 2000
        return type(error).__name__
    np.testing.assert_array_equal(y, expected(INPUT))
    np.testing.assert_array_equal(cache, 1)
    return "right"


@pytest.mark.slow(but_every=2)
@pytest.mark.filterwarnings("ignore:Duplicate name")
@pytest.mark.parametrize("kind", BYTES, ids=lambda kind: kind.__name__)
def test_no_mutation_crashes_or_gives_a_wrong_answer(original, tmp_path, kind):
    seed = random.SystemRandom().randrange(2**32)
    print(f"seed {seed}")
    draw = random.Random(seed)
    path = tmp_path / "mutant.engine"
    outcomes: Counter[str] = Counter()
    for _ in range(MUTATIONS // len(BYTES) + 1):
        path.write_bytes(kind(original, draw))
        outcomes[outcome(path)] += 1
    print(dict(outcomes))
    assert outcomes["EngineDamagedError"] > 0


def test_the_original_and_a_rewritten_zip_are_right(original, tmp_path):
    path = tmp_path / "tiny.engine"
    path.write_bytes(original)
    assert outcome(path) == "right"
    path.write_bytes(write_members(read_members(original)))
    assert outcome(path) == "right"


def test_a_changed_member_with_the_right_zip_checksum_is_seen(original, tmp_path):
    members = read_members(original)
    name = "weights.safetensors"
    members[name] = members[name][:-1] + bytes([members[name][-1] ^ 1])
    data = write_members(members)
    assert struct.pack("<I", zlib.crc32(members[name])) in data
    path = tmp_path / "mutant.engine"
    path.write_bytes(data)
    with pytest.raises(EngineError, match=r"weights\.safetensors has changed"):
        Engine.load(path)
