"""The check of an annotator's reply."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pasta_async.lang import Chunk, Document, Promise, Sync, check, parse
from pasta_async.training.data.annotate_endpoint import EXAMPLES, check_reply, first_prompt
from pasta_async.training.data.corpus import plain_record
from pasta_async.training.views import Mark, insert_tags, rough_tokens

ORIGINAL = (
    "Both are old.\n\nTea is from China.  Many drink it.\n\nCoffee is from Ethiopia.\n\nSo take your pick."
)
RIGHT = (
    'Both are old.\n\n<promise topic="tea" tokens="10"/><async>Tea is from China.  Many drink it.</async>\n\n'
    '<promise topic="coffee" tokens="10"/><async>Coffee is from Ethiopia.</async>'
    "<sync/>\n\nSo take your pick."
)


def accepted(reply: str, original: str = ORIGINAL) -> Document:
    checked = check_reply(original, reply, rough_tokens)
    assert isinstance(checked, Document), checked
    return checked


def problems(reply: str, original: str = ORIGINAL) -> list[str]:
    """The codes of what is wrong with a reply."""
    checked = check_reply(original, reply, rough_tokens)
    assert not isinstance(checked, Document)
    assert all(problem.code in problem.message for problem in checked)
    return [problem.code for problem in checked]


@pytest.mark.parametrize(
    "reply",
    [
        pytest.param(f"\n```\n{RIGHT}\n```\n", id="in a code fence"),
        pytest.param(" ".join(RIGHT.split()), id="line breaks lost"),
        pytest.param(RIGHT.replace("async>", "async>\n").replace("</async>", " </async>"), id="padded"),
        pytest.param(RIGHT.replace('"/><async>', '"/>\n<async>'), id="apart"),
        pytest.param(RIGHT.replace('tokens="10"', 'tokens="7000"'), id="wrong estimate"),
        pytest.param(RIGHT.replace(' tokens="10"', ""), id="no estimate"),
        pytest.param(RIGHT.replace('"', "'"), id="other quotes"),
        pytest.param(RIGHT.replace("<sync/>\n\n", "\n\n<sync/>"), id="sync further on"),
    ],
)
def test_white_space_estimates_and_the_form_of_tags_are_put_right(reply: str) -> None:
    assert accepted(reply).format() == RIGHT


@pytest.mark.parametrize(
    ("wrong", "code"),
    [
        (RIGHT.replace("old", "ancient"), "text-changed"),
        (RIGHT.replace("So take", "Take"), "text-changed"),
        (RIGHT + " Enjoy!", "text-changed"),
        ("Here you are:\n\n" + RIGHT, "text-changed"),
        ("", "text-changed"),
        (RIGHT.replace('topic="tea"', 'topic="all about green tea"'), "topic-long"),
        (RIGHT.replace('topic="tea" ', ""), "topic-missing"),
        (RIGHT.replace("Many drink it.</async>", "Many drink it."), "promise-nested"),
        (RIGHT.replace("<sync/>", "<sync/><sync/>"), "sync-idle"),
        (RIGHT.replace("So take", '<promise topic="x" tokens="10"/>So take'), "promise-open"),
        (RIGHT.replace("So take", '<promise topic="x" tokens="10"/><async> </async>So take'), "chunk-empty"),
    ],
)
def test_what_is_wrong_is_named_by_its_code(wrong: str, code: str) -> None:
    assert code in problems(wrong)


def test_the_annotator_is_shown_where_its_text_differs() -> None:
    checked = check_reply(ORIGINAL, RIGHT.replace("old", "ancient"), rough_tokens)
    assert not isinstance(checked, Document)
    (problem,) = checked
    assert "Both are old." in problem.message and "Bothareancient" in problem.message


@st.composite
def annotated(draw: st.DrawFn) -> tuple[str, str]:
    """A text, and a right reply to it with white space of its own."""
    words = draw(st.lists(st.sampled_from(["tea", "<sync/>", "a.", "é", "<", "\\"]), min_size=1, max_size=12))
    spaces = st.sampled_from([" ", "\n", "\n\n", "  \n", "\t"])
    text = "".join(word + draw(spaces) for word in words)
    starts = [0, *(k + 1 for k, c in enumerate(text) if c.isspace() and not text[k + 1 : k + 2].isspace())]
    starts = [k for k in starts if k < len(text)]
    chosen = sorted(draw(st.sets(st.sampled_from(starts), max_size=4)))
    marks = [Mark(k, k + len(text[k:].split()[0]), Promise("x", 10, Chunk())) for k in chosen]
    if marks and draw(st.booleans()):
        marks.insert(1, Mark(marks[0].end, marks[0].end, Sync()))
    reply = insert_tags(text, marks)
    return text, escape_space(reply.format(), draw)


def escape_space(reply: str, draw: st.DrawFn) -> str:
    """The reply with line breaks made spaces, or not."""
    return reply.replace("\n", " ") if draw(st.booleans()) else reply


@given(annotated())
def test_removing_the_tags_of_what_passes_gives_the_original(case: tuple[str, str]) -> None:
    text, reply = case
    document = accepted(reply, text)
    assert document.text == text
    assert parse(document.format()) == document
    assert check(document.format()) == []


@pytest.mark.parametrize(("prompt", "written"), EXAMPLES)
def test_our_examples_pass_their_own_check(prompt: str, written: str) -> None:
    assert accepted(written, parse(written).text).format() == written


def test_the_prompt_shows_our_examples_and_then_the_response() -> None:
    messages = first_prompt(plain_record([{"role": "user", "content": "Tea?"}], "Yes, <sync/>."))
    assert [message["role"] for message in messages] == [
        "system",
        *("user", "assistant") * len(EXAMPLES),
        "user",
    ]
    assert messages[-1]["content"] == "PROMPT:\nTea?\n\nRESPONSE:\nYes, <\\sync/>."
