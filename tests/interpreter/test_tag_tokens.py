"""The tag tokens that may come next: whatever a model prefers, its output is well-formed."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pasta_async.lang import STYLE_CODES, TAG_TOKENS, Code, MainParser
from pasta_async.tag_tokens import TagGrammar, TagIds, TagState

TAGS = TagIds(*range(6))
END, WORD, DIGIT, COLON = 6, 7, 8, 9
WRITTEN = {**dict(enumerate(TAG_TOKENS)), END: "", WORD: "a ", DIGIT: "10", COLON: ": "}


def token_bytes(token: int) -> bytes:
    return WRITTEN[token].encode()


preferences = st.lists(st.permutations(list(WRITTEN)), max_size=60)


def decode(grammar: TagGrammar, banned: set[int], orders: list[list[int]]) -> list[int]:
    """The ids of a model that prefers tokens in these orders, one order for each choice."""
    state, ids = TagState(grammar, []), list[int]()
    for order in orders:
        rule = state.rule
        excluded = set(order) - {rule.instead} if rule.excluded is None else {*rule.excluded}
        if rule.instead is not None and order[0] in excluded:
            order = [rule.instead]
        preferred = next(choice for choice in order if choice not in excluded | banned)
        ids.append(state.add(preferred))
        if ids[-1] == END:
            break
    return ids


def excluded(state: TagState) -> set[int]:
    return {*(state.rule.excluded or ())}


def codes(ids: list[int]) -> set[Code]:
    parser = MainParser()
    for token in ids:
        feed = parser.feed_tag if token in TAGS else parser.feed_text
        feed(WRITTEN[token])
    parser.close(cut=not ids or ids[-1] != END)
    return {diagnostic.code for diagnostic in parser.diagnostics} - STYLE_CODES


@given(preferences)
def test_main_writes_tags_in_due_form(orders: list[list[int]]) -> None:
    grammar = TagGrammar(TAGS, (END,), token_bytes, chunk=False)
    banned = {TAGS.open_async, TAGS.close_async}
    ids = decode(grammar, banned, orders)
    # An estimate of no number is the model's own business: the default cap is used.
    assert codes(ids) <= {Code.TOKENS_BAD, Code.PROMISE_OPEN}
    assert END not in ids or ids[-2:-1] != [TAGS.promise]


@given(preferences)
def test_whatever_would_end_a_chunk_is_its_closing_tag(orders: list[list[int]]) -> None:
    banned = {TAGS.open_async, TAGS.tokens, TAGS.end}
    ids = decode(TagGrammar(TAGS, (END,), token_bytes, chunk=True), banned, orders)
    assert {*ids} <= {TAGS.close_async, WORD, DIGIT, COLON}


@pytest.mark.parametrize("topics", [frozenset[str](), frozenset({"tea"})])
def test_a_sync_needs_something_to_wait_for(topics: frozenset[str]) -> None:
    state = TagState(TagGrammar(TAGS, (END,), token_bytes, chunk=False, topics=topics), [WORD])
    assert (TAGS.sync not in excluded(state)) is bool(topics)
    for token in (TAGS.promise, WORD, TAGS.end):
        state.add(token)
    assert TAGS.sync not in excluded(state)
    state.add(TAGS.sync)
    assert TAGS.sync in excluded(state)


def test_a_request_that_goes_on_inside_a_tag_still_closes_it() -> None:
    state = TagState(TagGrammar(TAGS, (END,), token_bytes, chunk=False), [WORD, TAGS.promise, WORD])
    assert state.rule.instead == TAGS.end
    while state.rule.excluded is not None:  # the topic grows too long
        state.add(WORD)
    assert state.rule.instead == TAGS.end


def test_a_topic_ends_where_punctuation_begins() -> None:
    state = TagState(TagGrammar(TAGS, (END,), token_bytes, chunk=False), [COLON])
    written = [TAGS.promise, WORD, COLON, DIGIT, COLON]
    assert [state.add(token) for token in written] == [TAGS.promise, WORD, TAGS.end, DIGIT, COLON]


def test_a_topic_of_an_earlier_promise_has_to_go_on_until_the_next_sync() -> None:
    grammar = TagGrammar(TAGS, (END,), token_bytes, chunk=False, topics=frozenset({"a"}))
    state = TagState(grammar, [WORD, TAGS.promise])
    assert [state.add(WORD), state.add(COLON)] == [WORD, COLON]  # "a", and what makes it another one
    assert TAGS.end not in excluded(state)
    for token in (TAGS.end, TAGS.promise, WORD):
        state.add(token)
    assert {TAGS.end, TAGS.tokens} <= excluded(state)
    for token in (WORD, TAGS.end, TAGS.sync, TAGS.promise, WORD):
        state.add(token)
    assert TAGS.end not in excluded(state)
