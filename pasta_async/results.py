"""The result of an answer: text, document, threads with their requests, usage."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, ClassVar, Literal, Self, cast

from pydantic import (
    BaseModel,
    ConfigDict,
    InstanceOf,
    TypeAdapter,
    computed_field,
    field_serializer,
    model_validator,
)

from pasta_async.lang.diagnostics import STYLE_CODES, Diagnostic
from pasta_async.lang.document import ClosedBy, Document
from pasta_async.lang.parser import read_document

__all__ = ["FinishReason", "Generation", "RequestRecord", "ThreadRecord", "Usage", "Width"]

FinishReason = Literal["stop", "length", "abort", "error"]
"""The reason for the end of a request, a thread or an answer.

* `stop`: end-of-text, a stop text or, in a chunk, `</async>`.
* `length`: a limit on tokens.
* `abort`: the client ended it, because it was cancelled or not wanted any more.
* `error`: it failed.
"""

Width = Literal["full", "limited", "one", "plain"]
"""The width at which an answer was decoded.

* `full`: no thread beside its first waited for room on the engine or a slot of the client. In plans, and
  with `parallel="always"`, such waits do not count.
* `limited`: threads beside its first waited for one of these.
* `one`: one thread at a time, as the options asked for.
* `plain`: without tags, as the options asked for, since the model has none, or because the engine was full
  (see `Generation.notes`).
"""


class _Record(BaseModel):
    model_config: ClassVar[ConfigDict] = ConfigDict(extra="forbid", frozen=True)


class RequestRecord(_Record):
    """One request to the backend. Times are seconds since the answer began."""

    started: float
    ended: float | None = None
    """None while it is under way."""
    prompt_tokens: int
    """Tokens of the context."""
    cached_tokens: int | None
    """Context tokens whose KV was in the prefix cache; None where the backend does not say."""
    completion_tokens: int
    finish_reason: FinishReason | None = None
    """None while it is under way."""

    def times(self, now: float) -> tuple[float, float]:
        """Its beginning and its end; if it is under way, that is now."""
        return self.started, now if self.ended is None else self.ended


class ThreadRecord(_Record):
    """One thread of an answer. Times are seconds since the answer began."""

    thread: int
    """0 is the main thread."""
    topic: str
    estimate: int | None
    """The promise's estimate in tokens."""
    text: str
    tokens: int
    """Generated tokens, tags counted."""
    discarded_tokens: int = 0
    """Generated tokens that are not in the answer: behind its end, of a promise that was taken back, of a
    failed request of a plan."""
    opened: float
    """Time at which its promise was written."""
    started: float | None
    """Time at which its first request was sent; None if none was."""
    first_token: float | None
    ended: float | None
    finish_reason: FinishReason
    closed_by: ClosedBy | None
    """The cause of the chunk's end; None for the main thread."""
    requests: tuple[RequestRecord, ...]

    @property
    def was_cut(self) -> bool:
        """True if a limit, a failure or a cancellation ended its chunk."""
        return is_cut(self.closed_by)


def is_cut(closed_by: ClosedBy | None) -> bool:
    """True if a limit, a failure or a cancellation ended a chunk; main has none."""
    return closed_by in ("budget", "interrupted")


class Usage(_Record):
    """Tokens of an answer, over all its requests."""

    prompt_tokens: int
    """Tokens of the prompt, counted once."""
    completion_tokens: int
    """Every generated token, tags counted."""
    discarded_tokens: int = 0
    """Generated tokens that are not in the answer."""
    cached_tokens: int
    """Context tokens found in the prefix cache, over all requests."""
    prefilled_tokens: int
    """Context tokens that had to be computed, over all requests."""
    requests: int

    @classmethod
    def of(cls, threads: Sequence[ThreadRecord], prompt_tokens: int = 0) -> Self:
        """The usage of an answer.

        Contexts of requests without a count of cached tokens count as computed, but not of those that failed
        before their first token: the engine may have refused them.
        """
        requests = [request for thread in threads for request in thread.requests]
        cached = sum(request.cached_tokens or 0 for request in requests)
        computed = sum(
            request.prompt_tokens
            for request in requests
            if request.completion_tokens
            or request.cached_tokens is not None
            or request.finish_reason != "error"
        )
        return cls(
            prompt_tokens=prompt_tokens,
            completion_tokens=sum(thread.tokens for thread in threads),
            discarded_tokens=sum(thread.discarded_tokens for thread in threads),
            cached_tokens=cached,
            prefilled_tokens=computed - cached,
            requests=len(requests),
        )


