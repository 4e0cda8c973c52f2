"""Whole models as engines: as exact as PyTorch in float32, for every size, from one engine each."""

from __future__ import annotations

import functools
import threading

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from tests.host import model_support  # noqa: E402
from tests.host.model_support import onnx_graph, torch_graph  # noqa: E402
from tests.models import bert, llama, resnet  # noqa: E402
from tests.models.specification import ModelSpecification  # noqa: E402
from tilewright import Engine  # noqa: E402
from tilewright.engine.builder import build  # noqa: E402
from tilewright.importers import import_model  # noqa: E402

BATCHES = (1, 3, 16)
SIZES: dict[str, list[dict[str, int]]] = {
    "minilm": [{"batch": batch, "sequence": sequence} for batch in BATCHES for sequence in (7, 24, 64)],
    "resnet50": [{"batch": batch} for batch in BATCHES],
    "prefill": [{"batch": batch, "sequence": sequence} for batch in BATCHES for sequence in (1, 20, 40)],
    "decode": [{"batch": batch, "past": past} for batch in BATCHES for past in (0, 30, 100)],
}


@functools.cache
def specification(name: str) -> ModelSpecification:
    if name == "minilm":
        return model_support.specification("minilm")
    if name == "resnet50":  # the real one, on a small image
        return resnet.specification(resnet.random_model(), size=64)
    decoder = llama.random_model(llama.LlamaSize(hidden=128, layers=2, cache=128))
    return llama.prefill_specification(decoder) if name == "prefill" else llama.decode_specification(decoder)


@functools.cache
def engine(name: str, kind: str = "torch") -> Engine:
    if kind == "onnx":
        return build(onnx_graph(name))
    if kind == "folder":
        return build(import_model(bert.checkpoint_folder()))
    spec = specification(name)
    if name == "minilm":
        return build(torch_graph(name))
    return build(import_model(spec.module, spec.example, spec.dynamic_shapes, spec.name))


# Where a run has few values, PyTorch may happen to round well: a sum of 128 products, the least that these models
# have, walks sqrt(128) / 2 roundings away.
ROUNDING = 6 * 2.0**-23


def check(spec: ModelSpecification, built: Engine, sizes: dict[str, int], seed: int) -> None:
    """The engine's largest error is at most twice that of PyTorch in float32, both against float64."""
    inputs = spec.make_inputs(**sizes, seed=seed)
    exact = spec.run(inputs, torch.float64)
    given = {name: tensor.clone() for name, tensor in inputs.items()}
    outputs = built.run(given)
    found = [*outputs.values(), *(given[name] for name in spec.mutated)]
    assert all(isinstance(value, torch.Tensor) and value.dtype == torch.float32 for value in found)
    allowed = 2 * largest_error(spec.run(inputs), exact) + ROUNDING
    assert largest_error(found, exact) <= allowed, f"{spec.name} {sizes} seed {seed}"


def largest_error(found: list[torch.Tensor], exact: list[torch.Tensor]) -> float:
    """Over all outputs, relative to the largest value of each."""
    return max(float((a - b).abs().max() / b.abs().max()) for a, b in zip(found, exact, strict=True))


@pytest.fixture
def seed() -> int:
    value = int(np.random.SeedSequence().entropy % 2**31)
    print(f"seed {value}")
    return value


@pytest.mark.parametrize("name", SIZES)
def test_as_exact_as_pytorch_for_every_size(name, seed):
    for number, sizes in enumerate(SIZES[name]):
        check(specification(name), engine(name), sizes, seed + number)


@pytest.mark.parametrize("kind", ["folder", "onnx"])
def test_the_trained_model_from_other_sources(kind, seed):
    for number, sizes in enumerate(SIZES["minilm"][::4]):
        check(specification("minilm"), engine("minilm", kind), sizes, seed + number)


def test_a_saved_model_in_several_threads(tmp_path, seed):
    engine("prefill").save(tmp_path / "prefill.engine")
    loaded = Engine.load(tmp_path / "prefill.engine")
    spec = specification("prefill")
    failures: list[BaseException] = []

    def work(number: int) -> None:
        try:
            for sizes in SIZES["prefill"]:
                check(spec, loaded, sizes, seed + number)
        except BaseException as error:  # noqa: B036 - told by the main thread
            failures.append(error)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(300)
        assert not thread.is_alive()
    assert not failures


def test_decoding_step_by_step_is_prefilling_at_once(seed):
    """Tokens decoded one after the other through the static cache give the logits of the whole prompt."""
    spec = specification("prefill")
    tokens = spec.make_inputs(batch=3, sequence=12, seed=seed)["input_ids"]
    wanted = engine("prefill")(tokens)
    inputs = specification("decode").make_inputs(batch=3, past=0, seed=seed)
    for position in range(12):
        inputs |= {"input_ids": tokens[:, position : position + 1], "positions": torch.tensor([position])}
        logits = engine("decode").run(inputs)
        (found,) = logits.values()
        np.testing.assert_allclose(found[:, 0], wanted[:, position], rtol=0, atol=2e-5 * float(wanted.abs().max()))
