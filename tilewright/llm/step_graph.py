"""One step of a language model as a graph: new tokens of several sequences in, logits out, keys and values kept.

Prompts, chunks of prompts and single tokens are the same to it.  Inputs, all int32 but the pools:

    tokens     [tokens]                 new tokens, one sequence after the other; -1 - n, where the step chooses tokens,
                                        for the one that row n of the step before chose
    positions  [tokens]                 of each in its sequence
    slots      [tokens]                 where its keys and values go in the pools
    tables     [sequences, columns]     pages of each sequence (`graph.paged`)
    starts     [sequences + 1]          where each sequence's tokens begin
    lengths    [sequences]              tokens of each sequence with these
    rows       [rows]                   the tokens whose logits are wanted
    adapters   [tokens]                 the number of each token's adapter, where there are some
    temperatures, shares, floors, portions  [rows], float32   how a row's token is chosen, where the step does that
    counts, histories [rows]            the same; presences, frequencies, repetitions [rows], float32 (`graph.choices`)
    seen, biases  [entries]             tables of texts that change logits, updated in place; biases float32
    previous   [most rows]              what the step before chose, where steps do that; then what this one does
    keys.N, values.N  [slots, key_heads, width]   the pools of layer N, updated in place; of 8 bits if wanted
    keys.N.scales, values.N.scales  [slots, key_heads], float32   of pools of int8

Outputs: logits float32 [rows, vocabulary]; tokens chosen int32 [rows], where the step does that.  Families write
themselves with the methods of `GenerationStep`; paths are names in the checkpoint.
"""

from __future__ import annotations

from dataclasses import dataclass

import ml_dtypes
import numpy as np

from tilewright.dtypes import DType, bfloat16, float8e4nv, float16, float32, from_numpy, int8, int32
from tilewright.graph.build import GraphBuilder
from tilewright.graph.core import Graph, Value
from tilewright.graph.passes.weight_products import reads_weights
from tilewright.importers.emitter import Emitter
from tilewright.importers.gguf_files import GGUFCheckpoint
from tilewright.importers.huggingface import HUGGING_FACE_ACTIVATIONS, Checkpoint
from tilewright.importers.quantized_checkpoints import QuantizedLayer, reader_of
from tilewright.importers.quantized_weights import multiply, multiply_in_8_bits, nearest
from tilewright.llm.adapters import Adapters
from tilewright.llm.configuration import Configuration
from tilewright.llm.rotary import Rotary
from tilewright.targets.base import Target
from tilewright.targets.registry import graph_passes

COMPUTE_DTYPES: dict[str, DType] = {"float32": float32, "bfloat16": bfloat16, "float16": float16}

# How weights of linear layers are stored: `auto` as in the checkpoint, else rounded to the nearest in bits and groups
# of the depth (0: all of it).  The last layer before the logits has 8 bits at least, a table of tokens too where it is
# that layer, while rows that are looked up stay floats; routers of experts do.
WEIGHT_FORMATS: dict[str, tuple[int, int] | None] = {"auto": None, "int8": (8, 0), "int4": (4, 64)}
_HEAD_ROUNDING = (8, 0)
# How keys and values are kept: `auto` in the type of computation, else in 8 bits: e4m3 as they are, int8 with a scale
# for each token and head, found as they come.
CACHE_FORMATS: dict[str, DType | None] = {"auto": None, "fp8": float8e4nv, "int8": int8}
_LARGEST_FP8, _LARGEST_INT8 = float(ml_dtypes.finfo(float8e4nv.numpy).max), 127.0
_LEAST_WEIGHTS = 1 << 14  # elements of a layer that is rounded


