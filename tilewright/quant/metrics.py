"""The loss of a quantized model against the float model, as one number: 0 for none, 0.01 for one percent.

cosine   1 less the mean cosine of the angle between results, over outputs and samples
mse      the mean squared difference of results, in the mean square of those in floats
top1     where samples have a `label`: how much less often the largest number of the first output is at the label;
         else how often it is somewhere else than in floats
script   a function `score(outputs, inputs)`, larger is better: the mean over samples is so much less, as a part of
         that in floats

A drop that is not finite is beyond every bound.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress

import numpy as np

from tilewright.errors import InputError

Outputs = Mapping[str, np.ndarray]
Score = Callable[[Outputs, Outputs], float]
Drop = Callable[[Sequence[Outputs], Sequence[Outputs], Sequence[Outputs]], float]  # floats, narrow, samples
LABEL = "label"


def cosine(floats: Sequence[Outputs], narrow: Sequence[Outputs], samples: Sequence[Outputs]) -> float:
    angles = []
    for plain, found in zip(floats, narrow, strict=True):
        for name, array in _floats(plain):
            a, b = array.astype(np.float64).ravel(), found[name].astype(np.float64).ravel()
            length = float(np.linalg.norm(a) * np.linalg.norm(b))
            angles.append(float(a @ b) / length if length else float(np.array_equal(a, b)))
    return float(np.maximum(0.0, 1.0 - np.mean(angles)))  # NaN stays NaN


def mse(floats: Sequence[Outputs], narrow: Sequence[Outputs], samples: Sequence[Outputs]) -> float:
    error = total = 0.0
    for plain, found in zip(floats, narrow, strict=True):
        for name, array in _floats(plain):
            error += float(((found[name].astype(np.float64) - array) ** 2).sum())
            total += float((array.astype(np.float64) ** 2).sum())
    return error / total if total else float(error != 0)


def top1(floats: Sequence[Outputs], narrow: Sequence[Outputs], samples: Sequence[Outputs]) -> float:
    right = {"floats": 0, "narrow": 0}
    count = 0
    for plain, found, sample in zip(floats, narrow, samples, strict=True):
        name, array = _floats(plain)[0]
        own, other = array.argmax(-1), found[name].argmax(-1)
        numbers = ~np.isnan(found[name].astype(np.float64)).any(-1)  # a row with NaN has no largest number
        labels = labels_of(sample, array) if LABEL in sample else own
        right["floats"] += int((own == labels).sum())
        right["narrow"] += int((numbers & (other == labels)).sum())
        count += own.size
    return (right["floats"] - right["narrow"]) / max(count, 1)


def check_labels(floats: Sequence[Outputs], samples: Sequence[Outputs]) -> None:
    """Raise `InputError` for labels that are no classes of the predictions in floats, and where none is right.

    Few samples may have no right prediction by chance: these are all samples that there are.
    """
    count = right = 0
    for plain, sample in zip(floats, samples, strict=True):
        if LABEL in sample:
            array = _floats(plain)[0][1]
            labels = labels_of(sample, array)
            count, right = count + labels.size, right + int((array.argmax(-1) == labels).sum())
    if count and not right:
        raise InputError(
            f"none of the model's {count} predictions is its `{LABEL}`, so none can be lost: look whether the labels "
            f"count classes from 0, and in the order of the model's outputs"
        )


def labels_of(sample: Outputs, output: np.ndarray) -> np.ndarray:
    """The labels of a sample, one for each prediction of an output [.., classes]; raises `InputError`."""
    labels, wanted = np.asarray(sample[LABEL]), output.shape[:-1]
    if labels.size != int(np.prod(wanted)):
        raise InputError(f"`{LABEL}` has the shape {labels.shape}, but the model's first output {output.shape} makes "
                         f"{int(np.prod(wanted))} predictions: give a label for each")  # fmt: skip
    if labels.dtype.kind not in "iufb" or not (labels == np.floor(labels)).all():
        raise InputError(f"`{LABEL}` has elements of {labels.dtype}; give the indices of classes")
    classes = output.shape[-1]
    if not ((labels >= 0) & (labels < classes)).all():
        wrong = labels[(labels < 0) | (labels >= classes)].ravel()[0]
        raise InputError(f"`{LABEL}` has the class {wrong}; the model's first output has 0 to {classes - 1}")
    return labels.reshape(wanted)


def predictions_of(outputs: Sequence[Outputs]) -> int:
    """How many predictions `top1` counts."""
    return sum(array.size // max(array.shape[-1], 1) for array in (_floats(each)[0][1] for each in outputs))


def of_score(score: Score) -> Drop:
    """How much less the mean score is."""

    def drop(floats: Sequence[Outputs], narrow: Sequence[Outputs], samples: Sequence[Outputs]) -> float:
        plain, found = (
            float(np.mean([_scored(score, outputs, sample) for outputs, sample in zip(each, samples, strict=True)]))
            for each in (floats, narrow)
        )
        return (plain - found) / max(abs(plain), 1e-30)

    return drop


def _scored(score: Score, outputs: Outputs, inputs: Outputs) -> float:
    """A score as a number; raises `InputError` where the function fails or gives something else."""
    try:
        found = score(outputs, inputs)
    except Exception as error:
        raise InputError(
            f"the metric raised {type(error).__name__}: {error}; it is called with the outputs "
            f"({', '.join(outputs)}) and the inputs ({', '.join(inputs)}) of one sample"
        ) from error
    number = isinstance(found, (int, float, np.number, np.bool_)) or (isinstance(found, np.ndarray) and not found.ndim)
    if number and np.asarray(found).dtype.kind in "biufVO":  # bfloat16 is of kind V, large integers are objects
        with suppress(TypeError, ValueError, OverflowError):
            return float(found)
    raise InputError(f"the metric gave {found!r:.100}, expected a number")


METRICS: dict[str, Drop] = {"cosine": cosine, "mse": mse, "top1": top1}


def _floats(outputs: Outputs) -> list[tuple[str, np.ndarray]]:
    found = [(name, array) for name, array in outputs.items() if array.dtype.kind in "fV"]
    if not found:
        raise InputError("the model has no outputs of floats, which cosine, mse and top1 compare: give a function")
    return found
