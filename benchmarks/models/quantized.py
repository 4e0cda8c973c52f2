"""Quantized models on a GPU: in 8-bit integers and floats, ranges from one calibrated batch, beside our own 16-bit
engines and PyTorch's float8 and int8 products (`torch._scaled_mm`, `torch._int_mm`), compiled; and decoding with
weights alone in 4 and 8 bits, beside our own 16-bit engine and PyTorch's.

Random weights prove speed, never accuracy.
"""

from __future__ import annotations

import copy
import functools
from collections.abc import Callable

import ml_dtypes
import numpy as np
import torch
from torch import nn

from benchmarks.models import timed
from benchmarks.models.timed import Model
from tilewright.build.builder import build
from tilewright.engine.engine import Engine
from tilewright.graph.core import Graph
from tilewright.graph.pipeline import optimize
from tilewright.importers import import_model
from tilewright.importers.quantized_weights import QuantizedMatrix, nearest
from tilewright.quant.layers import GROUPS, INT8_WEIGHTS, WEIGHT_BITS, layers_of, name_of, quantized, residuals_of
from tilewright.quant.quantize import calibrate
from tilewright.quant.rounding import RoundedWeights
from tilewright.quant.weights import matrix_of, with_rounded_weights
from tilewright.targets.library_facts import GPU_KERNELS

FP8_LARGEST = 448.0
GROUP = 128  # of the depth, that share a scale of 8-bit floats
BATCHES = (1, 2, 4, 8, 16, 32, 64)  # of decoding
HIDDEN, HEADS, INTERMEDIATE = 4096, 32, 16384  # of the block


