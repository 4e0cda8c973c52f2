"""Language models on a GPU, with the stand-in of `cuda_stand_in`: the results are those of the CPU."""

from __future__ import annotations

import gc
import weakref
from dataclasses import replace

import numpy as np
import pytest

from tests.host.llm_support import CASES, checkpoint_of
from tilewright.errors import DeviceError, InputError
from tilewright.llm import LLM, SamplingParameters
from tilewright.llm.gpu_model import GPUModel
from tilewright.llm.model import Chunk, Model
from tilewright.llm.sampling import Draw, Sampler
from tilewright.llm.step_graph import Limits
from tilewright.runtime.cuda.memory import DevicePart
from tilewright.runtime.cuda.staging import MirroredBuffer
from tilewright.runtime.cuda.streams import StreamMark
from tilewright.targets.nvidia.target import NvidiaTarget

pytestmark = pytest.mark.usefixtures("quick_engines")


def test_results_are_those_of_the_cpu(driver, tmp_path, rng):
    """Whole requests: chunked prompts with single tokens, preempted ones, tokens chosen on the GPU or the host."""
    folder = checkpoint_of("llama", tmp_path)
    options = {"memory": 26 << 10, "tokens": 24, "sequences": 3, "page": 8, "length": 64}
    llm, alone = LLM(folder, target="cuda", **options), LLM(folder, **options)
    assert {step.evidence["chosen"] for step in llm.model.engine.plan.steps} >= {"paged attention"}
    updates = [step for step in llm.model.engine.plan.steps if any("scatter_update" in one for one in step.operations)]
    layers = CASES["llama"]["num_hidden_layers"]  # whose keys and values are written where keys are turned
    assert len(updates) == layers + 2  # and tokens that were chosen are counted, and stay for the next step
    prompts = [rng.integers(0, 96, int(size)).tolist() for size in (1, 30, 9, 40, 17, 3)]
    few = {"max_tokens": 9, "ignore_eos": True}
    for wanted in (
        SamplingParameters(temperature=0.0, **few), SamplingParameters(temperature=0.9, seed=3, min_p=0.1, **few),
        SamplingParameters(temperature=0.9, seed=3, top_k=20, top_p=0.9, **few),
        SamplingParameters(temperature=0.0, presence_penalty=0.5, logit_bias={7: 3.0, 8: -100.0}, **few),
        SamplingParameters(temperature=0.8, seed=5, frequency_penalty=0.4, repetition_penalty=1.3, min_tokens=2, **few),
        SamplingParameters(temperature=0.7, seed=4, top_k=5, logprobs=1, presence_penalty=0.5, **few),
    ):  # fmt: skip
        found, expected = llm.generate_all(prompts, wanted), alone.generate_all(prompts, wanted)
        assert [one.completions[0].tokens for one in found] == [one.completions[0].tokens for one in expected]
    statistics = llm.engine.statistics
    assert statistics.preemptions > 0 and statistics.used_pages == 0
    assert driver.calls["cuGraphLaunch"] > driver.calls["cuGraphInstantiate"] > 0
    _check_draws(llm.model, alone.model, rng)
    _check_freed(llm.model)


def _check_draws(gpu, cpu, rng):
    """Tokens of many draws in one step, and logits that are NaN."""
    tokens = rng.integers(0, 96, 20).tolist()
    each = [{"temperature": float(rng.choice([0.0, 0.3, 1.0, 3.0])), "min_p": float(rng.choice([0.0, 0.2])),
             "top_k": int(rng.choice([0, 3, 40])), "top_p": float(rng.choice([1.0, 0.8]))}
            for _ in range(20)]  # fmt: skip
    samplers = [Sampler(SamplingParameters(**wanted), seed, 0, ()) for seed, wanted in enumerate(each)]
    draws = [sampler.draw() for sampler in samplers]
    chosen = gpu.run([Chunk(tokens, 0, [2, 0, 1], range(20), 0, draws)])
    logits = cpu.run([Chunk(tokens, 0, [2, 0, 1], range(20))])
    assert chosen == [sampler.choose(row).token for sampler, row in zip(samplers, logits, strict=True)]
    np.testing.assert_allclose(gpu.run([Chunk(tokens, 0, [2, 0, 1], range(20))]), logits, rtol=0, atol=1e-4)
    mixed = gpu.run([Chunk(tokens, 0, [2, 0, 1], (3, 19), 0, [None, Draw()])])
    np.testing.assert_allclose(mixed[0], logits[3], rtol=0, atol=1e-4)
    assert mixed[1] == int(np.argmax(logits[19]))


def _check_freed(gpu):
    """Memory of a GPU does not wait for the collector."""
    gc.disable()
    try:
        model = GPUModel(gpu.engine, gpu.limits, 4)
        alive = weakref.ref(model)
        del model
        assert alive() is None
    finally:
        gc.enable()