@dataclass(frozen=True)
class Limits:
    """What a step may be given at most; `page` is how many tokens a page of the pools holds, `cache` how (one of
    `CACHE_FORMATS`)."""

    page: int = 16
    tokens: int = 512
    sequences: int = 64
    length: int = 4096
    cache: str = "auto"

    @property
    def columns(self) -> int:
        """Pages of the longest sequence."""
        return -(-self.length // self.page)


@dataclass(frozen=True)
class Heads:
    """The sizes of attention."""

    count: int
    keys: int
    width: int


@dataclass(frozen=True)
class _LayerPool:
    """A layer's pool of keys or values, with the scales of its numbers where they have some."""

    numbers: Value
    scales: Value | None = None


class GenerationStep:
    """The graph while a family writes it."""

    def __init__(
        self, checkpoint: Checkpoint, dtype: DType, limits: Limits, name: str, weights: str = "auto",
        adapters: Adapters | None = None, chooses: bool = False, target: Target | None = None,
    ) -> None:  # fmt: skip
        """With `chooses` the step chooses tokens as well (`graph.choices`).  `target` is what it is built for; None for
        one whose kernels read all quantized weights."""
        self.checkpoint, self.dtype, self.limits = checkpoint, dtype, limits
        self._stored_layer = reader_of(checkpoint)
        if isinstance(checkpoint, GGUFCheckpoint):
            self._stored_layer = checkpoint.quantized_layer
        self._rounding = WEIGHT_FORMATS[weights]
        self._passes = None if target is None else graph_passes([target])
        self.configuration = Configuration(checkpoint)
        self.builder = GraphBuilder(name)
        self.emit = Emitter(self.builder)
        symbol = self.builder.symbol
        self.count = symbol("tokens", 1, limits.tokens)
        sequences = symbol("sequences", 1, limits.sequences)
        self._slots = symbol("slots", limits.page, 2**31 - 1)
        # A sequence of one row for each of its tokens takes as many rows as there are tokens (scores of a prompt).
        most_rows = max(limits.tokens, limits.sequences)
        rows = symbol("rows", 1, most_rows)
        columns = symbol("columns", 1, limits.columns)

        def given(name: str, *shape: object, dtype: DType = int32) -> Value:
            return self.builder.input(name, dtype, shape)  # type: ignore[arg-type]

        self.tokens, self.positions = given("tokens", self.count), given("positions", self.count)
        if chooses:
            self._previous = given("previous", most_rows)
            self.tokens = self._known(self.tokens, self._previous)
        self.places = given("slots", self.count)
        self.tables, self.starts = given("tables", sequences, columns), given("starts", sequences + 1)
        self.lengths, self.rows = given("lengths", sequences), given("rows", rows)
        self._adapters = adapters or None
        self._adapter_of = given("adapters", self.count) if adapters else None
        self._draws = [
            given(name, rows, dtype=dtype)
            for names, dtype in (
                (("temperatures", "shares", "floors", "portions"), float32), (("counts", "histories"), int32),
                (("presences", "frequencies", "repetitions"), float32),
            )
            for name in names
            if chooses
        ]  # fmt: skip
        self._angles: dict[int, tuple[Value, Value]] = {}
        self._constants: dict[str, Value] = {}

    def finish(self, logits: Value, ignored: tuple[str, ...] = ()) -> Graph:
        """The verified graph; raises `ImportModelError` for weights that are missing, misshapen or left over."""
        logits = self.emit.cast(logits, float32)
        self.builder.output(logits, "logits")
        if self._draws:
            self._choose(logits)
        self.checkpoint.finish(ignored)
        if self._adapters is not None:
            self._adapters.finish()
        return self.builder.finish()

    def _choose(self, logits: Value) -> None:
        """Choose a token of each row, and count it where its text's tokens are counted."""
        emit = self.emit
        emit.source = "sampling"
        vocabulary = logits.shape[1]
        assert isinstance(vocabulary, int)
        entries = self.builder.symbol("entries", vocabulary, (self.limits.sequences + 1) * vocabulary)
        seen = self.builder.input("seen", int32, (entries,))
        biases = self.builder.input("biases", float32, (entries,))
        chosen = emit.op("choose", logits, *self._draws, seen, biases)
        self.builder.output(chosen, "chosen")
        histories = self._draws[5]
        place = emit.op("add", emit.op("multiply", histories, vocabulary), emit.op("maximum", chosen, 0))
        row = emit.op("iota", shape=histories.shape, dtype=int32, axis=0)
        self.builder.mutate(
            self._previous, emit.op("scatter_update", self._previous, row, chosen, axis=0, distinct=True)
        )
        # Rows of no history share the first text of the table, which is nobody's.
        count = emit.op("add", emit.op("gather", seen, place, axis=0), 1)
        self.builder.mutate(seen, emit.op("scatter_update", seen, place, count, axis=0, distinct=True))

    def _known(self, tokens: Value, previous: Value) -> Value:
        """The tokens, with those that the step before chose; a row without one (-1) ends, and counts as token 0."""
        emit = self.emit
        emit.source = "tokens"
        rows = emit.op("maximum", emit.op("subtract", -1, tokens), 0)
        chosen = emit.op("maximum", emit.op("gather", previous, rows, axis=0), 0)
        return emit.op("where", emit.op("less", tokens, 0), chosen, tokens)

    # -- Weights ----------------------------------------------------------------------------------

    def weight(self, name: str, *shape: int, added: float = 0.0) -> Value:
        """A tensor of the checkpoint, as it lies in the mapped file where its element type is the model's."""
        if name not in self._constants:
            data = self.checkpoint.take(name, shape)
            if added:
                data = data.astype(np.float32) + np.float32(added)
            self._constants[name] = self.builder.constant(self._converted(data), name)
        return self._constants[name]

    def stacked(self, names: list[list[str]], *shape: int) -> Value:
        """Tensors of one shape as one: lists joined along the first dimension, then stacked; quantized ones become
        floats."""
        parts = [np.concatenate([self._floats(name, shape) for name in item]) for item in names]
        return self.builder.constant(self._converted(np.stack(parts)), f"{names[0][0]}.stacked")

    def _floats(self, name: str, shape: tuple[int, ...]) -> np.ndarray:
        """A tensor, or what a quantized matrix of this name stands for."""
        path = name.removesuffix(".weight")
        stored = self._stored_layer(path, *shape) if self._stored_layer is not None and path != name else None
        return self.checkpoint.take(name, shape) if stored is None else stored.matrix.numbers()

    def _converted(self, data: np.ndarray) -> np.ndarray:
        if data.dtype == self.dtype.numpy:
            return data
        if data.dtype.kind not in "fV" and data.dtype not in (ml_dtypes.bfloat16,):
            self.configuration.refuse("dtype", f"the weights hold {data.dtype}, which is no type of floats")
        return data.astype(self.dtype.numpy)

    # -- Layers -----------------------------------------------------------------------------------

    def embedding(self, table: Value, indices: Value) -> Value:
        """Rows of a table [n, width] -> [tokens, width]."""
        return self.emit.op("gather", table, indices, axis=0)

    def linear(self, path: str, x: Value, rows: int, columns: int, bias: bool = False) -> Value:
        """x [n, columns] by a weight [rows, columns], and a bias [rows]."""
        self.emit.source = path
        result = self._adapted(path, x, self.product(path, x, rows, columns), rows, columns)
        return self.emit.op("add", result, self.weight(f"{path}.bias", rows)) if bias else result

    def product(self, path: str, x: Value, rows: int, columns: int) -> Value:
        """x [n, columns] by a weight [rows, columns], which may be quantized, in the checkpoint or here."""
        name = f"{path}.weight"
        stored = None if self._stored_layer is None else self._stored_layer(path, rows, columns)
        if stored is not None:
            return self._quantized_product(stored, x, name)
        rounding = _HEAD_ROUNDING if self._rounding is not None and path == "lm_head" else self._rounding
        if rounding is None or rows * columns < _LEAST_WEIGHTS or path.endswith((".gate", ".router")):
            return self.emit.op("matmul", x, self.weight(name, rows, columns), transpose_b=True)
        return multiply(self.emit, x, nearest(self.checkpoint.take_stored(name, (rows, columns)), *rounding), name)

    def tied_product(self, path: str, x: Value, table: Value) -> Value:
        """x [n, width] by the table of tokens [vocabulary, width] of this name, which may be quantized for this, unless
        the target would keep the codes as floats: a second table."""
        numbers = self.builder.graph.constants[table]
        rows, columns = numbers.shape
        stored = None if self._stored_layer is None else self._stored_layer(path, rows, columns)
        if stored is not None:
            codes, scales = stored.matrix.codes, stored.matrix.scales
            group = codes.shape[1] // scales.shape[1]
            if self._reads(from_numpy(codes.dtype), from_numpy(scales.dtype), group, codes.shape[1]):
                return self._quantized_product(stored, x, f"{path}.codes")
        elif self._rounding is not None and numbers.size >= _LEAST_WEIGHTS:
            if self._reads(int8, float32, columns, columns):
                return multiply(self.emit, x, nearest(numbers, *_HEAD_ROUNDING), f"{path}.codes")
        return self.emit.op("matmul", x, table, transpose_b=True)

    def _reads(self, codes: DType, scales: DType, group: int, depth: int) -> bool:
        """Whether kernels of the target read such weights as they are stored."""
        return self._passes is None or reads_weights(self._passes, self.dtype, codes, scales, group, depth)

    def _adapted(self, path: str, x: Value, result: Value, rows: int, columns: int) -> Value:
        """A product with what each token's adapter adds to it."""
        found = None
        if self._adapters is not None and x.shape[0] == self.count:
            found = self._adapters.take(path, rows, columns)
        if found is None:
            return result
        assert self._adapter_of is not None
        first, second, scales = (
            self.builder.constant(item.astype(self.dtype.numpy), f"{path}.{name}")
            for item, name in zip(found, ("lora_A", "lora_B", "lora_scales"), strict=True)
        )
        low = self.emit.op("matmul", x, first, transpose_b=True)
        low = self.emit.op("multiply", low, self.emit.op("gather", scales, self._adapter_of, axis=0))
        return self.emit.op("add", result, self.emit.op("matmul", low, second, transpose_b=True))

    def _quantized_product(self, layer: QuantizedLayer, x: Value, name: str) -> Value:
        return (multiply_in_8_bits if layer.rows_in_8_bits else multiply)(self.emit, x, layer.matrix, name)

    def rms_norm(self, path: str, x: Value, epsilon: float, added: float = 0.0) -> Value:
        """Over the last dimension; `added` to the scale, which some families store less one."""
        self.emit.source = path
        width = x.shape[-1]
        assert isinstance(width, int)
        scale = self.weight(f"{path}.weight", width, added=added)
        return self.emit.op("rms_norm", x, scale, axis=x.rank - 1, epsilon=epsilon)

    def layer_norm(self, path: str, x: Value, epsilon: float) -> Value:
        """Over the last dimension, with scale and bias."""
        self.emit.source = path
        width = x.shape[-1]
        assert isinstance(width, int)
        scale, bias = self.weight(f"{path}.weight", width), self.weight(f"{path}.bias", width)
        return self.emit.op("layer_norm", x, scale, bias, axis=x.rank - 1, epsilon=epsilon)

    def activation(self, name: str, x: Value) -> Value:
        """By its name in config.json, one of `HUGGING_FACE_ACTIVATIONS`."""
        op, options = HUGGING_FACE_ACTIVATIONS[name]
        return self.emit.op(op, x, **options)

    def capped(self, x: Value, cap: float) -> Value:
        """cap tanh(x / cap)"""
        return self.emit.op("multiply", self.emit.op("tanh", self.emit.op("divide", x, cap)), cap)

    def last(self, hidden: Value) -> Value:
        """The rows whose logits are wanted."""
        return self.emit.op("gather", hidden, self.rows, axis=0)

    # -- Attention --------------------------------------------------------------------------------

    def heads(self, x: Value, count: int, width: int) -> Value:
        """[tokens, count * width] -> [tokens, count, width]"""
        return self.emit.reshape(x, (self.count, count, width))

    def rotate(self, x: Value, rotary: Rotary) -> Value:
        """The heads [tokens, heads, width] turned by their positions: halves of a head are its pairs."""
        emit, half = self.emit, rotary.width // 2
        width = x.shape[2]
        assert isinstance(width, int)
        cosine, sine = self._cosine_and_sine(rotary)
        low, high = emit.slice(x, 2, 0, half), emit.slice(x, 2, half, 2 * half)
        first = emit.op("subtract", emit.op("multiply", low, cosine), emit.op("multiply", high, sine))
        second = emit.op("add", emit.op("multiply", high, cosine), emit.op("multiply", low, sine))
        rest = [emit.slice(x, 2, 2 * half, width)] if width > 2 * half else []
        return emit.op("concat", first, second, *rest, axis=2)

    def _cosine_and_sine(self, rotary: Rotary) -> tuple[Value, Value]:
        """Cosines and sines [tokens, 1, width / 2], once for all layers; angles are float32, whatever the model is."""
        if id(rotary) not in self._angles:
            emit = self.emit
            emit.source = "rotary positions"
            frequencies = self.builder.constant(rotary.frequencies.reshape(1, 1, -1), "rotary.frequencies")
            positions = emit.cast(emit.unsqueeze(self.positions, 1, 2), float32)
            angles = emit.op("multiply", positions, frequencies)
            cosine_and_sine = [emit.op(name, angles) for name in ("cos", "sin")]
            if rotary.factor != 1.0:
                cosine_and_sine = [emit.op("multiply", item, rotary.factor) for item in cosine_and_sine]
            self._angles[id(rotary)] = (
                emit.cast(cosine_and_sine[0], self.dtype),
                emit.cast(cosine_and_sine[1], self.dtype),
            )
        return self._angles[id(rotary)]

    def attention(
        self,
        layer: int,
        query: Value,
        key: Value,
        value: Value,
        scale: float,
        window: int | None = None,
        softcap: float = 0.0,
    ) -> Value:
        """Heads [tokens, heads, width] of the new tokens -> [tokens, heads * width]; keeps their keys and values."""
        keys, values = self._keep(f"keys.{layer}", key), self._keep(f"values.{layer}", value)
        scales = () if keys.scales is None else (keys.scales, values.scales)
        result = self.emit.op(
            "paged_attention", query, keys.numbers, values.numbers, self.tables, self.starts, self.lengths, *scales,
            scale=scale, page=self.limits.page, window=window or 0, softcap=softcap,
        )  # fmt: skip
        _, heads, width = result.shape
        assert isinstance(heads, int) and isinstance(width, int)
        return self.emit.reshape(result, (self.count, heads * width))

    def bytes_per_head(self, width: int) -> int:
        """Bytes of the keys, or the values, of a token and head."""
        kind = CACHE_FORMATS[self.limits.cache]
        return width * (kind or self.dtype).itemsize + (float32.itemsize if kind == int8 else 0)

    def _keep(self, name: str, new: Value) -> _LayerPool:
        """Pools with the keys or values of new tokens [tokens, heads, width]."""
        emit, kind = self.emit, CACHE_FORMATS[self.limits.cache]
        if kind is None:
            return _LayerPool(self._updated(name, new))
        wide = emit.cast(new, float32)
        if kind != int8:
            narrow = emit.op("clip", wide, low=-_LARGEST_FP8, high=_LARGEST_FP8)
            return _LayerPool(self._updated(name, emit.cast(narrow, kind)))
        largest = emit.op("reduce_max", emit.op("absolute", wide), axes=(2,), keepdims=True)
        scale = emit.op("multiply", largest, 1 / _LARGEST_INT8)
        # A head of zeros has a scale of 1.
        scale = emit.op("where", emit.op("equal", largest, 0.0), emit.op("add", scale, 1.0), scale)
        numbers = emit.op("clip", emit.op("round", emit.op("divide", wide, scale)), low=-127.0, high=127.0)
        scales = emit.reshape(scale, scale.shape[:2])
        return _LayerPool(self._updated(name, emit.cast(numbers, int8)), self._updated(f"{name}.scales", scales))

    def _updated(self, name: str, new: Value) -> Value:
        pool = self.builder.input(name, new.dtype, (self._slots, *new.shape[1:]))
        # Tokens have slots of their own, but those that fill a step and belong to no sequence: these share one.
        updated = self.emit.op("scatter_update", pool, self.places, new, axis=0, distinct=True)
        self.builder.mutate(pool, updated)
        return updated
