"""LLM answers sooner: the model marks what is independent in its answer, and that is decoded in parallel.

    answer = await pasta_async.generate("Compare the causes and the outcome of both wars.")
    print(answer.text)

PASTA is described in arXiv 2502.11517; docs/ has the language, the interpreter and the backends.
"""

from __future__ import annotations

from pasta_async.backends import BackendOptions
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
    InvalidStateError,
    PastaError,
    PromptTooLongError,
    ThreadFailedError,
    UnsupportedModelError,
)
from pasta_async.events import (
    AnswerDone,
    DiagnosticFound,
    ErrorInfo,
    Event,
    PromiseOpened,
    ReasoningDelta,
    SyncJoined,
    SyncWaiting,
    TextDelta,
    ThreadDelta,
    ThreadDone,
    ThreadFailed,
    ThreadReplaced,
    ThreadStarted,
)
from pasta_async.lang.diagnostics import ParseError
from pasta_async.observers import AnswerObserver, AnswerStart, Observer
from pasta_async.options import AnswerOptions, Limits, Sampling
from pasta_async.prompting import Prompt
from pasta_async.protocol import Backend, DecodeRequest, FinishReason, Message, ModelInfo, Piece, TagIds
from pasta_async.results import Generation, RequestRecord, Span, ThreadRecord, Usage
from pasta_async.streaming import AnswerStream

__version__ = "0.1.0"

__all__ = [
    "AnswerDone",
    "AnswerObserver",
    "AnswerOptions",
    "AnswerStart",
    "AnswerStream",
    "Backend",
    "BackendConnectError",
    "BackendError",
    "BackendLostError",
    "BackendOptions",
    "BackendProtocolError",
    "BackendStatusError",
    "BackendTimeoutError",
    "BackendTransportError",
    "Client",
    "Clock",
    "DecodeRequest",
    "DiagnosticFound",
    "ErrorInfo",
    "Event",
    "FinishReason",
    "Generation",
    "GenerationTimeoutError",
    "InvalidRequestError",
    "InvalidStateError",
    "Limits",
    "Message",
    "ModelInfo",
    "Observer",
    "ParseError",
    "PastaError",
    "Piece",
    "PromiseOpened",
    "Prompt",
    "ReasoningDelta",
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
    "ThreadReplaced",
    "ThreadRecord",
    "ThreadStarted",
    "UnsupportedModelError",
    "Usage",
    "__version__",
    "generate",
    "stream",
]
