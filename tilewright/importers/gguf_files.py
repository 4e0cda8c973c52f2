"""GGUF files as checkpoints: configuration, tensors and quantized layers, read in place through the `gguf` package.

Names of tensors and settings become those of Hugging Face checkpoints, so that families read both alike.  Linear layers
of these types keep their bits (d, m: the block's float16 numbers):

    Q4_0   32 inputs   d (q - 8), q of 4 bits; the first half is in the low bits
    Q8_0   32 inputs   d q, q of 8 bits
    Q4_K   256 inputs  d s q - m t, q of 4 bits, s and t of 6 bits for each 32
    Q4_1   32 inputs   d q + m, q of 4 bits
    Q5_0   32 inputs   d (q - 16), q of 5 bits, the fifth ones in a word; stored as int8 here, as are
    Q5_1   32 inputs   d q + m, q of 5 bits,
    Q5_K   256 inputs  d s q - m t, as Q4_K with q of 5 bits, and
    IQ4_NL 32 inputs   d q, q of 4 bits a place in a table of int8
    Q6_K   256 inputs  d s (q - 32), q of 6 bits, s of 8 bits for each 16; stored as int8 here

F16, BF16 and F32 are floats; other types become floats, and a line in the log names them.
"""

from __future__ import annotations

import contextlib
import functools
import logging
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np

from tilewright.dtypes import uint4
from tilewright.errors import ImportModelError, MissingDependencyError, TilewrightError
from tilewright.importers.huggingface import Checkpoint
from tilewright.importers.quantized_checkpoints import QuantizedLayer
from tilewright.importers.quantized_weights import QuantizedMatrix

_log = logging.getLogger("tilewright")
_SUFFIX = ".gguf"
_FAMILIES = {"llama": "llama", "qwen2": "qwen2", "qwen3": "qwen3"}
_SETTINGS = {
    "block_count": "num_hidden_layers", "context_length": "max_position_embeddings", "embedding_length": "hidden_size",
    "feed_forward_length": "intermediate_size", "attention.head_count": "num_attention_heads",
    "attention.head_count_kv": "num_key_value_heads", "attention.layer_norm_rms_epsilon": "rms_norm_eps",
    "attention.key_length": "head_dim",
}  # fmt: skip
_OUTER = {"token_embd": "embed_tokens", "output_norm": "norm", "output": "lm_head"}
_INNER = {
    "attn_norm": "input_layernorm", "ffn_norm": "post_attention_layernorm", "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj", "attn_v": "self_attn.v_proj", "attn_output": "self_attn.o_proj",
    "attn_q_norm": "self_attn.q_norm", "attn_k_norm": "self_attn.k_norm", "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj", "ffn_down": "mlp.down_proj",
}  # fmt: skip
_ROPE_FACTORS = "rope_freqs.weight"
_IQ4_NUMBERS = np.array([-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113], np.int8)


def is_gguf(path: str | Path) -> bool:
    """Whether a path names a GGUF file."""
    return Path(path).suffix.lower() == _SUFFIX


def open_checkpoint(path: str | Path) -> Checkpoint:
    """A checkpoint folder, or a GGUF file."""
    return GGUFCheckpoint(Path(path)) if is_gguf(path) else Checkpoint(Path(path))


def read_gguf(path: Path) -> Any:
    """The package's reader of a file; raises `MissingDependencyError` and `ImportModelError`."""
    if not path.is_file():
        raise ImportModelError(f"{path}: there is no such file")
    status = path.stat()
    return _reader(path, status.st_mtime_ns, status.st_size)


@functools.lru_cache(maxsize=1)  # a file is asked several times while a model opens, and long vocabularies take seconds
def _reader(path: Path, changed: int, size: int) -> Any:
    try:
        import gguf
    except ImportError as error:
        raise MissingDependencyError("GGUF files need the package gguf: pip install 'tilewright[gguf]'") from error
    try:
        return gguf.GGUFReader(str(path))
    except Exception as error:  # the package has no class of its own for damaged files
        text = f"{type(error).__name__}: {str(error)[:200]}"
        raise ImportModelError(f"{path}: cannot be read as GGUF ({text})") from error


def read_metadata(path: Path) -> dict[str, Any]:
    """The settings of a file, by their names in it."""
    fields = read_gguf(path).fields
    with damage_refused(path, "its metadata"):
        return {name: field.contents() for name, field in fields.items()}