def test_a_step_that_fails_leaves_nothing_wrong(driver, tmp_path, rng, monkeypatch):
    """Its place is not filled while the GPU may copy from it; each text still has a row, and the tables are known."""
    folder = checkpoint_of("llama", tmp_path)
    options = {"memory": 26 << 10, "tokens": 24, "sequences": 3, "page": 8, "length": 64}
    llm, alone = LLM(folder, target="cuda", **options), LLM(folder, **options)
    wanted = SamplingParameters(max_tokens=4, temperature=0.0, presence_penalty=0.5, ignore_eos=True)
    prompts = [rng.integers(0, 96, 5).tolist() for _ in range(3)]
    expected = [one.completions[0].tokens for one in alone.generate_all(prompts, wanted)]

    def fail(*arguments):
        raise DeviceError("out of order")

    marked = []
    marks_a_place = StreamMark.set

    def mark(self):
        marked.append(self)
        marks_a_place(self)

    monkeypatch.setattr(StreamMark, "set", mark)

    llm.generate_all(prompts, SamplingParameters(max_tokens=2, temperature=0.0))
    for owner, name in ((DevicePart, "write"), (Sampler, "tables"), (MirroredBuffer, "download")):
        for _ in range(4):  # more often than there are rows
            marked.clear()
            with monkeypatch.context() as patch:
                patch.setattr(owner, name, fail)
                assert llm.generate_all(prompts[:1], wanted)[0].error
            assert len(marked) == (owner is MirroredBuffer)  # its inputs were being copied
        assert [one.completions[0].tokens for one in llm.generate_all(prompts, wanted)] == expected


def test_marks_are_freed(driver):
    gc.collect()  # marks of other tests
    mark = StreamMark(0)
    mark.set()
    freed = driver.calls.get("cuEventDestroy", 0)
    del mark
    assert driver.calls.get("cuEventDestroy", 0) == freed + 1


def test_unknown_targets_are_refused(tmp_path):
    folder = checkpoint_of("llama", tmp_path)
    with pytest.raises(InputError, match="target"):
        LLM(folder, target="gpu")


@pytest.mark.parametrize("cache", ["fp8", "int8"])
def test_keys_and_values_in_8_bits(cache, driver, tmp_path, rng):
    """A prompt in chunks, and single tokens: logits are those of the CPU with the same storage."""
    folder, limits = checkpoint_of("llama", tmp_path), Limits(8, 24, 3, 64, cache)
    models = [kind.open(folder, 12, limits, "float32") for kind in (GPUModel, Model)]
    tokens, pages = rng.integers(0, 96, 40).tolist(), rng.permutation(12).tolist()
    at = 0
    for count in (20, 5, 1, 1, 13):
        chunk = Chunk(tokens[at : at + count], at, pages[: -(-(at + count) // 8)], range(count))
        found, expected = (np.stack([np.asarray(row) for row in model.run([chunk])]) for model in models)
        at += count
        # Both round the same numbers but for those that lie between two of 8 bits.
        assert np.linalg.norm(found - expected) < 2e-2 * np.linalg.norm(expected)


@pytest.mark.slow(but_every=2)
@pytest.mark.parametrize("name", ["qwen2", "smollm3"])
def test_heads_are_stored_by_their_product(name, driver, tmp_path, rng, monkeypatch):
    """Chunks and single tokens, in bfloat16: with biases, and in layers without positions.  Logits are those of a step
    in which another kernel turns and stores heads, but for what follows from the order in which products are added."""
    wide = {"hidden_size": 64, "head_dim": 64, "num_attention_heads": 4, "num_key_value_heads": 2}
    monkeypatch.setitem(CASES, f"{name}, wide", {**CASES[name], **wide, "dtype": "bfloat16"})
    name = f"{name}, wide"  # what is known of a case is stored by its name
    folder, limits = checkpoint_of(name, tmp_path), Limits(8, 24, 3, 64)
    one = GPUModel.open(folder, 12, limits, "bfloat16")
    chosen = [step.evidence["chosen"] for step in one.engine.plan.steps]
    assert chosen.count("hopper projection") == CASES[name]["num_hidden_layers"]
    facts = NvidiaTarget.kernels.fget
    monkeypatch.setattr(NvidiaTarget, "kernels", property(lambda target: replace(facts(target), projected_rows=0)))
    two = GPUModel.open(folder, 12, limits, "bfloat16")
    assert len(two.engine.plan.steps) > len(one.engine.plan.steps)
    tokens, pages, at = rng.integers(0, 96, 40).tolist(), rng.permutation(12).tolist(), 0
    for count in (19, 5, 1, 1, 13):
        chunk = Chunk(tokens[at : at + count], at, pages[: -(-(at + count) // 8)], range(count))
        found, expected = (np.stack([np.asarray(row) for row in model.run([chunk])]) for model in (one, two))
        at += count
        assert np.linalg.norm(found - expected) < 2e-2 * np.linalg.norm(expected)
