"""ONNX models that decode image files, which Pillow does."""

from __future__ import annotations

import io
import sys

import numpy as np
import onnx
import pytest

import tilewright
from tilewright.errors import InputError, MissingDependencyError
from tilewright.graph import reference
from tilewright.importers.onnx import import_onnx


def parsed(pixels: str) -> onnx.ModelProto:
    channels = 1 if pixels == "Grayscale" else 3
    return onnx.parser.parse_model(f"""<ir_version: 9, opset_import: ["" : 20]>
        m (uint8[n] f) => (uint8[h, w, {channels}] y, float[h, w, {channels}] z) {{
            y = ImageDecoder <pixel_format = "{pixels}"> (f) c = Cast <to = 1> (y) z = Sqrt(c) }}""")


def test_missing_pillow_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "PIL", None)
    graph = import_onnx(parsed("RGB"))
    with pytest.raises(MissingDependencyError, match=r"Pillow is needed: pip install 'tilewright\[images\]'"):
        reference.run(graph, {"f": np.zeros(4, np.uint8)}, dtype=None)


@pytest.mark.parametrize("kind", ["PNG", "BMP", "PPM", "TIFF", "WEBP"])
@pytest.mark.parametrize("pixels", ["RGB", "BGR", "Grayscale"])
def test_files_without_loss(kind: str, pixels: str, rng: np.random.Generator) -> None:
    images = pytest.importorskip("PIL.Image", reason="needs Pillow")
    image = images.fromarray(rng.integers(0, 256, (7, 5, 3)).astype(np.uint8))
    stream = io.BytesIO()
    image.save(stream, kind, **({"lossless": True} if kind == "WEBP" else {}))
    found = reference.run(import_onnx(parsed(pixels)), {"f": np.frombuffer(stream.getvalue(), np.uint8)}, dtype=None)
    wanted = np.array(image.convert("L"))[:, :, None] if pixels == "Grayscale" else np.array(image)
    np.testing.assert_array_equal(found["y"], wanted[:, :, ::-1] if pixels == "BGR" else wanted)


def test_engines_decode_files_of_any_size(rng: np.random.Generator) -> None:
    images = pytest.importorskip("PIL.Image", reason="needs Pillow")
    engine = tilewright.compile(parsed("RGB"), target="cpu")
    for size in ((3, 4), (9, 2)):
        pixels, stream = rng.integers(0, 256, (*size, 3)).astype(np.uint8), io.BytesIO()
        images.fromarray(pixels).save(stream, "PNG")
        found = engine.run({"f": np.frombuffer(stream.getvalue(), np.uint8)})
        np.testing.assert_array_equal(found["y"], pixels)
        np.testing.assert_allclose(found["z"], np.sqrt(pixels.astype(np.float32)), rtol=1e-6)
    for data in (b"", b"GIF89a" + bytes(20), b"no image", stream.getvalue()[:30]):
        with pytest.raises(InputError, match=r"an image file of \d+ bytes, which cannot be read"):
            engine.run({"f": np.frombuffer(data or b"\0", np.uint8)})
