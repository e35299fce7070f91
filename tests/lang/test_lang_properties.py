"""Properties of the language that hold for every text, cut and document."""

from __future__ import annotations

from itertools import pairwise

from hypothesis import example, given
from hypothesis import strategies as st
from language_texts import (
    canonical_documents,
    closing,
    outcome,
    outcome_of_tokens,
    texts,
    thorough,
    token_streams,
    without_tags,
)

from pasta_async.lang import (
    MAX_TAG,
    TAG_TOKENS,
    Document,
    Parser,
    check,
    parse,
)


@st.composite
def cuts(draw: st.DrawFn, text: str) -> list[str]:
    """Pieces that join to a text: single characters, or cut anywhere (some pieces empty)."""
    if draw(st.booleans()):
        return list(text)
    places = sorted(draw(st.lists(st.integers(0, len(text)), max_size=8)))
    return [text[start:end] for start, end in pairwise([0, *places, len(text)])]


@thorough
@given(st.data(), texts, st.booleans())
def test_any_cut_gives_the_same_events_nodes_and_diagnostics(
    data: st.DataObject, text: str, inside_chunk: bool
) -> None:
    whole = outcome(Parser("chunk" if inside_chunk else "document"), [text])
    pieces = data.draw(cuts(text))
    assert outcome(Parser("chunk" if inside_chunk else "document"), pieces) == whole


@thorough
@given(token_streams)
def test_text_between_tag_ids_may_be_cut_anywhere(pieces: list[tuple[str, bool]]) -> None:
    characters = [(part, is_tag) for piece, is_tag in pieces for part in ([piece] if is_tag else [*piece])]
    assert outcome_of_tokens(characters) == outcome_of_tokens(pieces)


@thorough
@given(texts)
def test_parse_is_the_parser_and_check_its_diagnostics(text: str) -> None:
    parser = Parser()
    outcome(parser, [text])
    assert parse(text) == parser.document()
    assert check(text) == list(parse(text).diagnostics) == sorted(parser.diagnostics, key=lambda d: d.offset)


@thorough
@given(texts)
@example("<\\\\sync/>")
@example(f"<\\\\\\sync{' ' * (MAX_TAG - 7)}/>")
def test_what_was_read_is_written_as_it_was(text: str) -> None:
    document = parse(text)
    assert document.format() == text + closing(document)
    assert parse(document.format()) == document


@thorough
@given(token_streams)
def test_documents_of_trained_streams_are_read_back(pieces: list[tuple[str, bool]]) -> None:
    *_, document = outcome_of_tokens(pieces)
    assert isinstance(document, Document)
    assert parse(document.format()) == document
    assert not any(token in document.text for token in TAG_TOKENS[3:]) or any(
        "<" in piece for piece, _ in pieces
    )


@thorough
@given(texts)
def test_removing_tags_changes_no_other_character(text: str) -> None:
    assert parse(text).text == without_tags(text)


@thorough
@given(texts)
def test_literal_text_is_text(text: str) -> None:
    parser = Parser()
    events = parser.feed_text(text) + parser.close()
    assert parser.document().text == "".join(event for event in events if isinstance(event, str)) == text
    assert parse(parser.document().format()).text == text


@thorough
@given(texts)
def test_every_diagnostic_has_its_place(text: str) -> None:
    for found in check(text):
        before = text[: found.offset]
        assert found.line == before.count("\n") + 1
        assert found.column == len(before) - (before.rfind("\n") + 1) + 1


@thorough
@given(canonical_documents())
def test_documents_made_by_hand_are_read_back(document: Document) -> None:
    assert parse(document.format()) == document
