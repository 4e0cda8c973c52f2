"""LoRA adapters: requests of several adapters share steps, and each gives what a model with merged weights gives."""

from __future__ import annotations

import json

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file
from typer.testing import CliRunner

from tests.host.llm_support import checkpoint_of
from tests.host.test_llm_engine import run
from tilewright.cli.main import application
from tilewright.errors import ImportModelError, InputError
from tilewright.llm import LLM, SamplingParameters

GREEDY = SamplingParameters(temperature=0.0, max_tokens=12, ignore_eos=True)
PROMPT = [5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16, 17, 18, 19, 20, 21, 22]


def write_adapter(folder, base, targets, rank, alpha, seed, **changes):
    """An adapter for the products of a checkpoint whose paths end with the targets."""
    folder.mkdir()
    rng, tensors = np.random.default_rng(seed), {}
    for name, weight in load_file(base / "model.safetensors").items():
        if name.endswith(tuple(f"{target}.weight" for target in targets)):
            path = f"base_model.model.{name.removesuffix('.weight')}"
            tensors[f"{path}.lora_A.weight"] = rng.standard_normal((rank, weight.shape[1])).astype(np.float32) * 0.3
            tensors[f"{path}.lora_B.weight"] = rng.standard_normal((weight.shape[0], rank)).astype(np.float32) * 0.3
    save_file(tensors, folder / "adapter_model.safetensors")
    config = {"peft_type": "LORA", "r": rank, "lora_alpha": alpha, "bias": "none", "target_modules": targets}
    (folder / "adapter_config.json").write_text(json.dumps({**config, **changes}))
    return folder


def merged(folder, base, adapter, scale):
    """A checkpoint whose weights have the adapter in them."""
    folder.mkdir()
    (folder / "config.json").write_text((base / "config.json").read_text())
    weights, factors = dict(load_file(base / "model.safetensors")), load_file(adapter / "adapter_model.safetensors")
    for name in list(weights):
        path = f"base_model.model.{name.removesuffix('.weight')}"
        if f"{path}.lora_A.weight" in factors:
            product = factors[f"{path}.lora_B.weight"].astype(np.float64) @ factors[f"{path}.lora_A.weight"]
            weights[name] = (weights[name] + scale * product).astype(np.float32)
    save_file(weights, folder / "model.safetensors")
    return folder


@pytest.fixture(scope="module")
def base(tmp_path_factory):
    return checkpoint_of("llama", tmp_path_factory.mktemp("adapters"))


@pytest.fixture(scope="module")
def adapters(base):
    own = {"rank_pattern": {}, "alpha_pattern": {"v_proj": 6}, "use_rslora": False}
    return {
        "attention": write_adapter(base.parent / "one", base, ["q_proj", "v_proj"], 2, 4, 1),
        "all": write_adapter(base.parent / "two", base, ["q_proj", "k_proj", "o_proj", "gate_proj", "down_proj"], 3, 6,
                             2,
                             use_rslora=True, r=3),
        "values": write_adapter(base.parent / "three", base, ["v_proj"], 4, 99, 3, **own),
    }  # fmt: skip


SCALES = {"attention": 2.0, "all": 6 / 3**0.5, "values": 1.5}


@pytest.fixture(scope="module")
def llm(base, adapters):
    return LLM(base, memory=2 << 20, adapters=adapters)


def tokens(outputs):
    return [output.completions[0].tokens for output in outputs]


def test_adapters_of_one_step_are_merged_models(base, adapters, llm):
    names = [None, *adapters]
    expected = {None: LLM(base, memory=1 << 20).generate(PROMPT, GREEDY).completions[0].tokens}
    for name in adapters:
        folder = merged(base.parent / f"merged-{name}", base, adapters[name], SCALES[name])
        expected[name] = LLM(folder, memory=1 << 20).generate(PROMPT, GREEDY).completions[0].tokens
    assert len({tuple(each) for each in expected.values()}) == 4
    for _ in range(2):  # once more, with prefixes that are known
        found = llm.generate_all([PROMPT] * 8, GREEDY, adapters=[*names, *reversed(names)])
        assert tokens(found) == [expected[name] for name in [*names, *reversed(names)]]
    assert llm.generate(PROMPT, GREEDY, adapter="all").cached_tokens == 16  # of its own keys and values


