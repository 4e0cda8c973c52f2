"""Quantized weights in checkpoint folders: compressed-tensors, GPTQ, AWQ and block-fp8, as published.

`reader_of` looks at `quantization_config` of config.json; the reader gives the matrix of a linear layer, or None where
that layer is stored in floats.  What each format stores for a layer of `rows` outputs and `columns` inputs:

    compressed-tensors   pack-quantized: weight_packed int32 [rows, columns bits / 32], weight_scale [rows, groups],
                         weight_zero_point int32 [rows bits / 32, groups], weight_g_idx [columns], weight_shape [2];
                         codes and zero points are 2^(bits - 1) more
                         int-quantized, float-quantized, naive-quantized: weight int8 or f8e4nv [rows, columns],
                         weight_scale (and weight_zero_point) [1], [rows, 1], [rows, groups] or by blocks
                         nvfp4-pack-quantized: weight_packed uint8 [rows, columns / 2], weight_scale f8e4nv
                         [rows, columns / 16], weight_global_scale [1], which divides
    gptq                 qweight int32 [columns bits / 32, rows], qzeros int32 [groups, rows bits / 32] (one less than
                         the zero points, but in format gptq_v2), scales [groups, rows], g_idx [columns]
    awq                  qweight int32 [columns, rows / 8], qzeros int32 [groups, rows / 8], both with the columns of
                         eight in the order 0 2 4 6 1 3 5 7, scales [groups, rows]
    fp8                  weight f8e4nv [rows, columns], weight_scale_inv [rows / 128, columns / 128] or weight_scale [1]
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, NoReturn

import ml_dtypes
import numpy as np

from tilewright.errors import ImportModelError
from tilewright.importers.huggingface import Checkpoint
from tilewright.importers.quantized_weights import QuantizedMatrix, in_groups, of_bits, place_not_finite, unpacked_bits

KEY = "quantization_config"
_AWQ_ORDER = (0, 2, 4, 6, 1, 3, 5, 7)  # the column that each of the eight places of a word holds
_POWER_OF_TWO = np.dtype(ml_dtypes.float8_e8m0fnu)
_FLOAT8 = np.dtype(ml_dtypes.float8_e4m3fn)
_ACTIVATION_NAMES = ("input_scale", "input_zero_point", "output_scale", "input_global_scale")
_STRATEGIES = ("tensor", "channel", "group", "tensor_group", "block")


@dataclass(frozen=True)
class QuantizedLayer:
    """A layer's matrix; `rows_in_8_bits`: its inputs are rounded to int8 with a scale for each row."""

    matrix: QuantizedMatrix
    rows_in_8_bits: bool = False


Reader = Callable[[str, int, int], "QuantizedLayer | None"]  # path, rows, columns


def reader_of(checkpoint: Checkpoint) -> Reader | None:
    """How quantized layers of a checkpoint are read; None for one without any.

    Raises `ImportModelError` naming the key of config.json for a method, or settings of it, that cannot be read.
    """
    config = checkpoint.config.get(KEY)
    if config is None:
        return None
    settings = _Settings(checkpoint, config if isinstance(config, Mapping) else {})
    method = str(settings.values.get("quant_method"))
    known: dict[str, Callable[[_Settings], Reader]] = {
        "compressed-tensors": _compressed, "gptq": _gptq, "awq": _awq, "fp8": _float8
    }  # fmt: skip
    if method not in known:
        settings.refuse("quant_method", f"is {method[:60]!r}; weights of {', '.join(known)} can be read")
    return known[method](settings)


