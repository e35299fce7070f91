"""Asks a scripted backend by hand, and the document that it is asked for."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from pasta_async.lang import Chunk, Document, Promise, Segment, Sync, Text
from pasta_async.options import Sampling
from pasta_async.protocol import DecodeRequest, Model, Piece
from pasta_async.testing import ScriptedBackend

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
WRITTEN = (
    'Both wars.<promise topic="causes" tokens="60"/><async> The causes were many.</async>'
    '<promise topic="outcome" tokens="40"/><async> Peace came.</async><sync/> Taken together: '
    '<promise topic="sum" tokens="10"/><async>two</async> wars.'
)


class Player:
    """Asks a backend by hand, as an interpreter would."""

    def __init__(self, backend: ScriptedBackend, model: Model, prompt: list[int]) -> None:
        self.backend, self.model, self.prompt = backend, model, tuple(prompt)

    @classmethod
    async def ask(cls, backend: ScriptedBackend, prompt: str = "Go", **kwargs: Any) -> Player:
        ids = backend.tokenizer.encode_chat([{"role": "user", "content": prompt}], kwargs)
        return cls(backend, await backend.connect(), ids)

    def encode(self, segments: Sequence[Segment]) -> tuple[int, ...]:
        return self.model.tokenizer.encode_segments(segments)

    def request(
        self, thread: int = 0, written: Sequence[int] = (), *, answer: str = "a", **fields: Any
    ) -> DecodeRequest:
        tags = self.model.tags
        fields.setdefault("stop_ids", (tags.sync, tags.close_async) if tags else ())
        fields.setdefault("max_tokens", 1000)
        return DecodeRequest(answer, thread, (*self.prompt, *written), sampling=Sampling(), **fields)

    async def pieces(self, thread: int = 0, written: Sequence[int] = (), **fields: Any) -> list[Piece]:
        return [piece async for piece in self.backend.decode(self.request(thread, written, **fields))]

    async def text(self, thread: int = 0, written: Sequence[int] = (), **fields: Any) -> str:
        return self.text_of(await self.pieces(thread, written, **fields))

    def text_of(self, pieces: Sequence[Piece]) -> str:
        ids = [token for token in ids_of(pieces) if token not in self.model.end_ids]
        return self.model.tokenizer.decode(ids)


def ids_of(pieces: Sequence[Piece]) -> tuple[int, ...]:
    return tuple(token for piece in pieces for token in piece.ids)


def plain(segments: Sequence[Segment]) -> str:
    return "".join(segment.text for segment in segments)
