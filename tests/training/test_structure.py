"""Annotation from structure alone."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pasta_async.lang import Promise, Sync, parse
from pasta_async.training.data.annotate_structure import Cut, annotate_by_structure, with_bold_heads

LONG = (
    "some words that go on for a while so that this is long enough to be worth a thread of its own in the end"
)
OTHER = LONG.replace("some", "Other").replace(
    "end", "end. Another sentence comes behind, which is rather long too"
)


def chunks(text: str, cut: Cut = "points") -> list[str]:
    document = annotate_by_structure(text, cut=cut)
    assert document.text == text
    return [promise.chunk.text for promise in document.promises if promise.chunk]


@pytest.mark.parametrize(
    "marks", [("1. ", "2. "), ("1) ", "2) "), ("- ", "- "), ("* ", "* "), ("- [ ] ", "- [x] ")]
)
def test_items_become_chunks_and_their_marks_stay(marks: tuple[str, str]) -> None:
    assert chunks(f"Two things:\n{marks[0]}{LONG}\n{marks[1]}{OTHER}\n") == [LONG, OTHER]


def test_an_item_goes_with_all_that_stands_inside() -> None:
    item = f"{LONG}\n   - {LONG}\n\n   {OTHER}"
    assert chunks(f"1. {item}\n2. {OTHER}") == [item, OTHER]


def test_paragraphs_become_chunks_but_the_first_and_what_introduces() -> None:
    assert chunks(f"{LONG}\n\n{LONG}\n\n{LONG}:\n\n{OTHER}\r\n\r\n## {LONG}\n\n{OTHER}") == [
        LONG,
        OTHER,
        OTHER,
    ]


def test_blocks_promise_the_introduction_too() -> None:
    rest = f"\n\n- {LONG}\n- {OTHER}"
    document = annotate_by_structure(f"{LONG}:{rest}", cut="blocks")
    assert document.format().startswith('<promise topic="introduction"')
    assert chunks(f"{LONG}:{rest}", "blocks") == [f"{LONG}:", LONG, OTHER]
    assert chunks(f"{LONG}\n\n{OTHER}", "blocks") == [LONG, OTHER]
    assert chunks(f"# Title{rest}", "blocks") == [LONG, OTHER]


def test_lists_promise_items_alone_and_only_where_most_are_long() -> None:
    assert chunks(f"{LONG}\n\n{OTHER}\n\n- {LONG}\n- {OTHER}\n- Tea\n\nEnjoy {LONG}", "lists") == [
        LONG,
        OTHER,
    ]
    assert chunks(f"- {LONG}\n- {OTHER}\n- Tea\n- Milk", "lists") == []
    for closing, syncs in ((f"Enjoy {LONG}", 0), (f"In conclusion, {LONG}", 1)):
        document = annotate_by_structure(f"- {LONG}\n- {OTHER}\n\n{closing}", cut="lists")
        assert sum(isinstance(node, Sync) for node in document.nodes) == syncs


@pytest.mark.parametrize("closing", [f"Enjoy {LONG}", f"In conclusion, {LONG}"])
def test_a_closing_paragraph_waits_behind_a_sync(closing: str) -> None:
    document = annotate_by_structure(f"- {LONG}\n- {OTHER}\n\n{closing}")
    assert [type(node) for node in document.nodes[-2:]] != [Sync, Promise]
    assert document.format().endswith(f"</async><sync/>\n\n{closing}")
    essay = annotate_by_structure(f"{LONG}\n\n{LONG}\n\n{OTHER}\n\nOverall, {LONG}")
    assert essay.format().endswith(f"</async><sync/>\n\nOverall, {LONG}")


def test_code_tables_and_quotations_stay_whole() -> None:
    code = f"```\n- {LONG}\n- {OTHER}\n```"
    table = f"| a | b |\n|---|---|\n| {LONG} | {OTHER} |"
    assert chunks(f"{LONG}\n\n{code}\n\n{table}\n\n> {LONG}\n> {OTHER}") == []


def test_one_chunk_alone_and_short_items_are_not_worth_it() -> None:
    assert chunks(f"{LONG}\n\n{OTHER}") == []
    assert chunks("- one\n- two\n- three") == []
    assert chunks(f"- {LONG}\n- two\n- {OTHER}") == [LONG, OTHER]


def topics(text: str) -> list[str]:
    return [promise.topic for promise in annotate_by_structure(text, least=4).promises]


def test_topics_are_a_heading_or_the_most_telling_words_of_a_sentence() -> None:
    assert topics(f'1. **The history of tea**: {LONG}\n2. Then you boil the "water" {LONG}') == [
        "history tea",
        "boil water enough",
    ]
    assert topics(
        "- Provide a clean and quiet room for your cat.\n- Provide your cat with a balanced diet.\n"
        "- Make sure that your cat has plenty of water. Water keeps it well."
    ) == ["Provide clean quiet", "Provide balanced diet", "Make plenty water"]


MARKUP = "- |1. |2) |\n|\n\n|   |a: |In conclusion, |<sync/>|```\n|> |\r|# |<!-- "
PIECES = [*MARKUP.split("|"), LONG, "| ", "é\u2028", '"x" ']
TEXTS = st.lists(st.sampled_from(PIECES), max_size=25).map("".join)


@given(TEXTS, st.sampled_from(["points", "blocks", "lists", "details"]), st.sampled_from([0, 20]))
def test_any_text_stays_as_it_is(text: str, cut: Cut, least: int) -> None:
    document = annotate_by_structure(text, cut=cut, least=least)
    assert document.text == text
    assert not parse(document.format()).diagnostics
    assert parse(document.format()) == document


def test_heads_of_items_become_bold_and_topics_tell_which_items_have_one() -> None:
    items = f"1. The history: {LONG}\n2. **taste**: {LONG}\n3. Drink it hot. {LONG}\n"
    document = with_bold_heads(annotate_by_structure(f"See: {LONG}\n\n{items}", cut="blocks"))
    begins = [promise.text[:16] for promise in document.promises]
    assert begins == ["See: some words ", "**The history**:", "**taste**: some ", "Drink it hot. so"]
    assert [promise.topic[:5] for promise in document.promises] == ["intro", "Histo", "Taste", "drink"]
    assert parse(document.format()) == document


@given(TEXTS)
def test_bold_heads_only_add_stars(text: str) -> None:
    document = with_bold_heads(annotate_by_structure(text, cut="blocks", least=0))
    assert document.text.replace("*", "") == text.replace("*", "")
    assert parse(document.format()) == document


def test_siblings_have_different_topics() -> None:
    document = annotate_by_structure(f"- {LONG}, one\n- {LONG}, two\n- {LONG}, two\n")
    different = [promise.topic for promise in document.promises]
    assert len(set(different)) == 3
    assert all(len(topic.split()) <= 3 for topic in different)