class _Settings:
    """The entries of `quantization_config`, and the tensors of a layer."""

    def __init__(self, checkpoint: Checkpoint, values: Mapping[str, Any]) -> None:
        self.checkpoint, self.values = checkpoint, values

    def refuse(self, key: str, why: str) -> NoReturn:
        raise ImportModelError(f"{self.checkpoint.folder / 'config.json'}: {KEY}: {key!r} {why}")

    def number(self, key: str, allowed: tuple[int, ...], default: int | None = None) -> int:
        found = self.values.get(key, default)
        if type(found) is not int or (allowed and found not in allowed):
            self.refuse(key, f"is {repr(found)[:60]}; known are {', '.join(map(str, allowed))}")
        return int(found)

    def group(self, key: str, columns: int, default: int | None = None) -> int:
        """Inputs that share a scale, all of them for -1."""
        found = self.number(key, (), default)
        if found == -1:
            return columns
        if found < 1 or columns % found:
            self.refuse(key, f"is {found}, which does not divide a layer's {columns} inputs")
        return found

    def has(self, name: str) -> bool:
        return self.checkpoint.has(name)

    def take(self, name: str, shape: tuple[int, ...], setting: str, kinds: str = "iu") -> np.ndarray:
        """A tensor, whose shape follows from the setting `setting`; powers of two (e8m0) as float32.

        Raises `ImportModelError` also for numbers that are not finite.
        """
        found = self.checkpoint.take_stored(name, shape, f"{KEY}: {setting}")
        if found.dtype.kind not in kinds:
            raise ImportModelError(f"{self.checkpoint.folder}: {name} has elements of {found.dtype} ({KEY}: {setting})")
        place = place_not_finite(found)
        if place is not None:
            raise ImportModelError(
                f"{self.checkpoint.folder}: {name} is {found[place]} at {list(place)} ({KEY}: {setting}); fetch the "
                "file again, or quantize the model anew"
            )
        return np.ascontiguousarray(found.astype(np.float32) if found.dtype == _POWER_OF_TWO else found)

    def skip(self, path: str, *names: str) -> None:
        """Tensors of a layer that say nothing about its weights."""
        for name in names:
            if self.has(f"{path}.{name}"):
                self.checkpoint.take(f"{path}.{name}", self.checkpoint.tensors[f"{path}.{name}"].shape)


# compressed-tensors -----------------------------------------------------------------------------------


def _compressed(settings: _Settings) -> Reader:
    groups = settings.values.get("config_groups")
    schemes = list(groups.values()) if isinstance(groups, Mapping) else []
    weights: list[Mapping[str, Any]] = [scheme.get("weights") or {} for scheme in schemes if isinstance(scheme, dict)]
    if not weights or not all(isinstance(item, Mapping) and item == weights[0] for item in weights):
        settings.refuse("config_groups", "has no weights, or different schemes for different layers")
    own = _Settings(settings.checkpoint, {**weights[0], "format": settings.values.get("format")})
    activations = schemes[0].get("input_activations")
    bits = own.number("num_bits", (4, 8))
    strategy, kind = str(own.values.get("strategy")), own.values.get("type", "int")
    if strategy not in _STRATEGIES or kind not in ("int", "float"):
        own.refuse("strategy", f"is {strategy[:40]!r} of {repr(kind)[:40]}; known are {', '.join(_STRATEGIES)}")
    in_8_bits = kind == "int" and bits == 8 and isinstance(activations, Mapping) and activations.get("num_bits") == 8
    if in_8_bits and not (activations.get("dynamic") and activations.get("strategy") == "token"):
        in_8_bits = False  # a stored range is one of many ways to round; weights alone are exact

    def read(path: str, rows: int, columns: int) -> QuantizedLayer | None:
        own.skip(path, *_ACTIVATION_NAMES, "weight_shape")
        if own.has(f"{path}.weight_global_scale"):
            return QuantizedLayer(_nvfp4(own, path, rows, columns))
        if own.has(f"{path}.weight_packed"):
            return QuantizedLayer(_packed(own, path, rows, columns, bits, strategy))
        if not own.has(f"{path}.weight_scale"):
            return None
        matrix = _stored(own, path, rows, columns, strategy, kind == "float")
        return QuantizedLayer(matrix, in_8_bits and matrix.zeros is None and matrix.scales.shape[1] == 1)

    return read


def _groups_of(settings: _Settings, strategy: str, columns: int) -> int:
    return columns // settings.group("group_size", columns, -1) if strategy in ("group", "tensor_group") else 1


