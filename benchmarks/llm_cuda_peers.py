"""Other runtimes of language models for `llm_cuda.py`: a loop in PyTorch as gpt-fast has it, and transformers."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.nn.functional as F

from benchmarks.llm_cuda_model import (
    EPSILON,
    HIDDEN,
    INNER,
    KEY_HEADS,
    KEYS,
    QUERIES,
    THETA,
    VOCABULARY,
    WIDTH,
    configuration,
)

STEPS = 20  # of new tokens, that follow each other


def layer_of_loop(
    x: torch.Tensor, weights: list[torch.Tensor], keys: torch.Tensor, values: torch.Tensor, place: torch.Tensor,
    angles: tuple[torch.Tensor, torch.Tensor], causal: bool,
) -> torch.Tensor:  # fmt: skip
    """One layer; x [batch, tokens, hidden], caches [batch, key heads, length, width] written at `place` [tokens]."""
    first, second, qkv, out, gate_up, down = weights
    batch, tokens, _ = x.shape
    normed = F.rms_norm(x, (HIDDEN,), first, EPSILON)
    q, k, v = F.linear(normed, qkv).split((QUERIES, KEYS, KEYS), -1)
    q, k, v = (item.view(batch, tokens, -1, WIDTH).transpose(1, 2) for item in (q, k, v))
    cosine, sine = angles

    def rotated(item: torch.Tensor) -> torch.Tensor:
        low, high = item.chunk(2, -1)
        return torch.cat((low * cosine - high * sine, high * cosine + low * sine), -1)

    q, k = rotated(q), rotated(k)
    if causal:
        keys[:, :, :tokens], values[:, :, :tokens] = k, v
    else:
        keys.index_copy_(2, place, k)
        values.index_copy_(2, place, v)
        k, v = keys, values
    y = F.scaled_dot_product_attention(q, k, v, is_causal=causal, enable_gqa=True)
    x = x + F.linear(y.transpose(1, 2).reshape(batch, tokens, QUERIES), out)
    gate, up = F.linear(F.rms_norm(x, (HIDDEN,), second, EPSILON), gate_up).chunk(2, -1)
    return x + F.linear(F.silu(gate) * up, down)


class Loop:
    """A loop in PyTorch: layers by torch.compile, a static cache, decoding as one CUDA graph."""

    name = "PyTorch loop"

    def __init__(self, layers: int) -> None:
        def random(*shape: int) -> torch.Tensor:
            return torch.empty(shape, dtype=torch.bfloat16, device="cuda").normal_(0, 0.02)

        self.table, self.head, self.norm = random(VOCABULARY, HIDDEN), random(VOCABULARY, HIDDEN), random(HIDDEN)
        self.layers = [
            [random(HIDDEN), random(HIDDEN), random(QUERIES + 2 * KEYS, HIDDEN), random(HIDDEN, QUERIES),
             random(2 * INNER, HIDDEN), random(HIDDEN, INNER)] for _ in range(layers)
        ]  # fmt: skip
        self.layer = torch.compile(layer_of_loop, dynamic=False, fullgraph=True)
        self.last = torch.compile(self._last, dynamic=False, fullgraph=True)

    def _last(self, x: torch.Tensor) -> torch.Tensor:
        return F.linear(F.rms_norm(x[:, -1], (HIDDEN,), self.norm, EPSILON), self.head).float().argmax(-1)

    def case(self, batch: int, tokens: int, length: int) -> Callable[[], Any]:
        """`STEPS` steps of a new token, or one of a prompt, in caches of a length, which they fill."""
        caches = [torch.zeros((2, batch, KEY_HEADS, length, WIDTH), dtype=torch.bfloat16, device="cuda")
                  for _ in self.layers]  # fmt: skip
        given = torch.randint(0, VOCABULARY, (batch, tokens), device="cuda")
        place = torch.arange(length - tokens, length, device="cuda")
        angles = place[:, None] * THETA ** (-torch.arange(0, WIDTH, 2, device="cuda") / WIDTH)
        cosine_and_sine = (angles.cos().bfloat16(), angles.sin().bfloat16())

        def run() -> torch.Tensor:
            x = F.embedding(given, self.table)
            for weights, (keys, values) in zip(self.layers, caches, strict=True):
                x = self.layer(x, weights, keys, values, place, cosine_and_sine, tokens > 1)
            return self.last(x)

        with torch.inference_mode():
            if tokens > 1:
                return torch.inference_mode()(lambda: run().cpu())
            torch.cuda.synchronize()  # another stream reads what was drawn
            side = torch.cuda.Stream()
            with torch.cuda.stream(side):
                run()
            torch.cuda.synchronize()
            graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph):
                result = run()

        def replay() -> Any:
            for _ in range(STEPS):
                graph.replay()
            return result.cpu()

        return replay


class Transformers:
    """transformers with a static cache: single tokens by torch.compile with CUDA graphs, prompts as `generate` runs
    them, which does not compile them; and its continuous batching."""

    name = "transformers"

    def __init__(self, layers: int) -> None:
        import transformers

        self.library = transformers
        options = {**configuration(layers), "dtype": torch.bfloat16}
        with torch.device("cuda"):
            self.model = transformers.LlamaForCausalLM(transformers.LlamaConfig(**options)).to(torch.bfloat16).eval()
        self.step = torch.compile(self._step, mode="reduce-overhead", dynamic=False)

    def _step(self, tokens: torch.Tensor, cache: Any) -> torch.Tensor:
        logits = self.model(tokens, past_key_values=cache, use_cache=True, logits_to_keep=1).logits
        return logits[:, -1].argmax(-1, keepdim=True)

    def case(self, batch: int, tokens: int, length: int) -> Callable[[], Any]:
        """As `Loop.case`."""
        cache = self.library.StaticCache(config=self.model.config, max_cache_len=length)
        cache.early_initialization(batch, KEY_HEADS, WIDTH, torch.bfloat16, torch.device("cuda"))
        given = torch.randint(0, VOCABULARY, (batch, tokens), device="cuda")
        steps = STEPS if tokens == 1 else 1
        step = self.step if tokens == 1 else self._step

        @torch.inference_mode()
        def run() -> Any:
            for layer in cache.layers:
                layer.cumulative_length.fill_(length - steps * tokens)
            chosen = given
            for _ in range(steps):
                chosen = step(chosen, cache)
                if tokens == 1:
                    chosen = chosen.clone()  # the graph's own memory is written by the next step
            return chosen.cpu()

        return run

    def continuous(
        self, prompts: Sequence[list[int]], lengths: Sequence[int], together: int, tokens: int, seconds: float
    ) -> tuple[float, int]:
        """Seconds and tokens of requests in the batches of `generate_batch`, whose manager takes each with its own
        length; after `seconds` at the latest, with the tokens of those that have not ended."""
        wanted = self.library.GenerationConfig(do_sample=False, eos_token_id=-1, pad_token_id=0)
        pages = together * (1 + -(-max(map(len, prompts)) // 256) + -(-max(lengths) // 256))
        batches = self.library.ContinuousBatchingConfig(
            max_batch_tokens=tokens, num_blocks=pages, max_requests_per_batch=together, allow_block_sharing=False
        )
        with self.model.continuous_batching_context_manager(wanted, continuous_batching_config=batches) as manager:
            for name, prompt in enumerate(prompts[:4]):
                manager.add_request(prompt, f"first {name}", max_new_tokens=8)
            for _ in prompts[:4]:
                manager.get_result(timeout=60)
            torch.cuda.synchronize()
            began = time.perf_counter()
            for name, (prompt, length) in enumerate(zip(prompts, lengths, strict=True)):
                manager.add_request(prompt, str(name), max_new_tokens=length)
            ended = count = 0
            while ended < len(prompts) and time.perf_counter() - began < seconds:
                result = manager.get_result(timeout=1)
                if result is not None and result.is_finished():
                    ended, count = ended + 1, count + len(result.generated_tokens)
            took = time.perf_counter() - began
            if ended < len(prompts):
                running = list(manager.batch_processor.scheduler.active_requests.values())
                count += sum(len(state.generated_tokens) for state in running)
                manager.stop(timeout=10, hard_stop=True)
        return took, count