class Generation(_Record):
    """A finished answer, or the part of it that an error left."""

    text: str
    """The visible text."""
    reasoning: str = ""
    """Text of a thinking block in front of the answer; it is in neither `text` nor `document`."""
    document: InstanceOf[Document]
    """The answer with its tags; `document.format()` is the written form."""
    threads: tuple[ThreadRecord, ...]
    """The main thread and one for each promise, in document order; of a plan one for each
    field, those of a list's items behind all others."""
    usage: Usage
    critical_path: int
    """Tokens on the longest chain that had to be decoded one after another, tags counted."""
    text_tokens: int
    """Tokens of the text and the reasoning, without tags."""
    finish_reason: FinishReason
    """`abort` or `error` in the part of an answer that an error left; `abort` while it is under way."""
    matched_stop: str | None = None
    """The stop text that ended the answer, if one did; it is not in `text`."""
    elapsed: float
    """Seconds from the moment that its model was connected to its end."""
    width: Width = "full"
    notes: tuple[str, ...] = ()
    """Remarks: an option that the backend could not honour (a seed, say), the reason for a smaller width."""

    @classmethod
    def empty(cls) -> Self:
        """An answer of which nothing was decoded."""
        return cls(
            text="",
            document=Document(),
            threads=(),
            usage=Usage.of(()),
            critical_path=0,
            text_tokens=0,
            finish_reason="error",
            elapsed=0.0,
        )

    @model_validator(mode="before")
    @classmethod
    def _read_written(cls, data: Any) -> Any:
        """Read the form of `model_dump`: the document in written form, its diagnostics beside it."""
        if not isinstance(data, dict) or not isinstance(cast("dict[str, Any]", data).get("document"), str):
            return cast("Any", data)
        given = {**cast("dict[str, Any]", data)}
        given.pop("text_speedup", None)
        diagnostics = TypeAdapter(tuple[Diagnostic, ...]).validate_python(given.pop("diagnostics", ()))
        return {**given, "document": Document(read_document(given["document"]).nodes, diagnostics)}

    def __repr_args__(self) -> Iterator[tuple[str | None, Any]]:
        """Show the text and a few figures in a notebook, not every record."""
        yield "text", self.text
        yield "finish_reason", self.finish_reason
        yield "critical_path", self.critical_path
        yield "threads", len(self.threads)

    @field_serializer("document")
    def _written(self, document: Document) -> str:
        return document.format()

    @property
    def first_token(self) -> float | None:
        """Seconds to the first token of any thread; None if there is none."""
        times = [thread.first_token for thread in self.threads if thread.first_token is not None]
        return min(times, default=None)

    @computed_field
    @property
    def text_speedup(self) -> float:
        """Tokens of the visible text / critical path: an estimate of the speed-up without a baseline."""
        return self.text_tokens / self.critical_path if self.critical_path else 1.0

    @computed_field
    @property
    def diagnostics(self) -> tuple[Diagnostic, ...]:
        """Places where the model's tags were not well-formed."""
        return self.document.diagnostics

    @property
    def well_formed(self) -> bool:
        """True if it ended by itself, with no diagnostic but advice about style."""
        codes = {diagnostic.code for diagnostic in self.diagnostics}
        return self.finish_reason == "stop" and codes <= STYLE_CODES

    def theoretical_speedup(self, baseline: Generation) -> float:
        """Tokens in sequence / critical path (paper, section 4), where tags are counted.

        The tokens in sequence are the baseline's, or those of this answer's own text if that is shorter: an
        answer is not faster for saying less.
        """
        tokens = sequential_tokens(self.text_tokens, baseline.usage.completion_tokens)
        return tokens / self.critical_path if self.critical_path else 1.0

    def measured_speedup(self, baseline: Generation) -> float:
        """Seconds that the tokens in sequence take at the baseline's pace / seconds of this answer."""
        plain = baseline.usage.completion_tokens
        tokens = sequential_tokens(self.text_tokens, plain)
        return tokens / plain * baseline.elapsed / self.elapsed if plain and self.elapsed else 1.0


def sequential_tokens(text_tokens: int, baseline_tokens: int) -> int:
    """Tokens in sequence that an answer is compared with: its own text with end-of-text, or the baseline.

    The smaller count is taken.
    """
    return min(text_tokens + 1, baseline_tokens)
