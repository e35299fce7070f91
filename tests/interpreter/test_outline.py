"""`parallel="outline"`: the lists of a model that nobody trained, an item a thread."""

from __future__ import annotations

import re
from typing import Any, cast

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import pre_tokenizers

from pasta_async import BackendTransportError, Client, Generation, Limits
from pasta_async.interpreter.outline import Head, ItemParser
from pasta_async.lang import ChunkEnded, Promise, Sync, Text, parse
from pasta_async.testing import Fault, ScriptedBackend
from pasta_async.testing.tokenizer import chat_tokenizer
from pasta_async.tokenizer import Tokenizer
from tests.helpers.answer_runs import RICH, answer, read_by_events

LIST = """\
Three things matter:

1. **Safety**: Wear a helmet.
   It helps.

2. **Cost**: It is cheap:
   - used ones
   - rented ones

3. **Fun**: A lot.

So go and ride."""

CODE = """\
Two ways:

1. **Short**: this.
```
- **No**: head

1. **Nor**: here
```

2. **Long**: that."""


def untrained(script: Any = LIST, **options: Any) -> ScriptedBackend:
    """A model without tags."""
    return ScriptedBackend(script, trained=False, **options)


async def outlined(backend: ScriptedBackend, **options: Any) -> Generation:
    """An answer with an outline."""
    return await answer(backend, parallel="outline", **options)


def contexts(backend: ScriptedBackend) -> list[tuple[int, str]]:
    """The thread and the context of each request, without the prompt."""
    prompt = len(backend.requests[0].ids)
    return [(request.thread, backend.tokenizer.decode(request.ids[prompt:])) for request in backend.requests]


async def test_an_item_is_written_by_a_thread() -> None:
    backend = untrained(latency=1.0)
    generation = await outlined(backend)
    assert generation.text == LIST
    assert [thread.topic for thread in generation.threads] == ["", "Safety", "Cost", "Fun"]
    assert generation.threads[2].text == " It is cheap:\n   - used ones\n   - rented ones"
    assert [type(node) for node in generation.document.nodes] == [*[Text, Promise] * 3, Sync, Text]
    assert parse(generation.document.format()) == generation.document
    assert Generation.model_validate(generation.model_dump()) == generation
    assert (generation.finish_reason, generation.width, generation.notes) == ("stop", "full", ())
    plain = await answer(untrained(latency=1.0))
    assert plain.text == LIST
    assert generation.text_tokens == plain.text_tokens
    assert generation.critical_path < plain.critical_path
    usage = generation.usage
    assert usage.completion_tokens == sum(len(play.ids) for play in backend.played)
    forced = 8  # line breaks in front of each further item, and of what follows; the second number
    assert usage.completion_tokens - usage.discarded_tokens == plain.usage.completion_tokens - forced


async def test_main_sees_heads_alone_and_an_item_the_introduction() -> None:
    backend = untrained(latency=1.0)
    await outlined(backend)
    intro = "Three things matter:\n\n"
    assert contexts(backend) == [
        (0, ""),
        (0, f"{intro}1. **Safety**: ...\n\n2."),
        (1, f"{intro}1. **Safety**:"),
        (0, f"{intro}1. **Safety**: ...\n\n2. **Cost**: ...\n\n"),
        (2, f"{intro}2. **Cost**:"),
        (0, f"{intro}1. **Safety**: ...\n\n2. **Cost**: ...\n\n3. **Fun**: ...\n\n"),
        (3, f"{intro}3. **Fun**:"),
        (0, LIST.removesuffix("So go and ride.")),
    ]


@pytest.mark.parametrize("text", [LIST, CODE, LIST.partition("\n\nSo")[0], f"{LIST}\n\n1. **More**: x"])
@pytest.mark.parametrize("piece", [1, 2, 3, 1000])
async def test_the_text_does_not_depend_on_pieces_width_or_time(text: str, piece: int) -> None:
    for options in ({}, {"limits": Limits(max_threads=1)}):
        for slow in range(3):
            backend = untrained(text, latency=1.0, thread_latency={slow: 30.0}, piece=piece)
            generation, shown, threads = await read_by_events(backend, parallel="outline", **options)
            assert generation.text == shown == text
            assert threads == {thread.thread: thread.text for thread in generation.threads}
            assert len(threads) > 1
            assert not backend.open


