"""The models of engines in other runtimes."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import tilewright
from tilewright.cli import peers

torch = pytest.importorskip("torch")


class Noisy(torch.nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + torch.rand(4)


def test_pytorch_runs_a_model_that_draws_without_the_seed_of_the_engine(tmp_path: Path) -> None:
    path = tmp_path / "noisy.pt2"
    torch.export.save(torch.export.export(Noisy(), (torch.zeros(4),)), path)
    engine = tilewright.compile(str(path))
    assert engine.seed is not None
    arrays = {"x": np.ones(4, np.float32), engine.seed: np.array(3, np.int64)}
    (result,) = peers.load_peer("torch", engine, path, 1)(arrays).values()
    assert ((result >= 1) & (result < 2)).all()
    timed = peers.timed_peer("torch", engine, path, 1, arrays)()
    assert timed[0].shape == (4,) if isinstance(timed, tuple) else timed.shape == (4,)


def test_every_tensor_of_a_model_with_quantized_layers(tmp_path: Path) -> None:
    """With all tensors as outputs, ONNX Runtime's optimiser gives several weights one name and fails."""
    onnx = pytest.importorskip("onnx")
    quantization = pytest.importorskip("onnxruntime.quantization")
    rng = np.random.default_rng(0)
    weights = {"w": (8, 3, 3, 3), "b": (8,), "v": (5, 8), "c": (5,)}
    node, info = onnx.helper.make_node, onnx.helper.make_tensor_value_info
    graph = onnx.helper.make_graph(
        [
            node("Conv", ["x", "w", "b"], ["convolved"], pads=[1, 1, 1, 1]),
            node("GlobalAveragePool", ["convolved"], ["pooled"]),
            node("Flatten", ["pooled"], ["flat"]),
            node("Gemm", ["flat", "v", "c"], ["y"], transB=1),
        ],
        "small",
        [info("x", 1, ["n", 3, "h", "w"])],
        [info("y", 1, ["n", 5])],
        [
            onnx.numpy_helper.from_array(rng.standard_normal(shape).astype(np.float32), name)
            for name, shape in weights.items()
        ],
    )
    path, quantized = tmp_path / "small.onnx", tmp_path / "quantized.onnx"
    onnx.save(onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", 13)], ir_version=8), path)
    image = rng.standard_normal((1, 3, 8, 8)).astype(np.float32)

    class Images(quantization.CalibrationDataReader):
        rest = iter([{"x": image}])

        def get_next(self) -> dict[str, np.ndarray] | None:
            return next(self.rest, None)

    quantization.quantize_static(path, quantized, Images(), quant_format=quantization.QuantFormat.QDQ)
    engine = tilewright.compile(quantized, dynamic_shapes={"x": [("n", 1, 4), 3, ("h", 4, 16), ("w", 4, 16)]})
    found = peers.every_tensor(engine, quantized, 1, {"x": image})
    np.testing.assert_allclose(engine.run({"x": image})["y"], found["y"], rtol=1e-5)
    assert len(found) == len(onnx.load(quantized).graph.node)
