"""The fuzzing harness notices every kind of failure, and goes on behind it; the quick targets find nothing."""

import pytest
from typer.testing import CliRunner

from tools.fuzz import __main__ as command_line
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


@pytest.mark.parametrize("name", ["nosuch", "no.such.module", "tools.fuzz.tally"])
@pytest.mark.parametrize("before", [["run", "sizes"], ["replay"]])
def test_an_unknown_target_is_a_usage_error(name, before, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    result = CliRunner().invoke(command_line.app, [*before, name, *(["1"] if before == ["replay"] else [])])
    text = " ".join(result.output.replace("│", " ").split())
    assert result.exit_code == 2 and name in text
    assert ("has no TARGET" if name == "tools.fuzz.tally" else "there is no target") in text
    assert not list(tmp_path.iterdir()), "the targets before it have run"


@pytest.mark.slow(but_every=2)
@pytest.mark.parametrize(
    "name", ["sizes", "dlpack_objects", "engine_arguments", "plan_json", "zip_attacks", "engine_bytes"]
)
def test_quick_targets_find_nothing(tmp_path, name):
    record = Campaign(name, 1, tmp_path).run(cases=100, seconds=500)
    assert record.cases == 100 and not record.failed, record.failures
