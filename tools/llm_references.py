"""Compare the NumPy language models of the tests (tests/host/llm_reference.py) with transformers, in float64.

python tools/llm_references.py            # needs torch and transformers; the tests need neither
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from tests.host.llm_support import CASES, checkpoint_of, reference, tokens_of

BOUND = 1e-5  # transformers computes angles, and gates of experts, in float32


def logits_of(name: str, folder: Path, tokens: list[int]) -> np.ndarray:
    """transformers' logits, float64 [tokens, vocabulary]."""
    import torch
    import transformers

    model = transformers.AutoModelForCausalLM.from_pretrained(
        folder, dtype=torch.float64, attn_implementation="eager", experts_implementation="eager"
    )
    with torch.no_grad():
        return model.eval()(torch.tensor([tokens])).logits[0].double().numpy()


def main() -> int:
    worst = 0.0
    for name in CASES:
        length = 32 if name == "phi3-longrope" else len(tokens_of(name))  # longer ones take other factors there
        with tempfile.TemporaryDirectory() as folder:
            theirs = logits_of(name, checkpoint_of(name, Path(folder)), tokens_of(name)[:length])
        ours = reference(name)[1][:length]
        difference = np.abs(ours - theirs).max() / np.abs(theirs).max()
        worst = max(worst, difference)
        print(f"{name}: {difference:.1e} of the largest logit")
    return int(worst > BOUND)


if __name__ == "__main__":
    sys.exit(main())