@contextlib.contextmanager
def damage_refused(path: Path, part: str) -> Iterator[None]:
    """Whatever a damaged file makes of reading `part` is an `ImportModelError` that names the file."""
    try:
        yield
    except TilewrightError:
        raise
    except Exception as error:  # any, as values of a file may be of every type, size and length
        text = f"{type(error).__name__}: {str(error)[:200]}"
        raise ImportModelError(f"{path}: {part} cannot be used ({text}); the file may be damaged") from error


class GGUFCheckpoint(Checkpoint):
    """A GGUF file as a checkpoint folder; `folder` is the file."""

    def __init__(self, path: Path) -> None:
        self.folder = path
        self._used: set[str] = set()
        self._problems: list[str] = []
        self.metadata = read_metadata(path)
        self.tensors: dict[str, np.ndarray] = {}
        self.blocks: dict[str, tuple[str, np.ndarray]] = {}  # by name of a weight its type and bytes [rows, bytes]
        self._factors: np.ndarray | None = None
        others: dict[str, int] = {}
        for tensor in read_gguf(path).tensors:
            with damage_refused(path, f"the tensor {str(tensor.name)[:60]!r}"):
                self._add(tensor, others)
        for kind, count in others.items():
            _log.warning("%s: %d tensors of type %s become floats", path.name, count, kind)
        with damage_refused(path, "its settings"):
            self.config = self._configuration()

    def _add(self, tensor: Any, others: dict[str, int]) -> None:
        """A tensor by its name in Hugging Face checkpoints."""
        import gguf

        kind, shape = tensor.tensor_type.name, tuple(int(n) for n in tensor.shape[::-1])
        if 0 in shape:
            raise ImportModelError(f"{self.folder}: {tensor.name} is {list(shape)}, without elements")
        if tensor.name == _ROPE_FACTORS:
            self._factors = np.asarray(tensor.data, np.float32)
            return
        name = _name_of(tensor.name)
        if kind in ("F32", "F16"):
            self.tensors[name] = tensor.data.reshape(shape)
        elif kind == "BF16":
            self.tensors[name] = np.ascontiguousarray(tensor.data).view(ml_dtypes.bfloat16).reshape(shape)
        elif kind in _UNPACKED and len(shape) == 2:
            self.blocks[name] = kind, tensor.data.reshape(shape[0], -1)
        else:
            try:
                self.tensors[name] = gguf.dequantize(tensor.data, tensor.tensor_type).reshape(shape)
            except (NotImplementedError, ValueError) as error:
                raise ImportModelError(f"{self.folder}: {tensor.name} is of type {kind}, which is not known") from error
            others[kind] = others.get(kind, 0) + 1

    def _configuration(self) -> dict[str, Any]:
        """What config.json of such a model would hold."""
        architecture = self.metadata.get("general.architecture")
        if not isinstance(architecture, str) or architecture not in _FAMILIES:
            raise ImportModelError(
                f"{self.folder}: general.architecture is {str(architecture)[:60]!r}; files of "
                f"{', '.join(_FAMILIES)} can be read"
            )
        found: dict[str, Any] = {"model_type": _FAMILIES[architecture]}
        for name, key in _SETTINGS.items():
            if f"{architecture}.{name}" in self.metadata:
                found[key] = self.metadata[f"{architecture}.{name}"]
        found["vocab_size"] = len(self.metadata.get("tokenizer.ggml.tokens") or ()) or self._rows("embed_tokens.weight")
        found["rope_parameters"] = self._rotary(architecture, found)
        found["attention_bias"] = self.has("layers.0.self_attn.q_proj.bias") and architecture == "llama"
        found["dtype"] = "float32"
        return found

    def _rows(self, name: str) -> int:
        data = self.blocks[name][1] if name in self.blocks else self.tensors.get(name)
        return 0 if data is None else len(data)

    def _rotary(self, architecture: str, config: dict[str, Any]) -> dict[str, Any]:
        """Rotary positions; factors of frequencies, which files of scaled models hold, are those of ``longrope``."""
        base = float(self.metadata.get(f"{architecture}.rope.freq_base", 10000.0))
        kind = self.metadata.get(f"{architecture}.rope.scaling.type", "none")
        if self._factors is not None:
            factors = [float(factor) for factor in self._factors]
            return {
                "rope_type": "longrope", "rope_theta": base, "short_factor": factors, "long_factor": factors,
                "original_max_position_embeddings": config.get("max_position_embeddings", 2048),
                "attention_factor": 1.0,
            }  # fmt: skip
        if kind == "linear":
            factor = float(self.metadata.get(f"{architecture}.rope.scaling.factor", 1.0))
            return {"rope_type": "linear", "rope_theta": base, "factor": factor}
        if kind != "none":
            raise ImportModelError(f"{self.folder}: {architecture}.rope.scaling.type is {str(kind)[:40]!r}")
        return {"rope_type": "default", "rope_theta": base}

    def has(self, name: str) -> bool:
        return name in self.tensors or name in self.blocks

    def check_layers(self, prefix: str, count: int, key: str) -> None:
        present = {name.removeprefix(prefix).split(".")[0] for name in (*self.tensors, *self.blocks)
                if name.startswith(prefix)}  # fmt: skip
        if len(present) < count:
            raise ImportModelError(f"{self.folder}: block_count is {count}, and the file holds {len(present)} blocks")

    def take(self, name: str, shape: tuple[int, ...], setting: str = "") -> np.ndarray:
        if name in self.blocks:
            self.tensors[name] = self._matrix(name).numbers()
        data, order = super().take(name, shape, setting), self._order(name)
        return data if order is None or name in self.blocks or data.shape != shape else data[order]

    def quantized_layer(self, path: str, rows: int, columns: int) -> QuantizedLayer | None:
        """The matrix of a linear layer that is stored in blocks."""
        name = f"{path}.weight"
        if name not in self.blocks:
            return None
        matrix = self._matrix(name)
        if matrix.codes.shape != (rows, columns):
            raise ImportModelError(
                f"{self.folder}: {name} is {list(matrix.codes.shape)}, the file's settings say {[rows, columns]}"
            )
        self._used.add(name)
        return QuantizedLayer(matrix)

    def _matrix(self, name: str) -> QuantizedMatrix:
        kind, data = self.blocks[name]
        matrix, order = _UNPACKED[kind](np.ascontiguousarray(data).view(np.uint8)), self._order(name)
        return matrix if order is None else matrix.reordered(order)

    def _order(self, name: str) -> np.ndarray | None:
        """Where the rows of a head's queries or keys are as rotary positions take them: files of Llama have the two of
        each pair next to each other, checkpoints in the two halves of a head."""
        projection = name.split(".")[-2] if name.startswith("layers.") else ""
        if self.config["model_type"] != "llama" or projection not in ("q_proj", "k_proj"):
            return None
        heads = self.config["num_attention_heads"]
        count = heads if projection == "q_proj" else self.config.get("num_key_value_heads", heads)
        rows = self._rows(name)
        if type(count) is not int or count < 1 or rows % (2 * count):
            return None
        return np.arange(rows).reshape(count, -1, 2).swapaxes(1, 2).reshape(-1)


