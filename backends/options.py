"""Options of backends, each declared once."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from pydantic import ConfigDict, Field, StringConstraints, TypeAdapter, ValidationError, with_config
from typing_extensions import TypedDict  # pydantic takes that of `typing` from Python 3.12 on

from pasta_async.errors import InvalidRequestError

if TYPE_CHECKING:
    import httpx

DType = Literal["float32", "bfloat16", "int8"]
"""A number format to compute in."""

TorchDType = Literal["auto", "float32", "bfloat16"]
"""The number format of a computation in torch that is no engine's; auto is bfloat16 on CUDA, else float32."""

Count = Annotated[int, Field(ge=1)]


@with_config(ConfigDict(extra="forbid", strict=True))
class EngineOptions(TypedDict, total=False):
    """Device, number format and limits of the embedded engine; None takes what suits model and machine."""

    device: Annotated[str, StringConstraints(pattern=r"^(cpu|cuda)(:\d+)?$")] | None
    """`"cpu"`, which None means, or `"cuda"`, `"cuda:1"`, ...: a GPU."""
    dtype: DType | Literal["auto"] | None
    """The number format to compute in, whatever the files hold. `"float32"` is exact. `"int8"` is for
    CPUs: 8-bit weights, and activations quantised at run time, more than twice as fast, at less than 1% more
    bits a token. None or `"auto"`: float32 for models of fewer than 50 million weights, else int8 on a CPU
    and bfloat16 on CUDA."""
    slots: Count | None
    """Tokens whose keys and values are kept; None: as many as a gibibyte holds, at most 32768. No request can
    have more, with its output."""
    max_running: Count
    """Requests that decode at the same time, 256 by default; the others wait."""
    max_prefill_tokens: Count
    """Prompt tokens computed in one step, 256 by default; a long prompt takes several, and the others go
    on."""
    threads: Annotated[int, Field(ge=1, le=1024)] | None
    """CPU threads of the engine; None: one if the model is small (more would wait for each other), else one
    for each core. torch keeps its setting in the rest of the process."""


class ServerOptions(TypedDict, total=False):
    """Options of `http:`, an SGLang server that runs."""

    api_key: str | None
    """Sent as a bearer token."""
    client: httpx.AsyncClient | None
    """The client that sends the requests, with certificates or an authentication of its own say. It is not
    closed here, and belongs to one event loop; its pool must hold a connection for each request at a time."""
    timeout: httpx.Timeout | float
    """Seconds; its `read` is the longest wait for a token, queues included. Whatever else the server does may
    take at most 30 seconds."""
    tokenizer: str | Path | None
    """The model's tokenizer, as a folder, a `tokenizer.json` or a name on the hub; None: that of the model
    that the server loaded, if it is on this machine or on the hub."""


class VLLMOptions(ServerOptions, total=False):
    """Options of `vllm:`, a vLLM server that runs."""

    model: str | None
    """The model to ask, a LoRA adapter for instance; None: the one that it serves."""


class LaunchOptions(TypedDict, total=False):
    """Options of `sglang:`, an SGLang server that the program starts."""

    device: str | None
    """"cpu" or "cuda"; None: a GPU if there is one."""
    server_args: Mapping[str, Any]
    """Further options of SGLang's server by their names in Python (`{"mem_fraction_static": 0.8}`), which win
    over those chosen here, but none of those by which the program reaches the server."""


class BackendOptions(EngineOptions, VLLMOptions, LaunchOptions, total=False):
    """All options; a backend refuses one that it does not have."""


def checked_options(options: EngineOptions) -> EngineOptions:
    """Options whose names, types and ranges are right.

    Raises:
        InvalidRequestError: One is unknown, of the wrong type or out of range.
    """
    try:
        return TypeAdapter(EngineOptions).validate_python(options)
    except ValidationError as error:
        raise InvalidRequestError(f"an option of the embedded engine is wrong: {error}") from error
