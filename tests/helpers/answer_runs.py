"""Shared by the interpreter's tests: documents, requests as views have them, ways to run an answer."""

from __future__ import annotations

import re
from collections.abc import AsyncGenerator, Sequence
from itertools import count, groupby
from typing import Any

from hypothesis import settings
from hypothesis import strategies as st

from pasta_async import Client, DecodeRequest, Event, Generation, Limits, Piece, Sampling
from pasta_async.events import ReasoningDelta, TextDelta, ThreadDelta, ThreadDone, ThreadReplaced
from pasta_async.lang import TAG_TOKENS, Document, View, escape, parse, views
from pasta_async.testing import Play, ScriptedBackend
from pasta_async.tokenizer import Tokenizer

RICH = (
    "Both wars reshaped Europe. "
    '<promise topic="causes" tokens="60"/><async>The causes were many, and old.</async> '
    '<promise topic="outcome" tokens="40"/><async>The outcome was peace.</async>'
    "<sync/> Taken together, they ended an age. "
    '<promise topic="more" tokens="10"/><async>More follows.</async>'
    '<promise topic="nothing" tokens="10"/><async></async><sync/> So it was.'
    ' <promise topic="end" tokens="20"/><async>The end.</async>'
)
"""Two rounds, adjacent promises, an empty chunk, an end with an open promise."""

ROOMY = Limits(chunk_tokens=10_000, timeout=None)
ENDLESS = Sampling(max_tokens=10**7)
"""Limits that no test document reaches."""

