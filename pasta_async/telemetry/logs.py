"""Structured logs of a client's answers, through Python's own `logging`.

Each record has a fixed message and its figures as fields (`extra=`), which a formatter for JSON puts beside
it. The ids of the answer and the thread at work are context variables: `with_ids` adds them to every record
that is logged meanwhile, whoever logs it.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from contextvars import ContextVar, Token

from pasta_async.observers import AnswerObserver, AnswerStart, Turn, error_type, outcome
from pasta_async.protocol import DecodeRequest
from pasta_async.results import Generation, RequestRecord

current_answer: ContextVar[str | None] = ContextVar("pasta_answer", default=None)
"""Id of the answer at work."""
current_thread: ContextVar[int | None] = ContextVar("pasta_thread", default=None)
"""Number of its thread at work."""


def with_ids(record: logging.LogRecord) -> bool:
    """A filter for handlers that adds the fields `answer_id` and `thread_id`; it lets everything pass."""
    for name, variable in (("answer_id", current_answer), ("thread_id", current_thread)):
        if not hasattr(record, name) and (value := variable.get()) is not None:
            setattr(record, name, value)
    return True


class Logs:
    """An observer that logs; `Client(observers=[Logs()])`.

    An answer that ends is INFO, or WARNING if it failed; a request that fails is WARNING; the beginning of an
    answer, its threads and its requests are DEBUG.

    Args:
        logger: Where to; None: the logger `pasta_async.answers`.
        text: Whether prompts, topics, answers and the messages of errors may be logged.
    """

    def __init__(self, logger: logging.Logger | None = None, *, text: bool = False) -> None:
        self._logger = logger or logging.getLogger("pasta_async.answers")
        self._text = text

    def answer(self, start: AnswerStart) -> AnswerObserver:
        """Log the beginning of an answer."""
        return _AnswerLog(self._logger, start, text=self._text)


class _AnswerLog(AnswerObserver):
    def __init__(self, logger: logging.Logger, start: AnswerStart, *, text: bool) -> None:
        self._logger, self._text, self._answer = logger, text, start.answer
        self._model = start.model.name if start.model else None
        self._outside = current_answer.set(start.answer)
        self._turns: dict[int, Token[int | None]] = {}
        prompt = {"prompt": start.prompt} if text else {}
        self._log(logging.DEBUG, "answer begins", model=self._model, streamed=start.streamed, **prompt)

    def turn(self, thread: int, turn: Turn) -> None:
        if turn == "waiting":
            self._turns[thread] = current_thread.set(thread)
        elif turn == "over":
            current_thread.reset(self._turns.pop(thread))
        self._log(logging.DEBUG, f"thread {turn}", thread_id=thread)

    def request_started(self, request: DecodeRequest) -> Mapping[str, str] | None:
        fields = {"prompt_tokens": len(request.ids), "max_tokens": request.max_tokens}
        self._log(logging.DEBUG, "request begins", thread_id=request.thread, **fields)

    def request_ended(
        self, request: DecodeRequest, record: RequestRecord, error: BaseException | None
    ) -> None:
        level = logging.WARNING if error else logging.DEBUG
        fields = {**record.model_dump(), **self._failure(error)}
        self._log(level, "request failed" if error else "request ended", thread_id=request.thread, **fields)

    def ended(self, generation: Generation | None, error: BaseException | None) -> None:
        hidden = {"thread", "requests"} if self._text else {"thread", "requests", "text", "topic"}
        for record in generation.threads if generation else ():
            fields = record.model_dump(exclude=hidden)
            self._log(logging.DEBUG, "thread ended", thread_id=record.thread, **fields)
        finish_reason = outcome(generation, error)
        failed = finish_reason == "error"
        self._log(
            logging.WARNING if failed else logging.INFO,
            "answer failed" if failed else "answer ended",
            model=self._model,
            finish_reason=finish_reason,
            **(self._figures(generation) if generation else {}),
            **self._failure(error if failed else None),
        )
        current_answer.reset(self._outside)

    def _figures(self, generation: Generation) -> dict[str, object]:
        return {
            "threads": len(generation.threads),
            "width": generation.width,
            "seconds": round(generation.elapsed, 6),
            "first_token": generation.threads[0].first_token,
            **generation.usage.model_dump(),
            "critical_path": generation.critical_path,
            "text_speedup": round(generation.text_speedup, 3),
            **({"text": generation.text} if self._text else {}),
        }

    def _failure(self, error: BaseException | None) -> dict[str, object]:
        """What may be said of an error: its message may quote a prompt."""
        if error is None:
            return {}
        return {"error_type": error_type(error), **({"error": str(error)} if self._text else {})}

    def _log(self, level: int, message: str, **fields: object) -> None:
        if self._logger.isEnabledFor(level):
            self._logger.log(level, message, extra={"answer_id": self._answer, **fields})
