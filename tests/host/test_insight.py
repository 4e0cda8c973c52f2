"""Looking at engines: bounds of steps, the report, and its page."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from pathlib import Path

import numpy as np
import pytest

from tests.host.random_graphs import RandomGraph
from tilewright.build.builder import build
from tilewright.dtypes import float32
from tilewright.engine.engine import Engine
from tilewright.graph.build import GraphBuilder
from tilewright.insight.lanes import lanes
from tilewright.insight.page import page
from tilewright.insight.report import report, short, transposes
from tilewright.insight.roofline import bound_of
from tilewright.targets.registry import machine_for


def model(rng: np.random.Generator, name: str = "model") -> Engine:
    b = GraphBuilder(name)
    batch = b.symbol("batch", 1, 200)
    x = b.input("x", float32, (batch, 24))
    w, v = (rng.standard_normal(shape).astype(np.float32) for shape in ((24, 40), (40, 16)))
    hidden = b.op("gelu", [b.op("add", [b.op("matmul", [x, b.constant(w)]), b.constant(w[0])])])
    b.output(b.op("softmax", [b.op("matmul", [hidden, b.constant(v)])], axis=1), "y")
    return build(b.finish())


def test_lanes_keep_values_apart_until_they_are_read(rng) -> None:
    assert lanes([[], [0], [0], [1, 2]]) == [0, 1, 0, 0]
    inputs = [sorted({int(n) for n in rng.integers(0, row, min(row, int(rng.integers(0, 4))))}) for row in range(60)]
    found = lanes(inputs)
    last = [max([row, *(user for user in range(60) if row in inputs[user])]) for row in range(60)]
    for first in range(60):
        for second in range(first + 1, 60):
            if found[first] == found[second]:
                assert last[first] <= second, (first, second)


def test_what_bounds_a_step() -> None:
    gpu = machine_for("cuda:sm_90a", (), 2)
    assert bound_of(gpu, 10**9, 10**9, 16).kind == "memory"
    assert bound_of(gpu, 10**6, 10**12, 16).kind == "tensor" and bound_of(gpu, 10**6, 10**12, 32).kind == "arithmetic"
    assert bound_of(gpu, 10**6, 10**12, 8).seconds == pytest.approx(bound_of(gpu, 10**6, 10**12, 16).seconds / 2)
    assert bound_of(gpu, 100, 100, 16) == bound_of(gpu, 0, 0, 0) and bound_of(gpu, 0, 0, 0).kind == "launch"
    level3 = "avx2", "fma"
    narrow = machine_for("cpu", level3, 1).peak
    wide = machine_for("cpu", (*level3, "avx512f", "avx512bw", "avx512dq", "avx512vl"), 4).peak
    assert wide.float32 == 8 * narrow.float32 and not wide.tensor
    assert machine_for("cuda:sm_103a", (), 1).name == "B200, data sheet"  # the last one before it


def test_a_report_tells_of_every_step_and_operation(rng) -> None:
    engine = model(rng)
    found = json.loads(json.dumps(report(engine, {"batch": 7})))
    assert [step["name"] for step in found["steps"]] == [step.name for step in engine.plan.steps]
    assert sum(step["share"] for step in found["steps"]) == pytest.approx(1)
    assert {(stay["bytes"], stay["first"], stay["last"]) for stay in found["arena"]} == {(1120, 0, 1), (448, 1, 2)}
    assert all(stay["offset"] + stay["bytes"] <= found["arena_bytes"] for stay in found["arena"])
    assert found["arena_least_bytes"] == 1152 + 448  # in places of 64 bytes
    rows = found["graph"]["rows"]
    assert [row["op"] for row in rows] == ["input", "matmul", "add", "gelu", "matmul", "softmax"]
    assert rows[1]["type"] == "f32[batch, 40]" and all(row["step"] is not None for row in rows[1:])
    profile = [{"milliseconds": 2.0 + number} for number in range(len(engine.plan.steps))]
    timed = report(engine, {"batch": 7}, profile)
    assert {step["time_source"] for step in timed["steps"]} == {"profiled"} and timed["steps"][1]["seconds"] == 3e-3


def test_reports_of_random_graphs_keep_the_order_of_what_is_read(rng) -> None:
    drawn = RandomGraph(int(rng.integers(2**32)), 14)
    engine = build(drawn.graph)
    sizes = {symbol.name: symbol.low for symbol in engine.plan.symbols.values()}
    rows = report(engine, sizes)["graph"]["rows"]
    assert all(source < number for number, row in enumerate(rows) for source in row["inputs"])
    assert page(report(engine, sizes))


def test_infinite_constants_of_kernels_are_texts(rng) -> None:
    b = GraphBuilder("pool")
    x = b.input("x", float32, (1, 6, 6, 8))
    b.output(
        b.op("max_pool", [x], kernel=(2, 2), strides=(2, 2), padding=((0, 0), (0, 0)), dilation=(1, 1), layout="NHWC")
    )
    text = page(report(build(b.finish()), {}))
    assert json.loads(text.split('id="report">')[1].split("</script>")[0], parse_constant=pytest.fail)


def test_a_page_stands_alone_whatever_the_names(rng) -> None:
    text = page(report(model(rng, "</script><b>&{x}"), {"batch": 7}))
    assert not re.search(r"(src|href)\s*=|@import|url\(|https?://(?!www\.w3\.org)", text)
    assert text.count("</script>") == 2 and "<b>&{x}" not in text.split("<main")[0]
    data = re.search(r'id="report">(.*?)</script>', text, re.DOTALL)
    assert data is not None and json.loads(data[1])["name"] == "</script><b>&{x}"


def test_the_script_of_the_page_is_well_formed(tmp_path: Path, rng) -> None:
    node = shutil.which("node")
    if node is None:
        pytest.skip("no JavaScript engine: node is not installed")
    script = page(report(model(rng), {"batch": 7})).rsplit("<script>", 1)[1].split("</script>")[0]
    (tmp_path / "page.js").write_text(script, encoding="utf-8")
    checked = subprocess.run([node, "--check", str(tmp_path / "page.js")], capture_output=True, text=True, check=False)
    assert checked.returncode == 0, checked.stderr


def test_short_texts_leave_views_out_where_there_is_more() -> None:
    assert short(["slice %a", "gather %b", "gather %c", "add %d (x.py:3)"]) == "gather x2, add"
    assert short(["reshape %a", "permute %b"]) == "reshape, permute"


def test_steps_that_only_transpose_are_counted() -> None:
    steps = [
        {"operations": ["permute %a (m.py:1)"], "bytes": 10},
        {"operations": [{"op": "reshape"}, {"op": "permute"}], "bytes": 5},
        {"operations": ["permute %a", "add %b"], "bytes": 7},
        {"operations": ["concat %c"], "bytes": 1},
    ]
    assert transposes(steps) == {"steps": 2, "bytes": 15}
