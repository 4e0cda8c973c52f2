"""The fuzzing harness notices every kind of failure, and goes on behind it; the quick targets find nothing."""

import pytest

from tools.fuzz import harness
from tools.fuzz.harness import Campaign


def test_every_kind_of_failure_is_noticed(tmp_path, monkeypatch):
    monkeypatch.setattr(harness, "PATIENCE", 8)
    record = Campaign("tests.host.fuzz_stand_in", 2, tmp_path).run(cases=60, seconds=500)
    assert record.cases == 60
    assert {entry["seed"]: entry["failed"] for entry in record.failures} == {
        3: "crash",
        5: "hang",
        7: "memory",
        9: "uncaught",
        11: "wrong",
        15: "hang",
    }
    assert record.labels == {"right": 53, "refused: InputError": 1}


def test_a_campaign_resumes(tmp_path):
    Campaign("sizes", 1, tmp_path).run(cases=50, seconds=500)
    record = Campaign("sizes", 1, tmp_path).run(cases=30, seconds=500)
    assert (record.cases, record.next, record.left) == (80, 80, [])


@pytest.mark.slow(but_every=2)
@pytest.mark.parametrize(
    "name", ["sizes", "dlpack_objects", "engine_arguments", "plan_json", "zip_attacks", "engine_bytes"]
)
def test_quick_targets_find_nothing(tmp_path, name):
    record = Campaign(name, 1, tmp_path).run(cases=100, seconds=500)
    assert record.cases == 100 and not record.failed, record.failures
