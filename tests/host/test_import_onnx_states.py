"""Layers with states, gates and streams of ONNX Runtime's domain against ONNX Runtime."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

pytest.importorskip("onnx")
pytest.importorskip("onnxruntime")

from tests.host.test_import_onnx_runtime import check, model_of
from tilewright.errors import ImportModelError, UnsupportedOperationError
from tilewright.importers.onnx import import_onnx
from tilewright.onnx import InferenceSession

Arrays = tuple["np.ndarray | None", ...]


def model(operation: str, inputs: Arrays, outputs: int = 1, **attributes: Any) -> Any:
    named = [("", np.zeros(0), True) if x is None else (f"x{place}", x, False) for place, x in enumerate(inputs)]
    return model_of(operation, named, [f"y{place}" for place in range(outputs)], domain="com.microsoft", **attributes)


def own(operation: str, *inputs: np.ndarray | None, outputs: int = 1, rtol: float = 1e-4, **attributes: Any) -> None:
    made, feeds = model(operation, inputs, outputs, **attributes)
    check(made, feeds, rtol)


def floats(rng: np.random.Generator, *shape: int) -> np.ndarray:
    return rng.standard_normal(shape, dtype=np.float32)


def test_gates_and_norms(rng: np.random.Generator) -> None:
    own("GatedAdd", floats(rng, 2, 3, 4), floats(rng, 2, 3, 4), floats(rng, 2, 3, 1))
    own("ScaledSiLU", floats(rng, 2, 3), alpha=1.5)
    own("ScaledSiLU", floats(rng, 2, 3), np.array(0.7, np.float32))
    for activation in ("silu", "swish", "sigmoid"):
        x, gate = floats(rng, 2, 3, 8), floats(rng, 2, 3, 8)
        own("GatedRMSNorm", x, floats(rng, 4), gate, activation=activation, epsilon=1e-2)
    own("LinearAttentionGate", floats(rng, 2, 3, 4), floats(rng, 4), floats(rng, 4), floats(rng, 2, 3, 4), outputs=2)
    own("LinearAttentionGate", floats(rng, 2, 3, 4), floats(rng, 4), floats(rng, 4))


def test_streams(rng: np.random.Generator) -> None:
    for scale in (floats(rng, 3, 4), floats(rng, 4), None):
        own("BranchwiseRMSNorm", floats(rng, 2, 3, 4), scale)
    for scale in (floats(rng, 12), floats(rng, 4)):
        own("BranchwiseRMSNorm", floats(rng, 2, 12), scale, num_branches=3)
    for shares in ((2, 3), (2, 3, 1), (2, 3, 4)):
        own("HyperConnectionPreMix", floats(rng, 2, 3, 4), floats(rng, *shares), reduction_scale=0.5)
        own("HyperConnectionPostMix", floats(rng, 2, 3, 4), floats(rng, 2, 4), floats(rng, *shares))
    own("HyperConnectionPreMix", floats(rng, 2, 12), floats(rng, 2, 12), num_branches=3)
    mixed = floats(rng, 2, 12), floats(rng, 2, 4), floats(rng, 2, 3), floats(rng, 2, 3, 3)
    own("HyperConnectionPostMix", *mixed, num_branches=3)


@pytest.mark.parametrize(("axis", "size", "step"), [(1, 3, 2), (0, 1, 1), (-1, 2, 3), (0, 4, 1)])
def test_windows_of_a_dimension(axis: int, size: int, step: int, rng: np.random.Generator) -> None:
    own("UnfoldTensor", floats(rng, 4, 9), dim=axis, size=size, step=step)


@pytest.mark.parametrize("options", [{}, {"activation": "silu"}, {"dilation": 2}], ids=str)
@pytest.mark.parametrize("length", [1, 5])
def test_causal_convolutions(options: dict[str, Any], length: int, rng: np.random.Generator) -> None:
    kept = 2 * options.get("dilation", 1)
    weights = floats(rng, 4, 1, 3), floats(rng, 4)
    own("CausalConvWithState", floats(rng, 2, 4, length), *weights, floats(rng, 2, 4, kept), outputs=2, **options)
    own("CausalConvWithState", floats(rng, 2, 4, length), weights[0], outputs=2, **options)
    for channels in ((4,), (2, 2)):
        x, past = floats(rng, 2, length, *channels), floats(rng, 2, kept, *channels)
        own("CausalConvWithState", x, *weights, past, outputs=2, channels_last=1, **options)


@pytest.mark.parametrize("rule", ["linear", "gated", "delta", "gated_delta"])
@pytest.mark.parametrize(("heads", "groups"), [(2, 2), (4, 2), (2, 4)])
@pytest.mark.parametrize("length", [1, 5])
def test_linear_attention(rule: str, heads: int, groups: int, length: int, rng: np.random.Generator) -> None:
    size, depth = 4, 6
    for each in (True, False):  # of the elements of a key, and of the heads
        inputs = floats(rng, 2, length, heads * size), floats(rng, 2, length, groups * size) / 2
        inputs = (*inputs, floats(rng, 2, length, groups * depth))
        state = floats(rng, 2, groups, size, depth) if each else None
        decay = -np.abs(floats(rng, 2, length, groups * size if each else groups)) if "gated" in rule else None
        rate = rng.random((2, length, groups if each else 1), np.float32) if "delta" in rule else None
        options = {"q_num_heads": heads, "kv_num_heads": groups, "update_rule": rule}
        own("LinearAttention", *inputs, state, decay, rate, outputs=2, **options, scale=0.0 if each else 0.7)


def test_linear_attention_of_any_length_is_one_engine(rng: np.random.Generator) -> None:
    inputs = tuple(floats(rng, 1, 3, 8) for _ in range(3))
    heads = {"q_num_heads": 2, "kv_num_heads": 2}
    made, feeds = model("LinearAttention", inputs, 2, **heads, update_rule="linear")
    for entry in made.graph.input:
        entry.type.tensor_type.shape.dim[1].dim_param = "steps"
    session = InferenceSession(made)
    whole = session.run(None, {name: np.tile(x, (1, 2, 1)) for name, x in feeds.items()})
    assert whole[0].shape == (1, 6, 8)
    np.testing.assert_allclose(session.run(None, feeds)[0], whole[0][:, :3], rtol=1e-4, atol=1e-5)
    with pytest.raises(ImportModelError, match="needs the input 4"):
        import_onnx(model("LinearAttention", inputs, 2, **heads, update_rule="gated")[0])
    with pytest.raises(UnsupportedOperationError, match="state_window"):
        import_onnx(model("LinearAttention", inputs, 2, **heads, update_rule="linear", state_window=2)[0])


@pytest.mark.parametrize("layout", [0, 1])
@pytest.mark.parametrize("interleaved", [0, 1])
def test_rotary_positions_of_three_coordinates(layout: int, interleaved: int, rng: np.random.Generator) -> None:
    places = rng.integers(0, 5, (3, 2, 3))
    options = {"mrope_layout": layout, "interleaved": interleaved}
    tables = floats(rng, 6, 4), floats(rng, 6, 4)
    own("MRotaryEmbedding", floats(rng, 2, 2, 3, 8), places, *tables, mrope_section=[2, 1, 1], **options)
    options |= {"num_heads": 2, "rotary_embedding_dim": 16, "mrope_section": [3, 2, 3]}
    own("MRotaryEmbedding", floats(rng, 2, 3, 48), places, floats(rng, 6, 8), floats(rng, 6, 8), **options)


@pytest.mark.parametrize("dtype", [np.float32, np.float16])
def test_gates_of_likeness(dtype: type, rng: np.random.Generator) -> None:
    keys, queries, values = (floats(rng, *shape).astype(dtype) for shape in [(2, 3, 4, 8)] * 2 + [(2, 3, 8)])
    scales = [floats(rng, 4, 8).astype(dtype) for _ in range(3)]
    own("EngramGate", keys, queries, values, *scales, outputs=2, epsilon=1e-2)
    keys[0, 0] = 0
    own("EngramGate", keys, queries, values, *scales[:2])


@pytest.mark.parametrize("case", range(10))
def test_routers_of_groups(case: int) -> None:
    rng = np.random.default_rng(case)
    groups, size = int(rng.integers(1, 5)), int(rng.integers(1, 5))
    wanted = int(rng.integers(1, groups + 1))
    options = {"n_group": groups, "topk_group": wanted, "group_topk": int(rng.integers(1, 4))}
    options["top_k"] = int(rng.integers(1, wanted * size + 1))
    scores = floats(rng, 2, 3, groups * size)
    scores = np.round(scores) if case % 2 else scores  # equal ones
    own(
        "MoEGroupRouter",
        scores,
        np.round(floats(rng, groups * size)) if case % 2 else floats(rng, groups * size),
        **options,
    )


def test_scores_of_routers(rng: np.random.Generator) -> None:
    tokens, weight = floats(rng, 5, 256) / 16, floats(rng, 6, 256)
    for given in ((tokens, floats(rng, 6), weight), (floats(rng, 5, 6), floats(rng, 6))):
        made, feeds = model("MoEGroupRouter", given, 3, top_k=2)
        made.graph.node[0].output[0] = ""
        del made.graph.output[0]
        check(made, feeds)
