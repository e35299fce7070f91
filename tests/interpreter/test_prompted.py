"""Models that were never trained to annotate: told how, and read as text."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import pytest

from pasta_async import Client, DecodeRequest, Message, Piece
from pasta_async.errors import BackendStatusError
from pasta_async.events import ReasoningDelta, TextDelta
from pasta_async.interpreter.reading import ThinkingFilter
from pasta_async.lang import parse
from pasta_async.prompting import INSTRUCTIONS, SYSTEM_PROBE, USER_PROBE, default_system, with_instructions
from pasta_async.testing import Fault, Script, ScriptedBackend, WordTokenizer
from tests.interpreter.support import RICH, answer, promise
from tests.interpreter.vocabularies import UNTAGGED, tokenizer

TIGHT = (
    f"A list:\n1. {promise('a', 'Tea is a drink.')}.\n2. {promise('b', 'Coffee.')}"
    f"\n<sync/>.\nIn the end, {promise('c', 'no more.')}and so on."
)
"""Its tags have neighbours that a tokenizer merges them with."""


def behind_prompt(backend: ScriptedBackend) -> dict[tuple[int, int], tuple[int, ...]]:
    """Contexts by thread and number of request, without the prompt."""
    counts: dict[int, int] = {}
    contexts: dict[tuple[int, int], tuple[int, ...]] = {}
    prompt = len(backend.requests[0].ids)
    for request in backend.requests:
        counts[request.thread] = counts.get(request.thread, -1) + 1
        contexts[request.thread, counts[request.thread]] = request.ids[prompt:]
    return contexts


class DefaultSystem(ScriptedBackend):
    """Its chat template brings a system message where there is none."""

    async def encode_chat(self, messages: Sequence[Message], template_kwargs: Mapping[str, Any]) -> list[int]:
        if messages[0]["role"] != "system":
            messages = [{"role": "system", "content": "You are Smol, and kind."}, *messages]
        return await super().encode_chat(messages, template_kwargs)


async def test_the_system_message_of_the_template_is_kept() -> None:
    own = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Why?"}]
    for kind, prompt, expected in (
        (DefaultSystem, "Why?", f"You are Smol, and kind.\n\n{INSTRUCTIONS}"),
        (DefaultSystem, own, f"Be brief.\n\n{INSTRUCTIONS}"),
        (ScriptedBackend, "Why?", INSTRUCTIONS),
    ):
        backend = kind("Because.", tokenizer=tokenizer(UNTAGGED[0]))
        await Client(backend).generate(prompt, prompted=True)
        (sent,) = backend.requests
        chat = [{"role": "system", "content": expected}, {"role": "user", "content": "Why?"}]
        assert list(sent.ids) == await backend.encode_chat(chat, {})


class NoSystem(ScriptedBackend):
    """Its template refuses system messages, as those of Gemma and of early Mistrals do."""

    async def encode_chat(self, messages: Sequence[Message], template_kwargs: Mapping[str, Any]) -> list[int]:
        if any(message["role"] == "system" for message in messages):
            raise BackendStatusError("System role not supported", status=400)
        return await super().encode_chat(messages, template_kwargs)


async def test_a_template_that_takes_no_system_message_has_the_instructions_in_the_first_message() -> None:
    backend = NoSystem("Because.", tokenizer=tokenizer(UNTAGGED[0]))
    chat = [
        {"role": "user", "content": "Why?"},
        {"role": "assistant", "content": "Well."},
        {"role": "user", "content": "So?"},
    ]
    for prompt in ("Why?", chat):
        await Client(backend).generate(prompt, prompted=True)
    alone, several = backend.requests
    told = {"role": "user", "content": f"{INSTRUCTIONS}\n\nWhy?"}
    assert list(alone.ids) == await backend.encode_chat([told], {})
    assert list(several.ids) == await backend.encode_chat([told, *chat[1:]], {})
    parts = [{"type": "text", "text": "So?"}]
    (message,) = with_instructions([{"role": "user", "content": parts}], None)
    assert message["content"] == [{"type": "text", "text": INSTRUCTIONS}, *parts]


async def test_reasoning_counts_as_text_of_a_prompted_model() -> None:
    thought, script = "Let me see. " * 20, parse(TIGHT)
    backend = ScriptedBackend(f"<think>{thought}</think>{TIGHT}", tokenizer=tokenizer(UNTAGGED[0]))
    generation = await Client(backend).generate("Why?", prompted=True)
    assert generation.reasoning == thought
    whole = len(thought) + len(script.text)
    expected = generation.usage.completion_tokens * whole / (len(thought) + len(script.format()))
    assert generation.text_tokens == pytest.approx(expected, abs=1)


@pytest.mark.parametrize(
    "template", ["{s}{u}", "[INST] {u} [/INST]", "[INST] {s}\n\n{u} [/INST]", "<s></s><u>{u}</u>"]
)
def test_a_template_without_a_system_message_has_no_default(template: str) -> None:
    without = template.replace("{s}\n\n", "").format(s="", u=USER_PROBE)
    assert default_system(without, template.format(s=SYSTEM_PROBE, u=USER_PROBE)) == ""


@pytest.mark.parametrize("name", UNTAGGED)
@pytest.mark.parametrize("script", [TIGHT, RICH])
async def test_contexts_are_the_views_as_text(name: str, script: str) -> None:
    backend = ScriptedBackend(parse(script), tokenizer=tokenizer(name), latency=1.0)
    generation = await answer(backend)
    assert generation.document == parse(script)
    document = parse(script)
    contexts = {key: backend.tokenizer.decode(ids) for key, ids in behind_prompt(backend).items()}
    sync = script.index("<sync/>") + len("<sync/>")
    bare = script[:sync]
    for kept in document.promises:
        assert kept.chunk is not None
        bare = bare.replace(kept.chunk.format(), "")
    assert contexts[0, 0] == ""
    assert contexts[0, 1] == script[:sync]
    for number in (1, 2):
        source = document.promises[number - 1].source
        assert contexts[number, 0] == bare[: bare.index(source)] + source + "<async>"


async def test_where_a_tag_ends_inside_a_token_it_is_cut_and_the_rest_is_encoded_again() -> None:
    words = tokenizer("plain merged")
    main = f"{promise('a')}.\n2. {promise('b')} and <sync/>"
    ids = words.encode(main)
    at = next(n for n in range(len(ids)) if "/>" in words.decode(ids[: n + 1]))
    token = words.decode([ids[at]])
    before, behind = token.split("/>")
    assert behind  # else this tests nothing
    backend = ScriptedBackend(Script([main, " Done."], {1: "A.</async>", 2: "B.</async>"}), tokenizer=words)
    generation = await answer(backend)
    assert generation.text == "A..\n2. B. and  Done."
    contexts = behind_prompt(backend)
    opened = tuple(words.encode("<async>"))
    first = (*ids[:at], *words.encode(f"{before}/>"))
    assert contexts[1, 0] == (*first, *opened)
    rest = (*words.encode(behind), *ids[at + 1 :])
    assert contexts[2, 0][: at + 1] == tuple(ids[: at + 1])  # no chunk comes there, so nothing is cut there
    chunk = (*opened, *words.encode("A.</async>"))
    assert contexts[0, 1][: len(first) + len(chunk) + 1] == (*first, *chunk, rest[0])


@pytest.mark.parametrize("name", UNTAGGED)
async def test_contexts_do_not_depend_on_the_size_of_the_pieces(name: str) -> None:
    one = ScriptedBackend(parse(TIGHT), tokenizer=tokenizer(name))
    await answer(one)
    for piece in (2, 3, 7):
        more = ScriptedBackend(parse(TIGHT), tokenizer=tokenizer(name), piece=piece)
        generation = await answer(more)
        assert generation.document == parse(TIGHT)
        assert behind_prompt(more) == behind_prompt(one)


@pytest.mark.parametrize("name", UNTAGGED)
async def test_a_fork_is_a_prefix_of_what_main_has_up_to_the_token_in_which_its_tag_ends(name: str) -> None:
    backend = ScriptedBackend(parse(TIGHT), tokenizer=tokenizer(name))
    await answer(backend)
    main = backend.played[0]
    written = (*main.request.ids, *main.ids)
    for play in backend.played[1:3]:
        common = next(
            (n for n, (a, b) in enumerate(zip(play.request.ids, written, strict=False)) if a != b),
            len(written),
        )
        left = await backend.detokenize(play.request.ids[common:])
        assert len(left) <= len('<promise topic="a" tokens="20"/><async>')


class RunsOn(ScriptedBackend):
    """A server that knows no stop texts."""

    def decode(self, request: DecodeRequest) -> AsyncGenerator[Piece, None]:
        return super().decode(replace(request, stop_text=()))


@pytest.mark.parametrize("name", UNTAGGED)
@pytest.mark.parametrize("piece", [1, 5])
async def test_a_server_that_runs_on_behind_a_tag_is_cut_there(name: str, piece: int) -> None:
    script = Script(
        [f"One {promise('a')} two<sync/> and what I cannot know", " Three."],
        {1: "Alpha.</async> and what nobody asked"},
    )
    stops = ScriptedBackend(script, tokenizer=tokenizer(name), piece=piece)
    runs_on = RunsOn(script, tokenizer=tokenizer(name), piece=piece)
    for backend in (stops, runs_on):
        generation = await answer(backend)
        assert generation.text == "One Alpha. two Three."
        assert not backend.open
    assert behind_prompt(runs_on) == behind_prompt(stops)
    assert {request.thread for request in runs_on.aborted} == {0, 1}


async def test_what_the_model_needs_is_detected_from_its_vocabulary() -> None:
    trained, other = ScriptedBackend(RICH), ScriptedBackend(parse(RICH), tokenizer=WordTokenizer(tags=False))
    for backend in (trained, other):
        assert (await answer(backend)).document == parse(RICH)
    assert "<|system|>" not in await trained.detokenize(trained.requests[0].ids)
    assert (await other.detokenize(other.requests[0].ids)).startswith(f"<|system|>{INSTRUCTIONS}<|end|>")
    assert not trained.requests[0].stop_text
    assert trained.requests[0].stop_ids
    assert "<sync/>" in other.requests[0].stop_text


async def test_it_can_be_set() -> None:
    script = Script([f"One {promise('a')}<sync/>", " two."], {1: "A.</async>"})
    backend = ScriptedBackend(script)  # has the tags in its vocabulary, and yet writes them as text
    assert (await answer(backend, prompted=True)).text == "One A. two."
    assert INSTRUCTIONS in await backend.detokenize(backend.requests[0].ids)
    backend = ScriptedBackend(RICH)
    assert (await answer(backend, prompted=False)).document == parse(RICH)


async def test_a_system_message_is_kept_and_the_description_comes_behind_it() -> None:
    backend = ScriptedBackend("Yes.", tokenizer=WordTokenizer(tags=False))
    messages: list[Message] = [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": "Why?"},
    ]
    await answer(backend, messages)
    asked = await backend.detokenize(backend.requests[0].ids)
    assert asked == f"<|system|>Be brief.\n\n{INSTRUCTIONS}<|end|><|user|>Why?<|end|><|answer|>"
    assert messages[0]["content"] == "Be brief."
    backend = ScriptedBackend("Yes.", tokenizer=WordTokenizer(tags=False))
    await answer(backend, messages, baseline=True)
    assert INSTRUCTIONS not in await backend.detokenize(backend.requests[0].ids)


def test_the_description_shows_tags_as_they_are_read() -> None:
    document = parse(INSTRUCTIONS)
    assert [promise.topic for promise in document.promises[1:3]] == ["tea", "coffee"]
    assert all(promise.tokens for promise in document.promises)
    assert "tag-form" not in {str(found.code) for found in document.diagnostics}


# Thinking -------------------------------------------------------------------------------------------------


class Thinks(ScriptedBackend):
    """Its chat template opens a thinking block."""

    async def encode_chat(self, messages: Sequence[Message], template_kwargs: Mapping[str, Any]) -> list[int]:
        ids = await super().encode_chat(messages, template_kwargs)
        return [*ids, *self.tokenizer.encode("<think>\n")]


@pytest.mark.parametrize("name", ["plain words", "plain merged", "words"])
@pytest.mark.parametrize("piece", [1, 6])
async def test_text_inside_a_thinking_block_is_never_read_for_tags(name: str, piece: int) -> None:
    thoughts = f"Let me use {promise('x')} and <sync/>, or {promise('y', 'this')}.</think>"
    main = [f"{thoughts}\nOne {promise('a')}<sync/>", " two."]
    for kind, opening in ((ScriptedBackend, "<think>"), (Thinks, "")):
        script = Script([opening + main[0], main[1]], {1: "Alpha."})
        backend = kind(script, tokenizer=tokenizer(name), piece=piece)
        generation = await answer(backend, prompted=True)
        assert generation.text == generation.document.text == "\nOne Alpha. two."
        assert generation.reasoning == thoughts.removesuffix("</think>")
        assert [thread.topic for thread in generation.threads[1:]] == ["a"]
        assert [request.thread for request in backend.requests if request.thread == 1] == [1]


@pytest.mark.parametrize(("kind", "opening"), [(ScriptedBackend, "<think>"), (Thinks, "")])
async def test_a_trained_model_may_think_of_tags_too(kind: type[ScriptedBackend], opening: str) -> None:
    """Its tags are ids, also those that it only thinks of."""
    written = f"{opening}Hm.</think> One {promise('a', 'Alpha.')}<sync/> two."
    thought = Fault(0, 5 if opening else 2, "garbage", text=promise("x"))
    generation = await answer(kind(written, tokenizer=tokenizer("words"), faults=[thought]))
    assert (generation.reasoning, generation.text) == (f"Hm.{promise('x')}", " One Alpha. two.")
    assert [thread.topic for thread in generation.threads[1:]] == ["a"]


async def test_a_thinking_block_that_never_ends_is_all_reasoning() -> None:
    backend = ScriptedBackend(
        Script([f"<think>{promise('x')} and so on"]), tokenizer=tokenizer("plain words")
    )
    generation = await answer(backend)
    assert (generation.reasoning, generation.text) == (f"{promise('x')} and so on", "")
    assert len(generation.threads) == 1


async def test_reasoning_is_streamed_apart_from_the_text() -> None:
    written = f"<think>Hm, </thi or so.</think>One {promise('a', 'Alpha.')}<sync/> two."
    for name, piece in (("plain words", 1), ("plain pieces", 3), ("words", 2)):
        backend = ScriptedBackend(parse(written), tokenizer=tokenizer(name), piece=piece)
        async with Client(backend) as client, client.stream("Why?", prompted=True) as stream:
            events = [event async for event in stream]
            generation = await stream.result()
        reasoning = "".join(event.delta for event in events if isinstance(event, ReasoningDelta))
        assert reasoning == generation.reasoning == "Hm, </thi or so."
        text = "".join(event.delta for event in events if isinstance(event, TextDelta))
        assert text == generation.text == "One Alpha. two."


@pytest.mark.parametrize("text", ["<thi", "<", " \n<think", "<thinking>", "<b>", ""])
async def test_what_only_looks_like_its_beginning_is_text(text: str) -> None:
    for written in (text, f"{text} and {promise('a', 'more')}."):
        backend = ScriptedBackend(parse(written), tokenizer=tokenizer("plain words"))
        assert (await answer(backend)).text == parse(written).text


def test_a_block_is_split_where_it_ends_however_the_text_comes_in() -> None:
    whole = " <think>a <b> </thin </think> c </think>"
    for size in range(1, len(whole)):
        thinking = ThinkingFilter()
        parts = [thinking.split(whole[at : at + size]) for at in range(0, len(whole), size)]
        assert "".join(part for part, _ in parts) == "a <b> </thin "
        assert "".join(rest for _, rest in parts) == " c </think>"
        assert thinking.flush() == ("", "")


async def test_chat_template_arguments_are_passed_on() -> None:
    seen: list[dict[str, Any]] = []

    class Notes(ScriptedBackend):
        async def encode_chat(
            self, messages: Sequence[Message], template_kwargs: Mapping[str, Any]
        ) -> list[int]:
            seen.append(dict(template_kwargs))
            return await super().encode_chat(messages, template_kwargs)

    async with Client(Notes("Yes.")) as client:
        await client.generate("Why?", chat_template_kwargs={"enable_thinking": False})
        await client.generate("Why?", chat_template_kwargs={"enable_thinking": False}, baseline=True)
    assert seen == [{"enable_thinking": False}, {"enable_thinking": False, "pasta": False}]
