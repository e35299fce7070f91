"""Structured logs of a client's answers, through Python's own `logging`.

Each record has a fixed message, and numbers as fields (`extra=`), which a JSON formatter adds to the line.
"""

from __future__ import annotations

import logging

from pasta_async.observers import AnswerObserver, AnswerStart, ThreadState
from pasta_async.protocol import DecodeRequest
from pasta_async.results import Generation
from pasta_async.telemetry import error_type, figures, outcome

_LOG = logging.getLogger("pasta_async.answers")


class Logs:
    """An observer that logs, to the logger `pasta_async.answers`; `Client(observers=[Logs()])`.

    An answer that ends is INFO, or WARNING if it failed; a request that fails is WARNING; the beginning of an
    answer and the states of its threads are DEBUG.

    Args:
        text: True if prompts, answers and the messages of errors may be logged.
    """

    def __init__(self, *, text: bool = False) -> None:
        self._text = text

    def answer(self, start: AnswerStart) -> AnswerObserver:
        """Log the beginning of an answer."""
        return _AnswerLog(start, text=self._text)


class _AnswerLog(AnswerObserver):
    def __init__(self, start: AnswerStart, *, text: bool) -> None:
        self._text = text
        self._answer = start.answer
        self._model = start.model.name if start.model else None
        prompt = {"prompt": start.prompt} if text else {}
        self._log(logging.DEBUG, "answer begins", model=self._model, streamed=start.streamed, **prompt)

    def thread_state(self, thread: int, state: ThreadState) -> None:
        self._log(logging.DEBUG, f"thread {state}", thread_id=thread)

    def request_failed(self, request: DecodeRequest, error: BaseException) -> None:
        self._log(logging.WARNING, "request failed", thread_id=request.thread, **self._failure(error))

    def ended(self, generation: Generation | None, error: BaseException | None) -> None:
        fields = figures(generation) if generation else {}
        if generation and self._text:
            fields["text"] = generation.text
        reason = outcome(generation, error)
        level = logging.WARNING if reason == "error" else logging.INFO
        message = {"error": "answer failed", "refused": "answer refused"}.get(reason, "answer ended")
        failure = self._failure(error) if error and reason != "abort" else {}
        self._log(level, message, model=self._model, finish_reason=reason, **fields, **failure)

    def _failure(self, error: BaseException) -> dict[str, object]:
        """The fields of an error. Its message may quote a prompt, so it is text."""
        return {"error_type": error_type(error), **({"error": str(error)} if self._text else {})}

    def _log(self, level: int, message: str, **fields: object) -> None:
        if _LOG.isEnabledFor(level):
            _LOG.log(level, message, extra={"answer_id": self._answer, **fields})