def test_no_salt_gives_the_keys_and_values_of_another_adapter(llm):
    """Those of a server's clients may be any texts."""
    cached = []
    for adapter, salt in (("all", ""), (None, "\0all"), (None, "all"), ("attention", "all"), ("all", "")):
        name = llm.engine.add(PROMPT, GREEDY, salt=salt, adapter=adapter)
        cached.append(run(llm.engine)[name].cached_tokens)
    assert cached[1:] == [0, 0, 0, 16]


def test_a_server_takes_adapters_as_models(base, adapters):
    pytest.importorskip("jinja2")
    from tests.host.test_llm_serve import ask
    from tilewright.llm.asynchronous import AsyncLLM
    from tilewright.llm.serve.application import Application

    served = AsyncLLM(base, memory=2 << 20, adapters=adapters)
    application = Application(served, "base")
    models = ask(application, "GET", "/v1/models")[1]["data"]
    assert [model["id"] for model in models] == ["base", *adapters] and models[1]["parent"] == "base"
    body = {"prompt": PROMPT, "max_tokens": 2, "logprobs": 0, "temperature": 0}
    found = {name: ask(application, "POST", "/v1/completions", {**body, "model": name}) for name in ["base", *adapters]}
    assert all(content["model"] == name for name, (_, content) in found.items())
    assert len({content["choices"][0]["logprobs"]["token_logprobs"][0] for _, content in found.values()}) == 4
    assert ask(application, "POST", "/v1/completions", {**body, "model": "other"})[0] == 404
    served.close()


def test_adapters_that_are_not_there(base, llm):
    with pytest.raises(InputError, match="attention, all, values"):
        llm.generate(PROMPT, GREEDY, adapter="other")
    with pytest.raises(InputError, match="there are none"):
        LLM(base, memory=1 << 20).generate(PROMPT, GREEDY, adapter="other")


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"peft_type": "IA3"}, "peft_type"), ({"bias": "all"}, "bias"), ({"use_dora": True}, "use_dora"),
        ({"init_lora_weights": "pissa"}, "init_lora_weights"), ({"init_lora_weights": "olora"}, "init_lora_weights"),
        ({"modules_to_save": ["lm_head"]}, "modules_to_save"), ({"r": 0}, "'r'"), ({"r": 5}, "rank"),
        ({"lora_alpha": "x"}, "lora_alpha"), ({"fan_in_fan_out": True}, "fan_in_fan_out"),
    ],
)  # fmt: skip
def test_configurations_that_are_refused(base, tmp_path, changes, message):
    folder = write_adapter(tmp_path / "adapter", base, ["q_proj"], 2, 4, 1, **changes)
    with pytest.raises(ImportModelError, match=message):
        LLM(base, memory=1 << 20, adapters={"a": folder})


@pytest.mark.parametrize(
    ("name", "shape", "message"),
    [
        ("model.layers.0.self_attn.q_proj.lora_A.weight", (2, 7), "another model"),
        ("model.layers.0.self_attn.q_proj.lora_B.weight", (7, 2), "another model"),
        ("model.layers.0.self_attn.q_proj.lora_B.weight", (7, 3), "shapes"),
        ("model.layers.9.self_attn.q_proj.lora_A.weight", (2, 48), "lora_B"),
        ("model.layers.0.self_attn.q_proj.magnitude", (2,), "no factor"),
        ("lm_head.lora_A.weight", (2, 48), "lora_B"),
    ],
)
def test_tensors_that_are_refused(base, tmp_path, name, shape, message):
    folder = write_adapter(tmp_path / "adapter", base, ["q_proj"], 2, 4, 1)
    tensors = load_file(folder / "adapter_model.safetensors")
    save_file(
        {**tensors, f"base_model.model.{name}": np.zeros(shape, np.float32)}, folder / "adapter_model.safetensors"
    )
    with pytest.raises(ImportModelError, match=message):
        LLM(base, memory=1 << 20, adapters={"a": folder})


def test_targets_that_are_not_there(base, tmp_path):
    folder = write_adapter(tmp_path / "adapter", base, ["embed_tokens"], 2, 4, 1)
    with pytest.raises(ImportModelError, match="embed_tokens"):
        LLM(base, memory=1 << 20, adapters={"a": folder})
    with pytest.raises(ImportModelError, match="adapter_config"):
        LLM(base, memory=1 << 20, adapters={"a": tmp_path})


@pytest.mark.parametrize("command", [["generate", "folder", "text"], ["chat", "folder"]])
def test_one_adapter_for_a_text(command):
    failed = CliRunner().invoke(application(), [*command, "--lora", "a=x", "--lora", "b=y"])
    assert failed.exit_code == 2 and "--lora is given 2 times" in failed.output, failed.output
