"""llama.cpp: the GGUF files that it needs of a model, and the engine through its own low-level API."""

# llama_cpp and gguf have no types.
# pyright: reportMissingImports=false, reportMissingTypeStubs=false, reportUnknownMemberType=false
# pyright: reportUnknownVariableType=false, reportUnknownArgumentType=false, reportAttributeAccessIssue=false
from __future__ import annotations

import importlib
import time
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any

from pasta_async.errors import PastaError

_CONTEXT = 4096  # tokens, of all sequences
_SEQUENCES = 17  # the prefix and 16 threads


class LlamaCpp:
    """Batches of several sequences that share a prefix.

    It gets a GGUF file, then ids, and chooses the likeliest token. Times are in seconds.

    Raises:
        PastaError: llama.cpp is not installed, or cannot load the file.
    """

    def __init__(self, path: str, threads: int) -> None:
        self._api: Any = _quiet_llama_cpp()
        api = self._api
        self._model = api.llama_model_load_from_file(path.encode(), api.llama_model_default_params())
        parameters = api.llama_context_default_params()
        parameters.n_ctx, parameters.n_seq_max, parameters.kv_unified = _CONTEXT, _SEQUENCES, True
        parameters.n_threads = parameters.n_threads_batch = threads
        self._context = api.llama_init_from_model(self._model, parameters)
        if not self._model or not self._context:
            raise PastaError(f"llama.cpp cannot load {path}")
        self._memory = api.llama_get_memory(self._context)
        self._greedy = api.llama_sampler_init_greedy()
        self._batch = api.llama_batch_init(_CONTEXT, 0, 1)
        self._prompt = 0

    def first_token(self, prompt: Sequence[int]) -> float:
        """The time to compute a prompt that was not seen before and to choose its first token.

        Its keys and values are kept for `threads`.
        """
        self._api.llama_memory_clear(self._memory, False)
        self._prompt = len(prompt)
        began = time.perf_counter()
        self._decode([(token, at, 0) for at, token in enumerate(prompt)])
        return time.perf_counter() - began

    def threads(self, starts: Sequence[int], steps: int) -> float:
        """The time for threads behind the last prompt to decode `steps` tokens each; each has its first."""
        api, count, tokens = self._api, len(starts), list(starts)
        for sequence in range(1, count + 1):
            api.llama_memory_seq_cp(self._memory, 0, sequence, -1, -1)
        began = time.perf_counter()
        for step in range(steps):
            tokens = self._decode([(token, self._prompt + step, i + 1) for i, token in enumerate(tokens)])
        seconds = time.perf_counter() - began
        for sequence in range(1, count + 1):
            api.llama_memory_seq_rm(self._memory, sequence, -1, -1)
        return seconds

    def write(self, prompt: Sequence[int], answer: Sequence[int]) -> float:
        """The time to compute a prompt and to write a given answer, token by token."""
        seconds = self.first_token(prompt)
        began = time.perf_counter()
        for at, token in enumerate(answer, len(prompt)):
            self._decode([(token, at, 0)])
        return seconds + time.perf_counter() - began

    def vocabulary(self) -> int:
        """How many tokens there are."""
        return self._api.llama_vocab_n_tokens(self._api.llama_model_get_vocab(self._model))

    def _decode(self, entries: Sequence[tuple[int, int, int]]) -> list[int]:
        """Compute tokens (id, position, sequence); the next token behind the last of each sequence."""
        last = {sequence: i for i, (_, _, sequence) in enumerate(entries)}.values()
        batch = self._batch
        batch.n_tokens = len(entries)
        for i, (token, position, sequence) in enumerate(entries):
            batch.token[i], batch.pos[i], batch.n_seq_id[i] = token, position, 1
            batch.seq_id[i][0], batch.logits[i] = sequence, i in last
        if status := self._api.llama_decode(self._context, batch):
            raise PastaError(f"llama_decode returned {status}")
        return [self._api.llama_sampler_sample(self._greedy, self._context, i) for i in last]


def _ignore(*_: Any) -> None:
    pass


@cache
def _quiet_llama_cpp() -> Any:
    """The module, told not to print hundreds of lines."""
    try:
        api: Any = importlib.import_module("llama_cpp")
    except ImportError as error:
        raise PastaError("llama-cpp-python is missing: pip install 'pasta_async[peers]'") from error
    api.pasta_async_log = api.llama_log_callback(_ignore)  # C calls it as long as the process lives
    api.llama_log_set(api.pasta_async_log, None)
    api.llama_backend_init()
    return api


def llama_cpp_files(model: Path, folder: Path, types: Sequence[str]) -> dict[str, Path]:
    """Write GGUF files for llama.cpp, in these types (`Q8_0`, `Q4_0`), of a model's weights.

    The model is a GGUF file or a Hugging Face folder, of which one without a tokenizer is made.

    Raises:
        PastaError: llama.cpp is not installed, or cannot convert the model.
    """
    api = _quiet_llama_cpp()
    source = model if model.suffix == ".gguf" else folder / "F32.gguf"
    if source != model:
        _write_gguf(model, source)
    found = {name: folder / f"{name}.gguf" for name in types}
    for name, target in found.items():
        parameters = api.llama_model_quantize_default_params()
        parameters.ftype = getattr(api, f"LLAMA_FTYPE_MOSTLY_{name}")
        parameters.allow_requantize = True
        if api.llama_model_quantize(str(source).encode(), str(target).encode(), parameters):
            raise PastaError(f"llama.cpp cannot convert {source} to {name}")
    return found


def _write_gguf(model: Path, target: Path) -> None:
    """A Hugging Face folder's weights as a GGUF file in float32, without a tokenizer: ids are all it gets."""
    import gguf

    from pasta_async.backends.local.checkpoint import CheckpointFolder, expected_shapes

    checkpoint = CheckpointFolder(model)
    config = checkpoint.config
    family = {"LlamaForCausalLM": "LLAMA", "Qwen2ForCausalLM": "QWEN2", "Qwen3ForCausalLM": "QWEN3"}
    architecture = gguf.MODEL_ARCH[family[config.architecture]]
    writer = gguf.GGUFWriter(target, gguf.MODEL_ARCH_NAMES[architecture])
    writer.add_context_length(config.positions)
    writer.add_embedding_length(config.hidden)
    writer.add_block_count(config.layers)
    writer.add_feed_forward_length(config.intermediate)
    writer.add_head_count(config.heads)
    writer.add_head_count_kv(config.kv_heads)
    writer.add_key_length(config.head_dim)
    writer.add_value_length(config.head_dim)
    writer.add_layer_norm_rms_eps(config.norm_eps)
    writer.add_rope_freq_base(config.rope_theta)
    writer.add_rope_dimension_count(config.head_dim)
    writer.add_tokenizer_model("no_vocab")
    writer.add_vocab_size(config.vocab_size)
    names = gguf.get_tensor_name_map(architecture, config.layers)
    for name in expected_shapes(config):
        tensor = checkpoint.tensor(name).float()
        if architecture == gguf.MODEL_ARCH.LLAMA and ("q_proj" in name or "k_proj" in name):
            pairs = tensor.view(-1, 2, config.head_dim // 2, *tensor.shape[1:])
            tensor = pairs.transpose(1, 2).reshape(tensor.shape)  # llama.cpp rotates neighbours
        writer.add_tensor(str(names.get_name(name, (".weight", ".bias"))), tensor.numpy())
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