@pytest.mark.parametrize("piece", [1, 3, 1000])
def test_an_item_may_begin_with_a_block_of_code(piece: int) -> None:
    code = "```bash\n# not a heading\n\nnot the end\n```"
    text = f"{code}\n\n2. Next:"
    parser = ItemParser(Head("1.", "plain", "Install"), begins_line=True)
    readings = [
        reading for i in range(0, len(text), piece) for reading in parser.feed_text(text[i : i + piece])
    ]
    assert "".join(reading for reading in readings if isinstance(reading, str)) == code
    assert [reading for reading in readings if not isinstance(reading, str)] == [ChunkEnded("nested")]


PLAIN = st.lists(
    st.sampled_from(["word", " and", ":", "\n", "\n\n", "1", "2. ", "- ", "**", "# ", "```", "http://", "é"]),
    max_size=30,
).map("".join)


@given(text=PLAIN.filter(lambda text: not re.search(r"(?m)^(?:\d|-).*:", text)))
async def test_an_answer_without_heads_is_the_plain_answer(text: str) -> None:
    backend = untrained(text)
    generation = await outlined(backend)
    assert generation.text == text
    assert len(generation.threads) == len(backend.requests) == 1
    plain = await answer(untrained(text))
    assert generation.document == plain.document
    assert generation.usage == plain.usage


BODIES = st.sampled_from(
    [
        *(" One line.", " Two\nlines.", ":\n- a\n- b", "\n\n   indented.", " 3 of 4."),
        *(
            "\n```\n1. **x**: y\n```",
            " Run:\n\n   ```pip install x```",
            "\n\n   ~~~sh\n   ls\n   ~~~\n   done",
        ),
    ]
)


@given(
    bodies=st.lists(BODIES, min_size=1, max_size=12),
    marks=st.sampled_from(["{}. **", "{}) "]),
    intro=st.sampled_from(["", "Here:\n\n", "```\n1. a:\n```\n\n"]),
    end=st.sampled_from(["", "\n\nThat is all."]),
    piece=st.integers(1, 5),
)
async def test_a_list_comes_out_as_it_is(
    bodies: list[str], marks: str, intro: str, end: str, piece: int
) -> None:
    names = [chr(ord("A") + number) * 3 for number in range(len(bodies))]
    close = "**:" if "*" in marks else ":"
    items = [
        f"{marks.format(number)}{name}{close}{body}"
        for number, (name, body) in enumerate(zip(names, bodies, strict=True), 1)
    ]
    text = intro + "\n\n".join(items) + end
    generation = await outlined(untrained(text, piece=piece))
    assert generation.text == text
    topics = [thread.topic for thread in generation.threads[1:]]
    assert topics == names[: len(topics)]
    # The scripted model, led on behind a head, comes to the next one where no line begins in between.
    if not any(re.search(r"\n(?=\S)", body) for body in bodies):
        assert topics == names


@pytest.mark.parametrize(
    "text",
    [
        "1. **Step 1**: open it.\n\n2. **Step 2**: close it.",
        "1. Calculate the sum: 3.\n\n2. Then halve it: 1.5.",
        "- Tea: mild\n- Coffee: strong",
        "- **Conclusion**: fine.\n- **Summary**: good.",
        "```\n1. **A**: x\n2. **B**: y\n```",
        "   - **A**: x\n   - **B**: y",
        "See https://a.example and 10:30: fine.",
    ],
)
async def test_what_needs_what_comes_before_is_written_in_sequence(text: str) -> None:
    backend = untrained(text)
    generation = await outlined(backend)
    assert generation.text == text
    assert len(backend.requests) == 1


async def test_a_head_that_comes_again_is_no_new_item() -> None:
    text = "1. **A**: x.\n\n2. **B**: y.\n\n3. **A**: z.\n\n4. **B**: z."
    backend = untrained(text)
    generation = await outlined(backend)
    assert generation.text == text
    assert [thread.topic for thread in generation.threads] == ["", "A", "B"]
    assert [type(node) for node in generation.document.nodes] == [*[Text, Promise] * 2, Sync, Text]


async def test_a_model_that_writes_no_heads_alone_is_left_alone() -> None:
    text = "1. **A**: x.\n\n2. No head.\n\n3. **C**: y.\n\n4. **D**: z."
    backend = untrained(text)
    generation = await outlined(backend)
    assert generation.text == text
    assert len(backend.requests) == 4  # main, the first item, main led on in vain, main to the end


