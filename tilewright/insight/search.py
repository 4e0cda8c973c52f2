"""The precision search of an engine, as recorded in its file."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tilewright.engine.engine import Engine


def search_of(engine: Engine) -> dict[str, Any] | None:
    """What `quant.search.PrecisionSearch.as_data` gave, checked; None for an engine that no search made.

    Raises `KeyError`, `TypeError` or `ValueError` for data of another form.
    """
    data = engine.search
    if data is None:
        return None
    numbers = ("max_drop", "drop", "float_seconds", "seconds")
    layers = [
        {**{key: str(row[key]) for key in ("name", "op", "source", "chosen", "why")},
         "candidates": {str(name): [float(seconds), float(error)]
                        for name, (seconds, error) in dict(row["candidates"]).items()}}
        for row in data["layers"]
    ]  # fmt: skip
    points = [
        {"layers": int(point["layers"]), "seconds": float(point["seconds"]), "drop": float(point["drop"])}
        for point in data["points"]
    ]
    return {"metric": str(data["metric"]), **{key: float(data[key]) for key in numbers}, "layers": layers,
            "points": points, "held_back": int(data.get("held_back", 0)),
            "remarks": [str(text) for text in data.get("remarks", ())]}  # fmt: skip
