"""Options of the embedded engine."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, StringConstraints

from pasta_async.options import Options

DType = Literal["float32", "bfloat16", "float16", "int8"]
"""A number format to compute in."""

Count = Annotated[int, Field(strict=True, ge=1)]


class EngineOptions(Options):
    """Device, number format and limits of the engine; None takes what suits the model and the machine.

    Raises:
        InvalidRequestError: An option is of the wrong type or out of range.
    """

    device: Annotated[str, StringConstraints(pattern=r"^(cpu|cuda|mps|xpu)(:\d+)?$")] | None = None
    """``"cpu"``, ``"cuda"``, ``"cuda:1"``, ...; None for CUDA where there is one."""
    dtype: DType | Literal["auto"] | None = None
    """The number format to compute in, whatever the files hold. ``"float32"`` is exact. ``"int8"`` is for
    CPUs: 8-bit weights, and activations quantised at run time, more than twice as fast, at less than 1% more
    bits a token. None or ``"auto"``: float32 for models of fewer than 50 million weights, else int8 on a CPU
    and bfloat16 on CUDA."""
    slots: Count | None = None
    """Tokens whose keys and values are kept; None for as many as a gibibyte holds, at most 32768."""
    context_length: Count | None = None
    """Limit of prompt and output together; None for the model's own, at most `slots`."""
    max_running: Count = 256
    """Requests that decode at the same time; the others wait."""
    max_prefill_tokens: Count = 256
    """Prompt tokens computed in one step; a long prompt takes several, and the others go on."""
    threads: Annotated[int, Field(strict=True, ge=1, le=1024)] | None = None
    """CPU threads of the engine; None for one if the model is small (more would wait for each other), else
    torch's own number. The rest of the process keeps its setting."""