def _packed(settings: _Settings, path: str, rows: int, columns: int, bits: int, strategy: str) -> QuantizedMatrix:
    setting, each = f"num_bits {bits}, group_size {settings.values.get('group_size')}", 32 // bits
    words = settings.take(f"{path}.weight_packed", (rows, -(-columns // each)), setting)
    codes = unpacked_bits(_bytes(words), bits)[:, :columns]
    count = _groups_of(settings, strategy, columns)
    scales = settings.take(f"{path}.weight_scale", (rows, count), setting, "fV")
    zeros = np.full((rows, count), 1 << (bits - 1), np.uint8)
    if settings.has(f"{path}.weight_zero_point"):
        words = settings.take(f"{path}.weight_zero_point", (-(-rows // each), count), setting)
        zeros = unpacked_bits(_bytes(words.T), bits)[:, :rows].T
    matrix = QuantizedMatrix(of_bits(codes, bits), scales, np.ascontiguousarray(zeros))
    return _ordered(settings, f"{path}.weight_g_idx", matrix, columns)


def _stored(settings: _Settings, path: str, rows: int, columns: int, strategy: str, floats: bool) -> QuantizedMatrix:
    setting = f"strategy {strategy!r}, group_size {settings.values.get('group_size')}"
    codes = settings.take(f"{path}.weight", (rows, columns), setting, "V" if floats else "i")
    if floats and codes.dtype != _FLOAT8:
        raise ImportModelError(f"{settings.checkpoint.folder}: {path}.weight has elements of {codes.dtype}")
    if strategy == "block":
        height, width = _block(settings, "block_structure")
        scales = settings.take(f"{path}.weight_scale", (-(-rows // height), -(-columns // width)), setting, "fV")
        return of_blocks(codes, scales, height, width)
    count = _groups_of(settings, strategy, columns)
    scales = _by_rows(settings, f"{path}.weight_scale", rows, count, setting, "fV")
    if not settings.has(f"{path}.weight_zero_point"):
        return QuantizedMatrix(codes, scales)
    zeros = _by_rows(settings, f"{path}.weight_zero_point", rows, count, setting, "i")
    return QuantizedMatrix(codes, scales, zeros if zeros.any() else None)


def _by_rows(settings: _Settings, name: str, rows: int, count: int, setting: str, kinds: str) -> np.ndarray:
    """Numbers [rows, groups], of which there may be one in all."""
    stored = settings.checkpoint.tensors.get(name)
    if stored is not None and stored.size == 1 and count == 1:
        return np.broadcast_to(settings.take(name, stored.shape, setting, kinds).reshape(1, 1), (rows, 1))
    shape = stored.shape if stored is not None and stored.shape == (rows,) and count == 1 else (rows, count)
    return settings.take(name, shape, setting, kinds).reshape(rows, count)


def _nvfp4(settings: _Settings, path: str, rows: int, columns: int) -> QuantizedMatrix:
    """e2m1 codes with f8e4nv scales of 16 under one scale: twice the codes' numbers are whole, and kept as int8."""
    setting = "format nvfp4-pack-quantized"
    packed = settings.take(f"{path}.weight_packed", (rows, columns // 2), setting)
    scales = settings.take(f"{path}.weight_scale", (rows, columns // 16), setting, "V").astype(np.float32)
    whole = settings.take(f"{path}.weight_global_scale", (1,), setting, "f")
    if not (np.isfinite(whole).all() and whole[0] > 0):
        raise ImportModelError(f"{settings.checkpoint.folder}: {path}.weight_global_scale is {whole[0]} ({setting})")
    codes = unpacked_bits(packed.astype(np.uint8, copy=False), 4).view(ml_dtypes.float4_e2m1fn).astype(np.float32)
    return QuantizedMatrix((codes * 2).astype(np.int8), scales / (2 * whole.astype(np.float32)))


# GPTQ, AWQ, fp8 ---------------------------------------------------------------------------------------


def _gptq(settings: _Settings) -> Reader:
    bits = settings.number("bits", (2, 4, 8))
    earlier = settings.values.get("checkpoint_format", "gptq") != "gptq_v2"

    def read(path: str, rows: int, columns: int) -> QuantizedLayer | None:
        if not settings.has(f"{path}.qweight"):
            return None
        if settings.has(f"{path}.bias") and not settings.checkpoint.tensors[f"{path}.bias"].any():
            settings.skip(path, "bias")  # some writers store zeros where the model has no bias
        each, setting = 32 // bits, f"bits {bits}, group_size {settings.values.get('group_size')}"
        count = columns // settings.group("group_size", columns, 128)
        words = settings.take(f"{path}.qweight", (columns // each, rows), setting)
        points = settings.take(f"{path}.qzeros", (count, rows // each), setting)
        scales = settings.take(f"{path}.scales", (count, rows), setting, "fV")
        codes = unpacked_bits(_bytes(words.T), bits)
        zeros = unpacked_bits(_bytes(points), bits).T
        if earlier:  # zero points are stored one less, modulo 2^bits
            zeros = (zeros + 1).astype(np.uint8) if bits == 8 else (zeros + 1).astype(np.uint8) & ((1 << bits) - 1)
        matrix = QuantizedMatrix(of_bits(codes, bits), np.ascontiguousarray(scales.T), np.ascontiguousarray(zeros))
        return QuantizedLayer(_ordered(settings, f"{path}.g_idx", matrix, columns))

    return read


def _awq(settings: _Settings) -> Reader:
    bits = settings.number("bits", (4,))
    version = str(settings.values.get("version", "gemm")).lower()
    if version != "gemm":
        settings.refuse("version", f"is {version[:40]!r}; only 'gemm' can be read")

    def read(path: str, rows: int, columns: int) -> QuantizedLayer | None:
        if not settings.has(f"{path}.qweight"):
            return None
        setting = f"bits {bits}, group_size {settings.values.get('group_size')}"
        count = columns // settings.group("group_size", columns, 128)
        codes = _awq_columns(settings.take(f"{path}.qweight", (columns, rows // 8), setting))
        scales = settings.take(f"{path}.scales", (count, rows), setting, "fV")
        if settings.values.get("zero_point", True):
            zeros = _awq_columns(settings.take(f"{path}.qzeros", (count, rows // 8), setting))
        else:
            settings.skip(path, "qzeros")
            zeros = np.full((count, rows), 8, np.uint8)
        matrix = QuantizedMatrix(
            of_bits(np.ascontiguousarray(codes.T), bits), np.ascontiguousarray(scales.T), np.ascontiguousarray(zeros.T)
        )
        return QuantizedLayer(matrix)

    return read


def _awq_columns(words: np.ndarray) -> np.ndarray:
    """uint8 [n, columns] of words [n, columns / 8]."""
    places = unpacked_bits(_bytes(words), 4).reshape(len(words), -1, 8)
    codes = np.empty_like(places)
    codes[..., list(_AWQ_ORDER)] = places
    return codes.reshape(len(words), -1)


def _float8(settings: _Settings) -> Reader:
    blocks = settings.values.get("weight_block_size")
    height, width = _block(settings, "weight_block_size") if blocks is not None else (0, 0)

    def read(path: str, rows: int, columns: int) -> QuantizedLayer | None:
        settings.skip(path, *_ACTIVATION_NAMES)
        name = "weight_scale_inv" if settings.has(f"{path}.weight_scale_inv") else "weight_scale"
        if not settings.has(f"{path}.{name}"):
            return None
        setting = f"weight_block_size {blocks}"
        codes = settings.take(f"{path}.weight", (rows, columns), setting, "V")
        if codes.dtype != _FLOAT8:
            raise ImportModelError(f"{settings.checkpoint.folder}: {path}.weight has elements of {codes.dtype}")
        if blocks is None:
            return QuantizedLayer(QuantizedMatrix(codes, _by_rows(settings, f"{path}.{name}", rows, 1, setting, "fV")))
        shape = (-(-rows // height), -(-columns // width))
        return QuantizedLayer(of_blocks(codes, settings.take(f"{path}.{name}", shape, setting, "fV"), height, width))

    return read


def _block(settings: _Settings, key: str) -> tuple[int, int]:
    found = settings.values.get(key)
    if not isinstance(found, (list, tuple)) or len(found) != 2 or not all(type(n) is int and n > 0 for n in found):
        settings.refuse(key, f"is {repr(found)[:60]}, expected two sizes")
    return found[0], found[1]


def of_blocks(codes: np.ndarray, scales: np.ndarray, height: int, width: int) -> QuantizedMatrix:
    """A matrix with a scale for each block of so many rows and columns; the last ones may be smaller."""
    rows, columns = codes.shape
    height, width = min(height, rows), min(width, columns)
    filled = scales.shape[1] * width
    if filled != columns:
        codes = np.pad(codes.view(np.uint8), ((0, 0), (0, filled - columns))).view(codes.dtype)
    repeated = np.repeat(scales, height, axis=0)[:rows]
    return QuantizedMatrix(codes, np.ascontiguousarray(repeated), depth=columns)


def _ordered(settings: _Settings, name: str, matrix: QuantizedMatrix, columns: int) -> QuantizedMatrix:
    """The matrix with its groups one after the other, where the checkpoint tells the group of each input."""
    if not settings.has(name):
        return matrix
    places = settings.take(name, (columns,), "act order")
    found = in_groups(matrix, places.astype(np.int64))
    if found is None:
        raise ImportModelError(
            f"{settings.checkpoint.folder}: {name} does not put {columns} inputs into {matrix.scales.shape[1]} equal "
            f"groups ({KEY}: group_size {settings.values.get('group_size')})"
        )
    return found


def _bytes(words: np.ndarray) -> np.ndarray:
    """The bytes of words of 32 bits along the last dimension, those of the low bits first."""
    return np.ascontiguousarray(words, dtype="<i4").view(np.uint8)
