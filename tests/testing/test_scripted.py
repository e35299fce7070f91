"""The scripted backend plays what was written, to whoever asks in the right order."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pasta_async import Client
from pasta_async.errors import BackendError, InvalidRequestError
from pasta_async.lang import (
    TAG_TOKENS,
    Chunk,
    Document,
    Promise,
    Segment,
    Sync,
    Text,
    escape,
    views,
)
from pasta_async.options import Sampling
from pasta_async.protocol import DecodeRequest, Model, Piece
from pasta_async.testing import ScriptedBackend
from pasta_async.tokenizer import Tokenizer
from tests.pasta_tiny import PASTA_TINY

WARS = Document(
    (
        Text("Both wars."),
        Promise("causes", 60, Chunk((Text(" The causes were many."),))),
        Promise("outcome", 40, Chunk((Text(" Peace came."),))),
        Sync(),
        Text(" Taken together: "),
        Promise("sum", 10, Chunk((Text("two"),))),
        Text(" wars."),
    )
)


@pytest.fixture
def bare(tmp_path: Path) -> Tokenizer:
    """A tokenizer without a chat template."""
    for name in ("tokenizer.json", "config.json"):
        shutil.copy(PASTA_TINY / name, tmp_path)
    return Tokenizer.from_folder(tmp_path)


@pytest.fixture
def tiny() -> Tokenizer:
    """A real model's tokenizer, with the model's own template."""
    return Tokenizer.from_folder(PASTA_TINY)


async def test_a_tokenizer_without_a_template_will_do(bare: Tokenizer) -> None:
    async with Client(ScriptedBackend("Fine.", tokenizer=bare)) as client:
        assert (await client.generate("Why?")).text == "Fine."


class Player:
    """Asks a backend by hand, as an interpreter would."""

    def __init__(self, backend: ScriptedBackend, model: Model, prompt: list[int]) -> None:
        self.backend, self.model, self.prompt = backend, model, tuple(prompt)

    @classmethod
    async def ask(cls, backend: ScriptedBackend, prompt: str = "Go") -> Player:
        ids = backend.tokenizer.encode_chat([{"role": "user", "content": prompt}], {})
        return cls(backend, await backend.connect(), ids)

    async def pieces(
        self, thread: int = 0, written: Sequence[int] = (), *, answer: str = "a", **fields: Any
    ) -> list[Piece]:
        tags, ids = self.model.tags, (*self.prompt, *written)
        assert tags is not None
        fields = {"max_tokens": 1000, "stop_ids": (tags.sync, tags.close_async), **fields}
        request = DecodeRequest(answer, thread, ids, sampling=Sampling(), **fields)
        return [piece async for piece in self.backend.decode(request)]

    async def text(self, thread: int = 0, written: Sequence[int] = (), **fields: Any) -> str:
        return self.text_of(await self.pieces(thread, written, **fields))

    def text_of(self, pieces: Sequence[Piece]) -> str:
        ids = [token for token in ids_of(pieces) if token not in self.model.end_ids]
        return self.model.tokenizer.decode(ids)

    def encode(self, segments: Sequence[Segment]) -> tuple[int, ...]:
        return self.model.tokenizer.encode_segments(segments)


def ids_of(pieces: Sequence[Piece]) -> tuple[int, ...]:
    return tuple(token for piece in pieces for token in piece.ids)


def plain(segments: Sequence[Segment]) -> str:
    return "".join(segment.text for segment in segments)


# --- what is played -----------------------------------------------------------------------------------


@pytest.mark.parametrize("size", [1, 4, 100])
async def test_only_the_last_piece_has_a_finish(size: int) -> None:
    player = await Player.ask(ScriptedBackend(WARS, piece=size))
    pieces = await player.pieces()
    assert max(len(piece.ids) for piece in pieces) <= size
    assert [piece.finish_reason for piece in pieces] == [None] * (len(pieces) - 1) + ["stop"]
    assert pieces[-1].cached_tokens is not None


@pytest.mark.parametrize("cut", range(14))
async def test_main_goes_on_where_its_context_ends(cut: int) -> None:
    """Cut anywhere in a stretch (at a promise, say) and sent again with what was written."""
    player = await Player.ask(ScriptedBackend(WARS))
    whole = ids_of(await player.pieces(answer="whole"))
    first = ids_of(await player.pieces(max_tokens=cut + 1))
    assert first == whole[: cut + 1]
    if len(first) < len(whole):
        assert first + ids_of(await player.pieces(written=first)) == whole


async def test_a_context_that_is_in_no_view_leads_to_the_next_stretch() -> None:
    """A chunk that its budget cut is shorter than the script's."""
    player = await Player.ask(ScriptedBackend(WARS))
    before, *_, after = [view for view in views(WARS) if view.thread == 0]
    assert await player.text() == plain(before.target)
    cut = [segment for segment in after.context if segment.text != " The causes were many."]
    context = player.encode(cut)
    assert await player.text(written=context) == plain(after.target)
    assert await player.text(written=context) == plain(after.target), "the same request again"
    some = player.encode([Segment(" Taken")])
    assert (await player.text(written=(*context, *some))).startswith(" together: ")


async def test_a_prompt_without_a_script_is_an_error() -> None:
    by_prompt = ScriptedBackend({"hi": "Hello."})
    assert await (await Player.ask(by_prompt, "hi")).text(answer="1") == "Hello."
    with pytest.raises(BackendError):
        await (await Player.ask(by_prompt, "what")).text(answer="2")


@given(st.text(), st.booleans())
async def test_any_text_is_data(text: str, known: bool) -> None:
    tokenizer = ScriptedBackend(escape(text) if known else "").tokenizer
    for written in (text, *(f"{text}{tag}{text}" for tag in TAG_TOKENS)):
        ids = tokenizer.encode(written)
        assert tokenizer.decode(ids) == written
        assert not {*ids} & {*(tokenizer.tags or ()), *tokenizer.end_ids}


# --- when a request ends ------------------------------------------------------------------------------


async def test_what_cannot_be_decoded_is_refused() -> None:
    player = await Player.ask(ScriptedBackend("x", context_length=10))
    with pytest.raises(InvalidRequestError):
        await player.text(written=[9] * 10)
    with pytest.raises(InvalidRequestError):
        await player.text(written=[player.model.vocab_size])
    with pytest.raises(InvalidRequestError):
        player.backend.tokenizer.encode_chat([{"role": "wizard", "content": "x"}], {})
    with pytest.raises(InvalidRequestError):
        ScriptedBackend("x", latency=-1)


# --- the cache ----------------------------------------------------------------------------------------


async def cached(player: Player, thread: int, written: Sequence[int]) -> int | None:
    return (await player.pieces(thread, written))[-1].cached_tokens


async def test_a_request_finds_what_earlier_ones_computed() -> None:
    player = await Player.ask(ScriptedBackend(WARS), "A longer prompt than that")
    prompt = len(player.prompt)
    first = await player.pieces()
    out = ids_of(first)
    assert first[-1].cached_tokens == 0
    assert await cached(player, 1, out[:5]) == prompt + 5 - 1, "the last token is always computed"
    assert await cached(player, 2, (*out, 9, 9)) == prompt + len(out) - 1, "the last output has no KV"
    assert await cached(player, 3, (*out[:3], 9, 9, 9)) == prompt + 3


async def test_a_baseline_has_no_tags_whatever_the_tokenizer(tiny: Tokenizer) -> None:
    async with Client(ScriptedBackend(WARS, tokenizer=tiny)) as client:
        generation = await client.generate("Why?", baseline=True)
    assert (generation.text, generation.diagnostics) == (WARS.text, ())
