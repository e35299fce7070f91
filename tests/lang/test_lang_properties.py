"""Properties of the language that hold for every text, cut and document."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import example, given
from hypothesis import strategies as st

from pasta_async.lang import (
    MAX_TAG,
    Chunk,
    ChunkParser,
    Code,
    Document,
    Ignored,
    MainParser,
    Promise,
    Text,
    ThreadParser,
    parse,
)
from tests.helpers.language_texts import canonical_documents, closing, outcome, texts, token_streams


@given(token_streams, st.sampled_from([MainParser, ChunkParser]))
def test_a_threads_text_may_be_cut_anywhere(pieces: list[tuple[str, bool]], kind: type[ThreadParser]) -> None:
    characters = [(part, is_tag) for piece, is_tag in pieces for part in ([piece] if is_tag else [*piece])]
    assert outcome(kind(), characters) == outcome(kind(), pieces)


@given(token_streams, st.booleans())
def test_what_threads_write_is_read_back(pieces: list[tuple[str, bool]], in_chunk: bool) -> None:
    parser = ChunkParser() if in_chunk else MainParser()
    outcome(parser, pieces)
    if in_chunk:
        body = tuple(node for node in parser.nodes if isinstance(node, Text | Ignored))
        document = Document((Promise("a", 10, Chunk(body)),))
    else:
        nodes = (replace(node, chunk=Chunk()) if isinstance(node, Promise) else node for node in parser.nodes)
        document = Document(tuple(nodes))
    assert parse(document.format()) == document


@given(texts, st.sampled_from([MainParser, ChunkParser]))
def test_literal_text_is_text(text: str, kind: type[ThreadParser]) -> None:
    parser = kind()
    readings = parser.feed_text(text) + parser.close()
    assert "".join(map(str, readings)) == Document(parser.nodes).text == text
    assert parse(Document(parser.nodes).format()).text == text


@given(texts)
@example("<\\\\sync/>")
@example(f"<\\\\\\sync{' ' * (MAX_TAG - 7)}/>")
def test_a_document_that_was_read_is_written_and_read_back(text: str) -> None:
    document = parse(text)
    written = document.format()
    if not {Code.TAG_FORM, Code.ASYNC_APART} & {found.code for found in document.diagnostics}:
        assert written == text + closing(document)
    assert parse(written) == document


@given(texts)
def test_every_diagnostic_has_its_place(text: str) -> None:
    for diagnostic in parse(text).diagnostics:
        before = text[: diagnostic.offset]
        assert diagnostic.line == before.count("\n") + 1
        assert diagnostic.column == len(before) - (before.rfind("\n") + 1) + 1


@given(canonical_documents())
def test_documents_made_by_hand_are_read_back(document: Document) -> None:
    assert parse(document.format()) == document
