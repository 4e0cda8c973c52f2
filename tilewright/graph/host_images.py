"""The op of the host that decodes image files, with Pillow, which is an optional package."""

from __future__ import annotations

import io
import warnings
from typing import Any

import numpy as np

from tilewright.dtypes import uint8
from tilewright.errors import InputError, MissingDependencyError, ShapeError
from tilewright.graph.inference import Attributes, Inputs, Types, value
from tilewright.graph.semantics import Array, Arrays

CHANNELS = {"RGB": 3, "BGR": 3, "Grayscale": 1}
_FORMATS = ("BMP", "JPEG", "JPEG2000", "PNG", "PPM", "TIFF", "WEBP")  # no others are tried


def decoded_type(inputs: Inputs, attributes: Attributes) -> Types:
    """Bytes [n] to pixels [height, width, channels]."""
    data, shape = value(inputs, 0), attributes["shape"]
    if data.dtype != uint8 or data.rank != 1 or attributes["format"] not in CHANNELS:
        raise ShapeError(f"{data!r} as {str(attributes['format'])[:80]!r}")
    if len(shape) != 3 or shape[2] != CHANNELS[attributes["format"]]:
        raise ShapeError(f"an image of the shape {list(shape)}")
    return [(uint8, shape)]


def _pillow() -> Any:
    """Pillow's module of images; raises `MissingDependencyError`."""
    try:
        from PIL import Image
    except ImportError:
        raise MissingDependencyError(
            "the model decodes image files, for which Pillow is needed: pip install 'tilewright[images]'"
        ) from None
    return Image


def decoded_image(inputs: Arrays, attributes: Attributes) -> Array:
    Image = _pillow()
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error", Image.DecompressionBombWarning)
            image = Image.open(io.BytesIO(inputs[0].tobytes()), formats=_FORMATS)
            pixels = np.array(image.convert("L" if attributes["format"] == "Grayscale" else "RGB"))
    except (OSError, ValueError, SyntaxError, Image.DecompressionBombError, Image.DecompressionBombWarning) as error:
        raise InputError(
            f"the model decodes an image file of {inputs[0].size} bytes, which cannot be read ({error}); give one of "
            f"{', '.join(_FORMATS)}"
        ) from None
    if attributes["format"] == "Grayscale":
        return pixels[:, :, None]
    return pixels[:, :, ::-1] if attributes["format"] == "BGR" else pixels