def _name_of(name: str) -> str:
    """A tensor's name in Hugging Face checkpoints, without ``model.``; its own where it is not known."""
    stem, _, kind = name.rpartition(".")
    if stem in _OUTER:
        return f"{_OUTER[stem]}.{kind}"
    parts = stem.split(".", 2)
    if len(parts) == 3 and parts[0] == "blk" and parts[2] in _INNER:
        return f"layers.{parts[1]}.{_INNER[parts[2]]}.{kind}"
    return name


# Blocks -----------------------------------------------------------------------------------------------


def _float16(data: np.ndarray) -> np.ndarray:
    return np.ascontiguousarray(data).view(np.float16)[..., 0]


def _halves(data: np.ndarray) -> np.ndarray:
    """Codes of 4 bits [.., 2 n] of bytes [.., n]: all low ones, then all high ones."""
    return np.concatenate([data & 15, data >> 4], axis=-1)


def _q4_0(data: np.ndarray) -> QuantizedMatrix:
    blocks = data.reshape(len(data), -1, 18)
    codes = _halves(blocks[..., 2:]).reshape(len(data), -1).view(uint4.numpy)
    scales = _float16(blocks[..., :2])
    return QuantizedMatrix(codes, scales, np.full(scales.shape, 8, np.uint8))


def _q8_0(data: np.ndarray) -> QuantizedMatrix:
    blocks = data.reshape(len(data), -1, 34)
    codes = np.ascontiguousarray(blocks[..., 2:]).view(np.int8).reshape(len(data), -1)
    return QuantizedMatrix(codes, _float16(blocks[..., :2]))


def _q4_1(data: np.ndarray) -> QuantizedMatrix:
    blocks = data.reshape(len(data), -1, 20)
    codes = _halves(blocks[..., 4:]).reshape(len(data), -1).view(uint4.numpy)
    return QuantizedMatrix(codes, _float16(blocks[..., :2]), offsets=-_float16(blocks[..., 2:4]))


