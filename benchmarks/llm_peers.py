"""Other runtimes of language models for `llm_cpu.py`: transformers, llama.cpp, and OpenVINO.

Each class makes the cases of one runtime from a checkpoint folder of the shape of Qwen2.  `cases` gives functions that
run a case once, in the calling process.  All read the same weights; `gguf_file` writes them in the format that
llama.cpp reads.
"""

from __future__ import annotations

import ctypes
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

# llama.cpp's recipes by the storage of weights in tilewright.
RECIPES = {"auto": None, "int8": "Q8_0", "int4": "Q4_0"}
NAMES = {
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
    "input_layernorm": "attn_norm",
    "post_attention_layernorm": "ffn_norm",
}


def _gguf_name(name: str) -> str:
    parts = name.split(".")
    if parts[1] == "embed_tokens":
        return "token_embd.weight"
    if parts[1] == "norm":
        return "output_norm.weight"
    return f"blk.{parts[2]}.{NAMES['.'.join(parts[3:-1])]}.{parts[-1]}"


def gguf_file(folder: Path, dtype: str) -> Path:
    """The checkpoint in one GGUF file, with a tokenizer of meaningless words; weights in `dtype` or "float16"."""
    import gguf
    from safetensors.numpy import load_file

    path = folder / f"{dtype}.gguf"
    if path.exists():
        return path
    config = json.loads((folder / "config.json").read_text())
    writer = gguf.GGUFWriter(str(path), "qwen2")
    writer.add_block_count(config["num_hidden_layers"])
    writer.add_context_length(config["max_position_embeddings"])
    writer.add_embedding_length(config["hidden_size"])
    writer.add_feed_forward_length(config["intermediate_size"])
    writer.add_head_count(config["num_attention_heads"])
    writer.add_head_count_kv(config["num_key_value_heads"])
    writer.add_layer_norm_rms_eps(config["rms_norm_eps"])
    writer.add_rope_freq_base(config.get("rope_theta", 10000.0))
    writer.add_file_type({"float32": 0, "float16": 1, "bfloat16": 32}[dtype])
    size = config["vocab_size"]
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("qwen2")
    writer.add_token_list([*map(chr, range(33, 127)), *(f"w{number}" for number in range(size - 94))])
    writer.add_token_types([1] * size)
    writer.add_token_merges(["a b"])
    writer.add_eos_token_id(size - 1)
    writer.add_bos_token_id(size - 1)
    for name, values in load_file(folder / "model.safetensors").items():
        wide = values.astype(np.float32)
        kind = gguf.GGMLQuantizationType.F32
        if wide.ndim == 2 and dtype == "float16":
            wide, kind = wide.astype(np.float16), gguf.GGMLQuantizationType.F16
        elif wide.ndim == 2 and dtype == "bfloat16":
            kind = gguf.GGMLQuantizationType.BF16
            wide = gguf.quantize(wide, kind)
        writer.add_tensor(_gguf_name(name), wide, raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


class LlamaCpp:
    """llama.cpp through the C interface that the package llama-cpp-python binds."""

    def __init__(self, folder: Path, dtype: str, weights: str, threads: int) -> None:
        import llama_cpp

        self._library = llama_cpp
        silent = llama_cpp.llama_log_callback(lambda level, text, data: None)
        self._silent = silent  # the library keeps the pointer
        llama_cpp.llama_log_set(silent, ctypes.c_void_p())
        llama_cpp.llama_backend_init()
        self.path = self._file(folder, dtype, weights, threads)
        self._model = llama_cpp.llama_model_load_from_file(
            str(self.path).encode(), llama_cpp.llama_model_default_params()
        )
        self._threads = threads
        self._vocabulary = json.loads((folder / "config.json").read_text())["vocab_size"]

    def _file(self, folder: Path, dtype: str, weights: str, threads: int) -> Path:
        """The checkpoint in GGUF, quantized by llama.cpp's own recipe if `weights` asks for it."""
        path, recipe = gguf_file(folder, dtype), RECIPES[weights]
        if recipe is None:
            return path
        library, result = self._library, path.with_name(f"{recipe}.gguf")
        options = library.llama_model_quantize_default_params()
        options.nthread = threads
        options.ftype = getattr(library, f"LLAMA_FTYPE_MOSTLY_{recipe}")
        if library.llama_model_quantize(str(path).encode(), str(result).encode(), ctypes.byref(options)):
            raise RuntimeError(f"llama.cpp could not write {result.name}")
        return result

    def _context(self, sequences: int, length: int, batch: int) -> Any:
        library = self._library
        options = library.llama_context_default_params()
        options.n_ctx, options.n_batch, options.n_ubatch = sequences * length, batch, batch
        options.n_seq_max, options.n_threads, options.n_threads_batch = sequences, self._threads, self._threads
        context = library.llama_init_from_model(self._model, options)
        if not context:
            raise RuntimeError("llama.cpp has no memory for this context")
        return context

    def _batch(self, tokens: int, sequences: int, begin: int) -> Any:
        """`tokens` tokens from position `begin` of the first sequence, or one of each of several sequences."""
        batch = self._library.llama_batch_init(tokens, 0, 1)
        batch.n_tokens = tokens
        for number in range(tokens):
            batch.token[number] = 5 + number % (self._vocabulary - 10)
            batch.pos[number] = begin if sequences > 1 else begin + number
            batch.n_seq_id[number] = 1
            batch.seq_id[number][0] = number if sequences > 1 else 0
            batch.logits[number] = sequences > 1 or number == tokens - 1
        return batch

    def _run(self, context: Any, batch: Any) -> None:
        if self._library.llama_decode(context, batch):
            raise RuntimeError("llama.cpp did not decode")
        self._library.llama_synchronize(context)

    def decode(self, sequences: int, before: int) -> Callable[[], Any]:
        """One new token for each sequence, with `before` tokens in front of it."""
        library = self._library
        context = self._context(sequences, before + 64, before)
        memory = library.llama_get_memory(context)
        self._run(context, self._batch(before, 1, 0))
        for number in range(1, sequences):
            library.llama_memory_seq_cp(memory, 0, number, -1, -1)
        batch = self._batch(sequences, sequences, before)

        def run() -> None:
            self._run(context, batch)
            for number in range(sequences):
                library.llama_memory_seq_rm(memory, number, before, -1)

        return run

    def prompt(self, tokens: int) -> Callable[[], Any]:
        """A prompt, its last token's logits."""
        context = self._context(1, tokens + 64, tokens)
        memory, batch = self._library.llama_get_memory(context), self._batch(tokens, 1, 0)

        def run() -> None:
            self._library.llama_memory_clear(memory, False)
            self._run(context, batch)

        return run


class OpenVino:
    """OpenVINO's model with state, as optimum-intel exports it for OpenVINO GenAI, step by step."""

    SPARE = 64  # tokens that a state may grow by before it is set back

    def __init__(self, folder: Path, dtype: str, weights: str, threads: int) -> None:
        import openvino
        from optimum.intel import OVModelForCausalLM, OVWeightQuantizationConfig

        formats = {
            "auto": None,
            "int8": OVWeightQuantizationConfig(bits=8),
            "int4": OVWeightQuantizationConfig(bits=4, sym=True, group_size=64, ratio=1.0),
        }
        exported = OVModelForCausalLM.from_pretrained(
            folder, export=True, compile=False, load_in_8bit=False, quantization_config=formats[weights]
        )
        # Models of bfloat16 without quantized weights end OpenVINO 2026.4 by SIGFPE if they are computed in bfloat16.
        precision = "bf16" if dtype == "bfloat16" and weights != "auto" else "f32"
        self._compiled = openvino.Core().compile_model(
            exported.model, "CPU", {"INFERENCE_NUM_THREADS": threads, "INFERENCE_PRECISION_HINT": precision}
        )

    def _infer(self, request: Any, sequences: int, before: int, tokens: int) -> None:
        request.infer({
            "input_ids": np.full((sequences, tokens), 5),
            "attention_mask": np.ones((sequences, before + tokens), np.int64),
            "position_ids": np.tile(np.arange(before, before + tokens), (sequences, 1)),
            "beam_idx": np.arange(sequences, dtype=np.int32),
        })  # fmt: skip

    def prompt(self, tokens: int) -> Callable[[], Any]:
        """A prompt, its last token's logits."""
        request = self._compiled.create_infer_request()

        def run() -> None:
            request.reset_state()
            self._infer(request, 1, 0, tokens)

        return run

    def decode(self, sequences: int, before: int) -> Callable[[], Any]:
        """One new token for each sequence, with `before` tokens in front of it."""
        import openvino

        request, length = self._compiled.create_infer_request(), before + self.SPARE

        def run() -> None:
            nonlocal length
            if length >= before + self.SPARE:
                request.reset_state()
                self._infer(request, 1, 0, 1)  # gives the states their shapes
                for state in request.query_state():
                    shape = [sequences, state.state.shape[1], before, state.state.shape[3]]
                    state.state = openvino.Tensor(np.zeros(shape, state.state.data.dtype))
                length = before
            self._infer(request, sequences, length, 1)
            length += 1

        return run


class Transformers:
    """transformers with its cache, PyTorch eager."""

    def __init__(self, folder: Path, dtype: str, weights: str, threads: int) -> None:
        import torch
        import transformers

        torch.set_num_threads(threads)
        self._torch = torch
        self._model = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=getattr(torch, dtype)).eval()

    def prompt(self, tokens: int) -> Callable[[], Any]:
        """A prompt, its last token's logits."""
        torch = self._torch

        def run() -> Any:
            with torch.inference_mode():
                return self._model(torch.arange(tokens)[None], use_cache=True, logits_to_keep=1)

        return run

    def decode(self, sequences: int, before: int) -> Callable[[], Any]:
        """One new token for each sequence, with `before` tokens in front of it."""
        torch = self._torch
        with torch.inference_mode():
            cache = self._model(
                torch.arange(before)[None].expand(sequences, -1), use_cache=True, logits_to_keep=1
            ).past_key_values

        def run() -> None:
            with torch.inference_mode():
                self._model(torch.full((sequences, 1), 5), past_key_values=cache, use_cache=True)
                cache.crop(-1)

        return run
