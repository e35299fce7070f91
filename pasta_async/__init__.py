"""LLM answers sooner: the model marks what is independent in its answer, and that is decoded in parallel.

    answer = await pasta_async.generate("Compare the causes and the outcome of both wars.")
    print(answer.text)

PASTA is described in arXiv 2502.11517; docs/ has the language, the interpreter and the backends.
"""

from __future__ import annotations

from pasta_async.client import Client, generate, stream
from pasta_async.clock import Clock, RealClock
from pasta_async.errors import (
    BackendConnectError,
    BackendError,
    BackendLostError,
    BackendProtocolError,
    BackendStatusError,
    BackendTimeoutError,
    BackendTransportError,
    GenerationTimeoutError,
    InvalidRequestError,
    ParseError,
    PastaError,
    PromptTooLongError,
    ThreadFailedError,
    UnsupportedModelError,
)
from pasta_async.events import (
    AnswerDone,
    DiagnosticFound,
    Event,
    PromiseOpened,
    SyncJoined,
    SyncWaiting,
    TextDelta,
    ThreadDelta,
    ThreadDone,
    ThreadFailed,
    ThreadStarted,
)
from pasta_async.limits import Limits
from pasta_async.protocol import Backend, DecodeRequest, Message, ModelInfo, Piece, TagIds
from pasta_async.results import Generation, RequestRecord, Span, ThreadRecord, Usage
from pasta_async.sampling import Sampling
from pasta_async.streaming import AnswerStream

__version__ = "0.1.0"

__all__ = [
    "AnswerDone",
    "AnswerStream",
    "Backend",
    "BackendConnectError",
    "BackendError",
    "BackendLostError",
    "BackendProtocolError",
    "BackendStatusError",
    "BackendTimeoutError",
    "BackendTransportError",
    "Client",
    "Clock",
    "DecodeRequest",
    "DiagnosticFound",
    "Event",
    "Generation",
    "GenerationTimeoutError",
    "InvalidRequestError",
    "Limits",
    "Message",
    "ModelInfo",
    "ParseError",
    "PastaError",
    "Piece",
    "PromiseOpened",
    "PromptTooLongError",
    "RealClock",
    "RequestRecord",
    "Sampling",
    "Span",
    "SyncJoined",
    "SyncWaiting",
    "TagIds",
    "TextDelta",
    "ThreadDelta",
    "ThreadDone",
    "ThreadFailedError",
    "ThreadFailed",
    "ThreadRecord",
    "ThreadStarted",
    "UnsupportedModelError",
    "Usage",
    "__version__",
    "generate",
    "stream",
]
