"""Tokens, words, and sequences of different lengths in one row, of ONNX Runtime's domain, against ONNX Runtime."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

pytest.importorskip("onnx")
pytest.importorskip("onnxruntime")

from tests.host.test_import_onnx_runtime import check, runtime_results
from tests.host.test_import_onnx_states import floats, model, own
from tilewright.errors import ImportModelError, InputError, UnsupportedOperationError
from tilewright.importers.onnx import import_onnx
from tilewright.onnx import InferenceSession


def offsets(rng: np.random.Generator, count: int, longest: int = 5) -> np.ndarray:
    """Where `count` sequences of at least one token begin, and where the last ends."""
    return np.concatenate([[0], np.cumsum(rng.integers(1, longest + 1, count))]).astype(np.int32)


@pytest.mark.parametrize("case", range(8))
def test_convolutions_of_sequences_in_a_row(case: int) -> None:
    rng = np.random.default_rng(case)
    taps, dilation, capacity = int(rng.integers(1, 5)), int(rng.integers(1, 3)), int(rng.integers(0, 4))
    ends = offsets(rng, int(rng.integers(1, 5)))
    count, channels, room = len(ends) - 1, int(rng.integers(1, 5)), (taps - 1) * dilation
    inputs = [floats(rng, int(ends[-1]), channels), floats(rng, channels, 1, taps), ends]
    inputs += [floats(rng, channels) if case % 2 else None, floats(rng, count, channels, room)]
    options: dict[str, Any] = {"dilation": dilation, "activation": ("none", "silu")[case % 2]}
    if capacity:
        inputs.append(rng.integers(0, capacity + 2, count).astype(np.int32))
        options["state_update_capacity"] = capacity
    own("VarlenCausalConvWithState", *inputs, outputs=3 if capacity else 2, **options)


@pytest.mark.parametrize("kind", ["linear", "gated", "delta", "gated_delta"])
@pytest.mark.parametrize("ragged", [False, True])
@pytest.mark.parametrize("wide", [False, True])
def test_gated_delta_nets(kind: str, ragged: bool, wide: bool, rng: np.random.Generator) -> None:
    """Of one length and of several; decays of heads and of elements of keys, as given or from projections.

    Roundings of a state are part of all that follows.
    """
    groups, heads, size, depth = 2, 4, 3, 5
    ends = offsets(rng, 3) if ragged else np.array([0, 4, 8], np.int32)
    total, count = int(ends[-1]), len(ends) - 1
    parts = [floats(rng, total, groups, size), floats(rng, total, groups, size) / 2, floats(rng, total, heads, depth)]
    decay = -np.abs(floats(rng, total, heads, *([size] if wide else []))) if "gated" in kind else None
    rate = rng.random((total, heads), np.float32) if "delta" in kind else None
    state = floats(rng, count, heads, depth, size)
    inputs = (*parts, ends if ragged else None, decay, rate, state)
    own("GatedDeltaNet", *inputs, outputs=2, rtol=1e-3, update_rule=kind, qk_l2_norm=int(wide))
    if kind != "gated_delta":
        return
    for gate in ("softplus", "sigmoid"):
        bias = floats(rng, heads * (size if wide else 1))
        options = {"gate_activation": gate, "beta_activation": "sigmoid", "scale": 0.7, "qk_l2_norm": 1}
        own("GatedDeltaNet", *inputs, floats(rng, heads), bias, outputs=2, rtol=1e-3, **options)


def test_gated_delta_nets_in_other_forms(rng: np.random.Generator) -> None:
    state = floats(rng, 2, 4, 5, 3)
    packed = floats(rng, 6, 2 * 2 * 3 + 4 * 5)
    own("GatedDeltaNet", packed, *[None] * 5, state, outputs=2, update_rule="linear")
    parts = floats(rng, 2, 3, 2, 3), floats(rng, 2, 3, 2, 3), floats(rng, 2, 3, 4, 5)
    own("GatedDeltaNet", *parts, None, -np.abs(floats(rng, 2, 3, 4)), None, state, outputs=2, update_rule="gated")


def test_wrong_offsets_are_found(rng: np.random.Generator) -> None:
    ends = np.array([0, 3, 2, 5], np.int32)
    inputs = floats(rng, 5, 2), floats(rng, 2, 1, 2), ends, None, floats(rng, 3, 2, 1)
    made, feeds = model("VarlenCausalConvWithState", inputs, 2)
    with pytest.raises(InputError, match="begin with 0, rise, and end with the number of tokens"):
        InferenceSession(made).run(None, feeds)


@pytest.mark.parametrize("case", range(24))
def test_hashes_of_sequences(case: int) -> None:
    rng = np.random.default_rng(case)
    dtype = (np.int32, np.int64)[case % 2]
    largest, heads = int(rng.integers(2, 5)), int(rng.integers(1, 4))
    room, columns, varied = largest - 1, (largest - 1) * heads, case % 3 == 0
    ends = offsets(rng, int(rng.integers(1, 4)), 6)
    count = len(ends) - 1
    length = int(rng.integers(0 if case % 5 else 1, 6))
    shape = (int(ends[-1]),) if varied else (count, length)
    high = 1 << (20 if dtype == np.int32 else 45)
    inputs: list[np.ndarray | None] = [
        rng.integers(0, 5, shape).astype(dtype), rng.integers(-high, high, largest).astype(dtype),
        rng.integers(1, 100, columns).astype(dtype),
    ]  # fmt: skip
    inputs += [ends] if varied else []
    chosen = rng.integers(0, 2, 4)
    inputs.append(rng.integers(0, 5, (count, room)).astype(dtype) if chosen[0] else None)
    inputs.append(rng.integers(0, 1000, columns).astype(dtype) if chosen[1] else None)
    inputs.append(np.array(3, dtype) if chosen[2] else None)
    options: dict[str, Any] = {"max_ngram_size": largest, "n_head_per_ngram": heads, "pad_id": 2}
    options["reset_on_eos"] = int(rng.integers(0, 2))
    outputs = 2
    if chosen[3]:
        inputs.append(rng.integers(0, 2, shape).astype(np.int32))
        if varied and chosen[0]:
            inputs.append(rng.integers(0, 2, (count, room)).astype(np.int32))
        outputs = 3 if varied else 2
    own(f"{'Varlen' if varied else ''}NGramHashMapping", *inputs, outputs=outputs, **options)


def test_states_after_the_first_tokens(rng: np.random.Generator) -> None:
    ends = np.array([0, 3, 4], np.int32)
    ids, counts = rng.integers(0, 9, 4), np.array([2, 5], np.int32)
    inputs = ids, np.array([3, 5, 7]), np.array([11, 13]), ends, None, None, None, None, None, counts
    options = {"max_ngram_size": 3, "n_head_per_ngram": 1, "pad_id": 8, "state_update_capacity": 3}
    made, feeds = model("VarlenNGramHashMapping", inputs, 4, **options)
    made.graph.node[0].output[2] = ""
    del made.graph.output[2]
    check(made, feeds)


@pytest.mark.parametrize("taps", [1, 3])
def test_words_of_characters(taps: int, rng: np.random.Generator) -> None:
    words = rng.integers(0, 6, (5, 7)).astype(np.int32)
    words[:, 0] = np.maximum(words[:, 0], 1)  # what a word without characters gives, ONNX Runtime does not write
    own("WordConvEmbedding", words, floats(rng, 4, 1, taps, 3), floats(rng, 4), floats(rng, 6, 3))


@pytest.mark.parametrize("case", range(24))
def test_suffixes_in_the_source(case: int) -> None:
    rng = np.random.default_rng(case)
    source = rng.integers(0, 3, rng.integers(1, 9))
    current, begin = rng.integers(0, 3, rng.integers(1, 5)), int(rng.integers(0, len(source) + 1))
    predicted = np.concatenate([source[begin:], [1]])
    changed = rng.random(len(predicted)) < 0.2
    inputs = source, current, np.array([begin]), np.where(changed, 2, predicted) if case % 4 else None
    least = int(rng.integers(1, 3))
    options = {"min_ngram_size": least, "max_ngram_size": least + int(rng.integers(0, 3))}
    made, feeds = model("BifurcationDetector", inputs, 2, **options)
    wanted = runtime_results(made, feeds)
    for entry in made.graph.input:
        entry.type.tensor_type.shape.dim[0].dim_param = f"{entry.name}_n" if entry.name != "x2" else ""
    made.graph.input[2].type.tensor_type.shape.dim[0].dim_value = 1
    for found, want in zip(InferenceSession(made).run(None, feeds), wanted, strict=True):
        np.testing.assert_array_equal(found, want)


@pytest.mark.parametrize("case", range(12))
def test_cheapest_paths(case: int) -> None:
    rng = np.random.default_rng(case)
    costs = rng.integers(0, 4, rng.integers(1, 9, 2)).astype(np.float32) if case % 2 else floats(rng, 7, 5)
    own("DynamicTimeWarping", costs[None] if case % 3 else costs)


def test_what_has_no_meaning_here_is_refused(rng: np.random.Generator) -> None:
    inputs = floats(rng, 2, 32), rng.integers(0, 255, 100, np.uint8), np.array([32, 8])
    with pytest.raises(UnsupportedOperationError, match="order of ONNX Runtime's own kernels"):
        import_onnx(model("MatMulFpQ4", inputs)[0])
    with pytest.raises(ImportModelError, match="at least 2"):
        ids = rng.integers(0, 9, (2, 3))
        import_onnx(model("NGramHashMapping", (ids, ids[0], ids[0]), max_ngram_size=1, n_head_per_ngram=1, pad_id=0)[0])


@pytest.mark.parametrize(("kind", "block", "size"), [
    (0, 1, 4), (1, 1, 2), (30, 1, 2), (2, 32, 18), (6, 32, 22), (8, 32, 34), (13, 256, 176), (14, 256, 210),
    (20, 32, 18), (23, 256, 136),
])  # fmt: skip
def test_rows_of_packed_tables(kind: int, block: int, size: int, rng: np.random.Generator) -> None:
    """Of random bytes, but for the scales of blocks, which are numbers; indices may be any."""
    width = 512
    table = rng.integers(0, 256, (5, width // block, size), dtype=np.uint8)
    if kind in (0, 1, 30):
        table = floats(rng, 5, width).astype({0: "<f4", 1: "<f2"}.get(kind, "<f4"))
        table = (
            table.view(np.uint8)
            if kind != 30
            else np.ascontiguousarray(table.view(np.uint8).reshape(5, -1, 4)[..., 2:])
        )
    else:
        for begin in {14: (208,), 13: (0, 2)}.get(kind, (0,)):
            scales = rng.random(table.shape[:2], np.float32).astype("<f2")
            table[..., begin : begin + 2] = scales.view(np.uint8).reshape(*scales.shape, 2)
    indices = np.array([[0, 4], [-1, 5], [2, 3]])
    own("GatherPacked", table.reshape(5, -1), indices, packed_type=kind, K=width, output_dtype=1)