half_as_many = settings(max_examples=settings().max_examples // 2)
"""For tests whose examples are several whole answers: half of the examples of the profile."""

Heard = tuple[int, tuple[int, ...], tuple[int, ...]]
"""A thread, what it had in its context behind the prompt, and what it then wrote."""


INSTEAD = "Water.\n"


class Obedient(ScriptedBackend):
    """Writes `INSTEAD`, and the end of its answer, where it may not promise."""

    async def decode(self, request: DecodeRequest) -> AsyncGenerator[Piece, None]:
        """See `ScriptedBackend.decode`."""
        tags = self.tokenizer.tags
        assert tags is not None
        if tags.promise not in request.banned_ids or request.thread:
            async for piece in super().decode(request):
                yield piece
            return
        self.asked_anew = request
        yield Piece((*self.tokenizer.encode(INSTEAD), *self.tokenizer.end_ids[:1]), "stop")


def promise(topic: str, chunk: str | None = None, tokens: int = 20) -> str:
    """A promise in written form, with its chunk."""
    tag = f'<promise topic="{topic}" tokens="{tokens}"/>'
    return tag if chunk is None else f"{tag}<async>{chunk}</async>"


async def answer(backend: ScriptedBackend, prompt: Any = "Why?", **options: Any) -> Generation:
    """One answer on a client of its own, on the backend's clock, with all the time there is."""
    async with Client(backend, clock=backend.clock, limits=Limits(timeout=None)) as client:
        return await client.generate(prompt, **options)


async def events_of(backend: ScriptedBackend, **options: Any) -> tuple[list[Event], Generation]:
    """All events of an answer like that of `answer`, and the answer."""
    async with (
        Client(backend, clock=backend.clock, limits=Limits(timeout=None)) as client,
        client.stream("Why?", **options) as stream,
    ):
        events = [event async for event in stream]
        return events, await stream.result()


async def read_by_events(backend: ScriptedBackend, **options: Any) -> tuple[Generation, str, dict[int, str]]:
    """One answer, and what a reader of its events comes to: the text, and that of each thread.

    Every thread is told to have ended, once.
    """
    text, threads, ended = "", dict[int, str](), list[int]()
    events, generation = await events_of(backend, **options)
    for event in events:
        if isinstance(event, TextDelta):
            text += event.delta
        elif isinstance(event, ThreadDelta):
            threads[event.thread] = threads.get(event.thread, "") + event.delta
        elif isinstance(event, ThreadReplaced):
            threads[event.thread] = event.text
        elif isinstance(event, ThreadDone):
            ended.append(event.thread)
        assert not isinstance(event, ReasoningDelta)
    assert sorted(ended) == [record.thread for record in generation.threads]
    return generation, text, {number: said for number, said in threads.items() if said}


# Documents ------------------------------------------------------------------------------------------------

_BITS = ["Tea ", "is", " a drink.", "\n", " ", "<", ">", '"/>', "<b>", "é", "漢字", "🎉", *TAG_TOKENS]
_Part = tuple[str, bool]
"""A written part, and True if it is a tag."""


def _text(text: str) -> _Part:
    return text, False


def _tag(source: str) -> _Part:
    return source, True


_WORDS = st.text("abcd ", min_size=1, max_size=12)
_TEXT = st.one_of(st.sampled_from(_BITS), _WORDS).map(_text)
_STRAY = st.just("<async>").map(_tag)
_NESTED = st.sampled_from(["<sync/>", promise("in"), "<async>"]).map(_tag)


def _written(parts: list[_Part]) -> str:
    """Texts and tags, with neighbouring texts as one."""
    runs = groupby(parts, lambda part: part[1])
    joined = (("".join(text for text, _ in run), is_tag) for is_tag, run in runs)
    return "".join(text if is_tag else escape(text) for text, is_tag in joined)


def _promise(topic: str, tokens: int, chunk: list[_Part]) -> _Part:
    return _tag(promise(topic, _written(chunk), tokens))


_TAG = st.sampled_from(["<sync/>", "<sync/>", "</async>"]).map(_tag)


_TOPICS = ["a", "black tea", "the three causes"]


def _with_own_topics(written: str) -> str:
    """The text with a number behind each topic: a trained model has none twice in a round."""
    numbers = count(1)
    topics = "|".join(_TOPICS)
    return re.sub(f'(?<=topic=")({topics})(?=")', lambda match: f"{match[0]} {next(numbers)}", written)


def documents(*, nested: bool = False) -> st.SearchStrategy[Document]:
    """Documents as a trained model writes them: several rounds, idle syncs, literal and stray tags.

    With `nested` tags chunks hold promises and syncs too, at which the interpreter ends them.
    """
    promises = st.builds(
        _promise,
        st.sampled_from(_TOPICS),
        st.sampled_from([10, 20, 60, 100]),
        st.lists(_TEXT | _TEXT | (_NESTED if nested else _STRAY), max_size=5),
    )
    parts = st.lists(_TEXT | _TEXT | promises | promises | _TAG, max_size=12)
    return parts.map(_written).map(_with_own_topics).map(parse)


# Requests and views ---------------------------------------------------------------------------------------


def unrolled(document: Document, tokenizer: Tokenizer) -> list[Heard]:
    """Context and output of each thread, by the language's one rule."""
    return [
        (view.thread, tokenizer.encode_segments(view.context), _output(view, document, tokenizer))
        for view in views(document)
    ]


def _output(view: View, document: Document, tokenizer: Tokenizer) -> tuple[int, ...]:
    output = tokenizer.encode_segments(view.target)
    ended = view.ends_answer
    if view.thread:
        chunk = document.promises[view.thread - 1].chunk
        ended = chunk is not None and chunk.closed_by == "end"
    return (*output, tokenizer.end_ids[0]) if ended else output


def heard(plays: Sequence[Play], prompt: int) -> list[Heard]:
    """Context and output of the requests that were played; one that was cut and continued counts once.

    `prompt`: tokens of the prompt, which all of them begin with.
    """
    result: list[Heard] = []
    for play in plays:
        thread, context, output = play.request.thread, play.request.ids[prompt:], tuple(play.ids)
        for at, (number, before, written) in enumerate(result):
            if number == thread and written and before + written == context:
                result[at] = (thread, before, written + output)
                break
        else:
            result.append((thread, context, output))
    return result