class Block(nn.Module):
    """A layer of an encoder: attention and a GELU network, norms in front of both."""

    def __init__(self) -> None:
        super().__init__()
        self.norms = nn.ModuleList(nn.LayerNorm(HIDDEN) for _ in range(2))
        self.projections = nn.Linear(HIDDEN, 3 * HIDDEN)
        self.output = nn.Linear(HIDDEN, HIDDEN)
        self.up, self.down = nn.Linear(HIDDEN, INTERMEDIATE), nn.Linear(INTERMEDIATE, HIDDEN)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        batch, length, _ = x.shape
        heads = self.projections(self.norms[0](x)).view(batch, length, 3, HEADS, HIDDEN // HEADS)
        query, key, value = heads.permute(2, 0, 3, 1, 4)
        attended = nn.functional.scaled_dot_product_attention(query, key, value)
        x = x + self.output(attended.transpose(1, 2).reshape(batch, length, HIDDEN))
        return x + self.down(nn.functional.gelu(self.up(self.norms[1](x))))


class NarrowLinear(nn.Module):
    """A linear layer of 8-bit numbers as PyTorch multiplies them: a scale for the activations, one for the weights."""

    def __init__(self, layer: nn.Linear, largest: float, integers: bool) -> None:
        super().__init__()
        most = 127.0 if integers else FP8_LARGEST
        weights = layer.weight.detach().float()
        scale, weight_scale = max(largest, 1e-6) / most, weights.abs().max().clamp(min=1e-6) / most
        narrow = weights / weight_scale
        narrow = narrow.round().to(torch.int8) if integers else narrow.to(torch.float8_e4m3fn)
        self.integers, self.most = integers, most
        self.register_buffer("weight", narrow)
        self.register_buffer("scale", torch.tensor(scale, device=weights.device))
        self.register_buffer("weight_scale", weight_scale.float().reshape(()))
        self.register_buffer("bias", None if layer.bias is None else layer.bias.detach())

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        rows = (x.reshape(-1, x.shape[-1]).float() / self.scale).clamp(-self.most, self.most)
        if self.integers:
            sums = torch._int_mm(rows.round().to(torch.int8), self.weight.t())
            y = (sums.float() * (self.scale * self.weight_scale)).to(x.dtype)
            y = y if self.bias is None else y + self.bias
        else:
            y = torch._scaled_mm(
                rows.to(torch.float8_e4m3fn), self.weight.t(), scale_a=self.scale, scale_b=self.weight_scale,
                bias=self.bias, out_dtype=x.dtype, use_fast_accum=True,
            )  # fmt: skip
        return y.reshape(*x.shape[:-1], y.shape[-1])


@torch.inference_mode()
def narrow_linears(module: nn.Module, inputs: tuple[torch.Tensor, ...], integers: bool) -> nn.Module:
    """A copy of the module whose linear layers multiply 8-bit numbers, with ranges from these inputs."""
    module = copy.deepcopy(module)
    largest: dict[nn.Module, float] = {}
    layers = [child for child in module.modules() if isinstance(child, nn.Linear)]
    hooks = [
        child.register_forward_pre_hook(lambda layer, given: largest.update({layer: float(given[0].abs().max())}))
        for child in layers
    ]
    module(*inputs)
    for hook in hooks:
        hook.remove()
    for parent in list(module.modules()):
        for name, child in list(parent.named_children()):
            fits = isinstance(child, nn.Linear) and child.in_features % 16 == 0 and child.out_features % 16 == 0
            if fits and child in largest:
                setattr(parent, name, NarrowLinear(child, largest[child], integers))
    return module


def quantized_graph(model: Model, scheme: str) -> Graph:
    """The model's graph with its layers quantized, ranges from the first of its batch."""
    first = tuple(tensor[:1] for tensor in model.inputs)
    small = optimize(import_model(model.module, first))
    sample = {value.name: tensor.cpu().numpy() for value, tensor in zip(small.inputs, first, strict=True)}
    layers = layers_of(small, scheme, GPU_KERNELS)
    watched = [*layers, *residuals_of(small, {layer.name for layer in layers})]
    ranges = calibrate(small, watched, [sample], "minmax", lambda stage, item, seconds: None)
    graph = optimize(import_model(model.module, model.inputs))
    names = {layer.name for layer in layers_of(graph, scheme, GPU_KERNELS)}
    return quantized(
        graph, names, {name: (float(low), float(high)) for name, (low, high) in ranges.items()}, scheme, True
    )


def _quantized(model: Model, scheme: str, linears: bool = True) -> Model:
    graph = quantized_graph(model, scheme)

    def engine() -> Engine:
        return build(graph, "cuda")

    model.build, model.floor, model.in_floats = engine, None, True
    if linears:
        kind = "_int_mm" if scheme == "int8" else "_scaled_mm"
        model.others = {kind: narrow_linears(model.module, model.inputs, scheme == "int8")}
    return model


def _block(batch: int, length: int) -> Model:
    with torch.device("cuda"):
        module = Block().half().eval().requires_grad_(False)
        x = torch.randn(batch, length, HIDDEN, dtype=torch.float16)
    return Model(module, (x,), torch.float16)


_NARROW: dict[tuple[str, str], RoundedWeights] = {}  # of `_decoder`, by scheme and layer: found once for all batches


@functools.cache
def _decoder() -> nn.Module:
    """One for all batches."""
    return timed.decoder()


def _narrow(weights: np.ndarray, scheme: str) -> RoundedWeights:
    """Weights [columns, depth] to the nearest, with a scale for each group."""
    if scheme in WEIGHT_BITS:
        return RoundedWeights(nearest(weights, WEIGHT_BITS[scheme], GROUPS[scheme]))
    groups = torch.from_numpy(weights.astype(np.float32)).cuda().unflatten(1, (-1, GROUP))
    scales = groups.abs().amax(-1, keepdim=True).clamp(min=1e-6) / FP8_LARGEST
    codes = (groups / scales).to(torch.float8_e4m3fn).flatten(1).view(torch.uint8).cpu().numpy()
    return RoundedWeights(QuantizedMatrix(codes.view(ml_dtypes.float8_e4m3fn), scales[..., 0].cpu().numpy()))


def _decode(batch: int, scheme: str) -> Model:
    """Decoding with weights alone in few bits; the peers have them in the model's floats."""
    model = timed.decode_model(batch, _decoder())
    graph = optimize(import_model(model.module, model.inputs))
    nodes = {name_of(node): node for node in graph.nodes if node.op == "matmul"}
    for layer in layers_of(graph, INT8_WEIGHTS, GPU_KERNELS):
        if (scheme, layer.name) not in _NARROW:
            _NARROW[scheme, layer.name] = _narrow(matrix_of(nodes[layer.name], graph.constants), scheme)
    narrow = with_rounded_weights(graph, {name: found for (kind, name), found in _NARROW.items() if kind == scheme})

    def engine() -> Engine:
        return build(narrow, "cuda")

    model.build, model.floor, model.in_floats, model.bytes = engine, None, True, None
    return model


def _decoding(kind: str) -> dict[str, Callable[[], Model]]:
    """A case for each batch."""
    return {
        f"Llama-8B x4 {kind} weights decode b{batch}": lambda batch=batch: _decode(batch, f"{kind}-weights")
        for batch in BATCHES
    }


CASES: dict[str, Callable[[], Model]] = {
    "block fp8 b8 s512": lambda: _quantized(_block(8, 512), "fp8"),
    "block int8 b8 s512": lambda: _quantized(_block(8, 512), "int8"),
    "BERT-base fp8 b64 s128": lambda: _quantized(timed.bert_model(64, 128), "fp8"),
    "BERT-base int8 b64 s128": lambda: _quantized(timed.bert_model(64, 128), "int8"),
    **_decoding("int4"),
    **_decoding("fp8"),
    "Llama-8B x4 int8 weights decode b1": lambda: _decode(1, INT8_WEIGHTS),
    "ResNet-50 int8 b128": lambda: _quantized(timed.resnet_model(128), "int8", linears=False),
    "ResNet-50 fp8 b128": lambda: _quantized(timed.resnet_model(128), "fp8", linears=False),
}
