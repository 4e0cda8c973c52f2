"""Seeds of runs that belong together."""

from __future__ import annotations

from tilewright.runtime.seeds import next_seed, one_seed


def test_one_seed_inside_another_is_the_same() -> None:
    with one_seed():
        with one_seed():
            first = next_seed()
        with one_seed():
            assert next_seed() == first
        assert next_seed() == first
    assert next_seed() != first
