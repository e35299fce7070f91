"""LLM answers sooner: the model marks what is independent in its answer, and that is decoded in parallel.

    answer = await pasta_async.generate("Compare the causes and the outcome of both wars.")
    print(answer.text)

PASTA is described in arXiv 2502.11517; docs/ has the language, the interpreter and the backends.
"""

from __future__ import annotations

from pasta_async import errors, events, plans, results
from pasta_async.backends import BackendOptions
from pasta_async.client import Client, fill, generate, stream
from pasta_async.clock import Clock, RealClock
from pasta_async.engine_load import EngineLoad
from pasta_async.errors import *
from pasta_async.events import *
from pasta_async.grammar import Grammar
from pasta_async.lang.checks import ParseError
from pasta_async.lang.diagnostics import Code, Diagnostic
from pasta_async.lang.document import ClosedBy, Document
from pasta_async.observers import AnswerObserver, AnswerStart, Observer, ThreadState
from pasta_async.options import AnswerOptions, FillOptions, Limits, Parallel, Sampling
from pasta_async.plans import *
from pasta_async.prompts import Prompt
from pasta_async.protocol import (
    Backend,
    DecodeRequest,
    Message,
    Model,
    Piece,
)
from pasta_async.results import *
from pasta_async.streaming import AnswerStream
from pasta_async.tag_tokens import TagIds
from pasta_async.tokenizer import Tokenizer

__version__ = "0.1.0"

__all__: list[str] = [
    "AnswerObserver",
    "AnswerOptions",
    "AnswerStart",
    "AnswerStream",
    "Backend",
    "BackendOptions",
    "Client",
    "Clock",
    "ClosedBy",
    "Code",
    "DecodeRequest",
    "Diagnostic",
    "Document",
    "EngineLoad",
    "FillOptions",
    "Grammar",
    "Limits",
    "Message",
    "Model",
    "Observer",
    "Parallel",
    "ParseError",
    "Piece",
    "Prompt",
    "RealClock",
    "Sampling",
    "TagIds",
    "Tokenizer",
    "ThreadState",
    "__version__",
    "fill",
    "generate",
    "stream",
]
__all__ += errors.__all__
__all__ += events.__all__
__all__ += plans.__all__
__all__ += results.__all__
