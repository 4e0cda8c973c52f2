"""The memory of plans for a GPU: at most a tenth more than what is alive at once."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")

from tests.models import bert, llama  # noqa: E402
from tests.models.specification import ModelSpecification  # noqa: E402
from tilewright.build import storage  # noqa: E402
from tilewright.build.storage import GroupTask, assign_storage  # noqa: E402
from tilewright.graph.core import Value  # noqa: E402
from tilewright.graph.fusion import Group  # noqa: E402
from tilewright.graph.passes.fuse import fuse  # noqa: E402
from tilewright.graph.passes.memory import MemoryPlan, plan_memory  # noqa: E402
from tilewright.graph.pipeline import optimize  # noqa: E402
from tilewright.importers import import_model  # noqa: E402
from tilewright.library.generated.elementwise import elementwise  # noqa: E402
from tilewright.library.select import candidates  # noqa: E402
from tilewright.targets.registry import get_target  # noqa: E402

LLAMA = llama.LlamaSize(hidden=256, layers=3, heads=2, key_heads=1, intermediate=896, vocabulary=256)
BERT = bert.BertSize(hidden=256, layers=3, heads=4, intermediate=1024, vocabulary=100)
MODELS: dict[str, ModelSpecification] = {
    "prefill": llama.prefill_specification(llama.random_model(LLAMA)),
    "decode": llama.decode_specification(llama.random_model(LLAMA)),
    "bert": bert.specification(bert.random_model(BERT)),
}


@pytest.mark.slow(but_every=2)
@pytest.mark.parametrize(
    ("name", "dynamic"), [("prefill", False), ("prefill", True), ("decode", False), ("bert", False)]
)
def test_plans_take_little_more_than_what_is_alive(name: str, dynamic: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    spec, target = MODELS[name], get_target("cuda:sm_90a")
    half = [x.half() if x.is_floating_point() else x for x in spec.example]
    graph = optimize(import_model(spec.module.half(), tuple(half), spec.dynamic_shapes if dynamic else None, name))
    plans: list[MemoryPlan] = []

    def planned(intervals) -> MemoryPlan:
        plans.append(plan_memory(intervals))
        return plans[-1]

    def copy(source: Value, target_value: Value) -> GroupTask:
        group = Group("movement", [], [source], [target_value], None, "copy")
        return GroupTask(group, elementwise(group, graph, target)[0])

    monkeypatch.setattr(storage, "plan_memory", planned)
    scheduled = [
        (group, None if group.kind == "view" else candidates(group, graph, target)[0]) for group in fuse(graph).groups
    ]
    assign_storage(graph, scheduled, copy)
    symbols = {symbol.name: (symbol.low + symbol.high) // 2 for symbol in graph.symbols.values()}
    (plan,) = plans
    print(plan.report(symbols))
    assert plan.least_bytes(symbols) > 0
    assert int(plan.report(symbols).split(": ")[1].split(" %")[0]) <= 110
