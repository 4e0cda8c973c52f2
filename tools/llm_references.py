"""Compare language models with transformers: the NumPy models of the tests in float64, and what the engine generates.

python tools/llm_references.py                # logits of tests/host/llm_reference.py, float64
python tools/llm_references.py --greedy 200   # so many prompts for each family: greedy tokens of the engine, float32

Needs torch and transformers; the tests need neither.  Prompts are random, of different lengths, and run together in
the engine, in transformers those of one length.  Where tokens differ, the gap between the two largest logits at the
first difference must be a near-tie: at most `TIE` of the largest logit.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from tests.host.llm_support import CASES, checkpoint_of, reference, tokens_of

BOUND = 1e-5  # transformers computes angles, and gates of experts, in float32
TIE = 1e-5
GENERATED = 16  # tokens


def model_of(folder: Path, dtype: str) -> Any:
    """transformers' model."""
    import torch
    import transformers

    return transformers.AutoModelForCausalLM.from_pretrained(
        folder, dtype=getattr(torch, dtype), attn_implementation="eager", experts_implementation="eager"
    ).eval()


def logits_of(model: Any, tokens: list[int]) -> np.ndarray:
    """transformers' logits, float64 [tokens, vocabulary]."""
    import torch

    with torch.no_grad():
        logits: np.ndarray = model(torch.tensor([tokens])).logits[0].double().numpy()
    return logits


def compare_logits() -> int:
    """The NumPy models of the tests."""
    worst = 0.0
    for name in CASES:
        length = 32 if name == "phi3-longrope" else len(tokens_of(name))  # longer ones take other factors there
        with tempfile.TemporaryDirectory() as folder:
            model = model_of(checkpoint_of(name, Path(folder)), "float64")
            theirs = logits_of(model, tokens_of(name)[:length])
        ours = reference(name)[1][:length]
        difference = np.abs(ours - theirs).max() / np.abs(theirs).max()
        worst = max(worst, difference)
        print(f"{name}: {difference:.1e} of the largest logit")
    return int(worst > BOUND)


def greedy(model: Any, prompts: list[list[int]]) -> list[list[int]]:
    """transformers' greedy tokens after prompts of one length."""
    import torch

    tokens = torch.tensor(prompts)
    with torch.no_grad():
        found = model.generate(
            tokens, attention_mask=torch.ones_like(tokens), do_sample=False, max_new_tokens=GENERATED,
            min_new_tokens=GENERATED, eos_token_id=None, pad_token_id=0,
        )  # fmt: skip
    generated: list[list[int]] = found[:, tokens.shape[1] :].tolist()
    return generated


def compare_greedy(count: int, seed: int) -> int:
    """The engine's greedy tokens."""
    from tilewright.llm import LLM, SamplingParameters

    wrong = 0
    for name in CASES:
        rng = np.random.default_rng(seed)
        lengths = (1, 2, 5, 9, 14) if name == "phi3-longrope" else (1, 3, 8, 17, 32, 47)
        prompts = [rng.integers(0, 96, lengths[number % len(lengths)]).tolist() for number in range(count)]
        wanted = SamplingParameters(temperature=0.0, max_tokens=GENERATED, ignore_eos=True)
        with tempfile.TemporaryDirectory() as folder:
            path = checkpoint_of(name, Path(folder))
            llm = LLM(path, memory=4 << 20, tokens=64, length=lengths[-1] + GENERATED)
            ours = [output.completions[0].tokens for output in llm.generate_all(prompts, wanted)]
            model = model_of(path, "float32")
            ties = differ = 0
            for first in range(len(lengths)):
                each, mine = prompts[first :: len(lengths)], ours[first :: len(lengths)]
                found = greedy(model, each)
                for prompt, one, other in zip(each, found, mine, strict=True):
                    if one == other:
                        continue
                    place = next(at for at, pair in enumerate(zip(one, other, strict=True)) if pair[0] != pair[1])
                    largest = np.sort(logits_of(model, [*prompt, *one[:place]])[-1])
                    gap = (largest[-1] - largest[-2]) / np.abs(largest).max()
                    ties, differ = ties + (gap <= TIE), differ + (gap > TIE)
                    if gap > TIE:
                        print(f"{name}: {prompt} differs at {place}, where the gap is {gap:.1e} of the largest logit")
        wrong += differ
        print(f"{name}: {count - ties - differ} of {count} equal, {ties} near-ties, {differ} wrong", flush=True)
    return int(wrong > 0)


def main() -> int:
    """0 where all agree."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--greedy", type=int, default=0, metavar="PROMPTS")
    parser.add_argument("--seed", type=int, default=0)
    given = parser.parse_args()
    return compare_greedy(given.greedy, given.seed) if given.greedy else compare_logits()


if __name__ == "__main__":
    sys.exit(main())