def spanning_tokenizer(span: str) -> Tokenizer:
    """A tokenizer with one token for this text, and one for each character besides."""
    byte_level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": False}
    letters: list[str] = sorted(cast("Any", pre_tokenizers).ByteLevel.alphabet())
    spanning = cast("Any", pre_tokenizers).ByteLevel(add_prefix_space=False, use_regex=False)
    spelled = spanning.pre_tokenize_str(span)[0][0]
    model = {
        "type": "Unigram",
        "unk_id": None,
        "vocab": [*([letter, -10.0] for letter in letters), [spelled, -1.0]],
        "byte_fallback": False,
    }
    vocabulary = {"version": "1.0", "pre_tokenizer": byte_level, "decoder": byte_level, "model": model}
    tokenizer = chat_tokenizer(vocabulary, tags=False)
    assert len(tokenizer.encode(span)) == 1
    return tokenizer


async def test_a_head_ends_within_a_token() -> None:
    """Heads alone stand on lines of their own, and line breaks may be part of a head's last token."""
    text = "1. **A**: x.\n\n2. **B**:\n\n   y.\n\nEnd."
    backend = untrained(text, tokenizer=spanning_tokenizer("**:\n\n"))
    generation = await outlined(backend)
    assert generation.text == text
    assert [thread.topic for thread in generation.threads] == ["", "A", "B"]
    assert (2, "2. **B**:") in contexts(backend)


async def test_an_endless_list_ends_at_max_tokens() -> None:
    text = "\n\n".join(f"{number}. **Item {chr(64 + number)}x**: text." for number in range(1, 26))
    backend = untrained(text)
    generation = await outlined(backend, max_tokens=60)
    assert text.startswith(generation.text)
    assert generation.finish_reason == "length"
    assert backend.max_open <= 11


async def test_max_tokens_cuts_where_it_cuts_the_plain_answer() -> None:
    for most in range(1, 75):
        plain = await answer(untrained(), max_tokens=most)
        for slow in range(4):
            backend = untrained(latency=1.0, thread_latency={slow: 20.0})
            generation, shown, _ = await read_by_events(backend, parallel="outline", max_tokens=most)
            assert (generation.text, generation.finish_reason) == (plain.text, plain.finish_reason)
            assert shown == plain.text


async def test_max_tokens_cuts_behind_a_token_that_ends_an_item() -> None:
    text = "1. **A**: x.\n\n2. **B**: y.\n\nEnd."
    tokenizer = spanning_tokenizer(".\n\n")
    item = tokenizer.encode("1. **A**: x.\n\n")  # behind it the break is main's, in tokens of its own
    for most in range(1, len(item) + 1):
        plain = await answer(untrained(text, tokenizer=tokenizer), max_tokens=most)
        generation = await outlined(untrained(text, tokenizer=tokenizer), max_tokens=most)
        assert (generation.text, generation.finish_reason) == (plain.text, plain.finish_reason)


async def test_what_main_wrote_behind_the_cut_is_discarded() -> None:
    backend = untrained(latency=1.0, thread_latency={1: 20.0})  # meanwhile main writes the other heads
    usage = (await outlined(backend, max_tokens=20)).usage
    assert usage.completion_tokens - usage.discarded_tokens == 20


@pytest.mark.parametrize("stop", ["helps", "2. **", "Fun", "ride", "ones\n\n3"])
async def test_a_stop_text_ends_it(stop: str) -> None:
    backend = untrained(latency=1.0)
    generation = await outlined(backend, stop=stop)
    assert generation.text == LIST.partition(stop)[0]
    assert generation.matched_stop == stop
    assert not backend.open


@pytest.mark.parametrize("thread", range(4))
async def test_a_request_that_breaks_off_goes_on(thread: int) -> None:
    for tokens in range(1, 12):
        faults = [Fault(thread, tokens, error=BackendTransportError("it broke off"), times=2)]
        generation = await outlined(untrained(latency=1.0, faults=faults))
        assert generation.text == LIST


async def test_leaving_the_stream_ends_every_request() -> None:
    backend = untrained(latency=1.0)
    async with Client(backend, clock=backend.clock) as client:
        async with client.stream("Why?", parallel="outline") as stream:
            async for event in stream:
                if event.type == "thread.delta" and event.thread == 2:
                    break
        assert stream.partial and LIST.startswith(stream.partial.text)
    assert not backend.open


async def test_a_trained_model_answers_as_ever() -> None:
    backend, other = ScriptedBackend(RICH), ScriptedBackend(RICH)
    generation = await outlined(backend)
    assert generation.document == (await answer(other)).document
    assert [request.ids for request in backend.requests] == [request.ids for request in other.requests]


async def test_the_baseline_has_no_outline() -> None:
    generation = await outlined(untrained(), baseline=True)
    assert len(generation.threads) == 1
    assert generation.width == "plain"
