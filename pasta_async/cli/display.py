"""Where an answer appears: as text, or as JSON at the end."""

from __future__ import annotations

import json
import sys
from typing import TYPE_CHECKING, Any, Protocol

from pasta_async.cli.summary import summary
from pasta_async.events import TextDelta

if TYPE_CHECKING:
    from pasta_async.events import Event
    from pasta_async.results import Generation
    from pasta_async.streaming import AnswerStream

__all__ = ["Display", "JsonDisplay", "TextDisplay"]


class Display(Protocol):
    """What `pasta-async generate` shows an answer on."""

    def begin(self, stream: AnswerStream, *, baseline: bool) -> None:
        """A stream begins: the answer's, and then perhaps the baseline's."""
        ...

    def show(self, event: Event) -> None:
        """Something happened in the stream that began last."""
        ...

    def done(self, answer: Generation, baseline: Generation | None) -> None:
        """All is decoded."""
        ...

    def broken(self) -> None:
        """It ended early: leave what there is of the answer."""
        ...


class TextDisplay:
    """The answer's text in document order, as it is decoded."""

    def __init__(self) -> None:
        self._baseline = False
        self._end = "\n"

    def begin(self, stream: AnswerStream, *, baseline: bool) -> None:
        """The baseline is not shown."""
        if baseline:
            self._end_line()
        self._baseline = baseline

    def show(self, event: Event) -> None:
        """Print what is new at once."""
        if isinstance(event, TextDelta) and event.delta and not self._baseline:
            sys.stdout.write(event.delta)
            sys.stdout.flush()
            self._end = event.delta[-1]

    def done(self, answer: Generation, baseline: Generation | None) -> None:
        """End the line; with a baseline, the numbers."""
        self._end_line()
        if baseline:
            sys.stdout.write("\n" + "\n".join(summary(answer, baseline)) + "\n")
        tell_notes(answer)

    def broken(self) -> None:
        """The text is there already."""
        self._end_line()

    def _end_line(self) -> None:
        if self._end != "\n":
            sys.stdout.write("\n")
            self._end = "\n"
        sys.stdout.flush()


class JsonDisplay:
    """One JSON object at the end: the generation, or with a baseline both and the speed-ups."""

    def __init__(self) -> None:
        self._stream: AnswerStream | None = None

    def begin(self, stream: AnswerStream, *, baseline: bool) -> None:
        """Remember the answer's stream for the case that it breaks off."""
        if not baseline:
            self._stream = stream

    def show(self, event: Event) -> None:
        """Nothing yet."""

    def done(self, answer: Generation, baseline: Generation | None) -> None:
        """Print the object."""
        if baseline is None:
            _print(answer.model_dump(mode="json"))
            return
        _print(
            {
                "answer": answer.model_dump(mode="json"),
                "baseline": baseline.model_dump(mode="json"),
                "theoretical_speedup": answer.theoretical_speedup(baseline),
                "measured_speedup": baseline.elapsed / answer.elapsed if answer.elapsed else 1.0,
            }
        )

    def broken(self) -> None:
        """Print what there is, if the answer had begun; its `finish_reason` says that it is not whole."""
        if self._stream and self._stream.partial:
            _print(self._stream.partial.model_dump(mode="json"))


def _print(value: dict[str, Any]) -> None:
    sys.stdout.write(json.dumps(value, ensure_ascii=False, indent=2) + "\n")


def tell_notes(answer: Generation) -> None:
    """What the backend could not honour, on stderr."""
    for note in answer.notes:
        sys.stderr.write(f"pasta-async: note: {note}\n")