def _fives(blocks: np.ndarray) -> np.ndarray:
    """Codes of 5 bits of blocks [.., 4 + 16]: a bit of each in the first 4 bytes, then the others."""
    fifth = np.unpackbits(blocks[..., :4], axis=-1, bitorder="little")
    return (_halves(blocks[..., 4:]) | fifth << 4).astype(np.int8)


def _q5_0(data: np.ndarray) -> QuantizedMatrix:
    blocks = data.reshape(len(data), -1, 22)
    codes = _fives(blocks[..., 2:]) - np.int8(16)
    return QuantizedMatrix(codes.reshape(len(data), -1), _float16(blocks[..., :2]))


def _q5_1(data: np.ndarray) -> QuantizedMatrix:
    blocks = data.reshape(len(data), -1, 24)
    codes = _fives(blocks[..., 4:]).reshape(len(data), -1)
    return QuantizedMatrix(codes, _float16(blocks[..., :2]), offsets=-_float16(blocks[..., 2:4]))


def _iq4_nl(data: np.ndarray) -> QuantizedMatrix:
    blocks = data.reshape(len(data), -1, 18)
    codes = _IQ4_NUMBERS[_halves(blocks[..., 2:])].reshape(len(data), -1)
    return QuantizedMatrix(codes, _float16(blocks[..., :2]))


def _scaled_twice(blocks: np.ndarray, codes: np.ndarray) -> QuantizedMatrix:
    """A matrix of blocks that begin with d, m, and s and t of 6 bits for each 32 inputs."""
    d, least = (_float16(blocks[..., begin : begin + 2]).astype(np.float32)[..., None] for begin in (0, 2))
    low, middle, high = (blocks[..., begin : begin + 4] for begin in (4, 8, 12))
    scales = np.concatenate([low & 63, (high & 15) | ((low >> 2) & 0x30)], axis=-1)
    offsets = np.concatenate([middle & 63, (high >> 4) | ((middle >> 2) & 0x30)], axis=-1)
    rows = len(blocks)
    return QuantizedMatrix(codes, (d * scales).reshape(rows, -1), offsets=(least * offsets).reshape(rows, -1))


def _q4_k(data: np.ndarray) -> QuantizedMatrix:
    blocks = data.reshape(len(data), -1, 144)
    codes = _halves(blocks[..., 16:].reshape(len(data), -1, 4, 32)).reshape(len(data), -1)
    return _scaled_twice(blocks, codes.view(uint4.numpy))


def _q5_k(data: np.ndarray) -> QuantizedMatrix:
    blocks = data.reshape(len(data), -1, 176)
    low = _halves(blocks[..., 48:].reshape(len(data), -1, 4, 32)).reshape(len(data), -1, 8, 32)
    fifth = blocks[..., None, 16:48] >> np.arange(8, dtype=np.uint8)[:, None] & 1
    return _scaled_twice(blocks, (low | fifth << 4).astype(np.int8).reshape(len(data), -1))


def _q6_k(data: np.ndarray) -> QuantizedMatrix:
    blocks = data.reshape(len(data), -1, 210)
    low = blocks[..., :128].reshape(len(data), -1, 2, 1, 64)
    low = (low >> np.array([0, 4], np.uint8)[:, None]) & 15
    high = blocks[..., 128:192].reshape(len(data), -1, 2, 1, 32)
    high = (high >> np.array([0, 2, 4, 6], np.uint8)[:, None]) & 3
    shape = (len(data), low.shape[1], 256)
    codes = (low.reshape(shape) | (high.reshape(shape) << 4)).astype(np.int8) - np.int8(32)
    scales = np.ascontiguousarray(blocks[..., 192:208]).view(np.int8).astype(np.float32)
    d = _float16(blocks[..., 208:]).astype(np.float32)[..., None]
    return QuantizedMatrix(codes.reshape(len(data), -1), (d * scales).reshape(len(data), -1))


_UNPACKED: dict[str, Callable[[np.ndarray], QuantizedMatrix]] = {
    "Q4_0": _q4_0, "Q4_1": _q4_1, "Q5_0": _q5_0, "Q5_1": _q5_1, "Q8_0": _q8_0, "Q4_K": _q4_k, "Q5_K": _q5_k,
    "Q6_K": _q6_k, "IQ4_NL": _iq4_nl,
}  # fmt: skip
