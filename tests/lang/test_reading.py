"""Documents read from texts, their written form, and threads read token by token."""

from __future__ import annotations

import pytest

from pasta_async.lang import (
    MAX_ESTIMATE,
    MAX_TAG,
    TAG_TOKENS,
    Chunk,
    ChunkEnded,
    ChunkParser,
    Document,
    Ignored,
    MainParser,
    Promise,
    Reading,
    Sync,
    Text,
    ThreadParser,
    escape,
    parse,
    views,
)

WARS = (
    'Both wars reshaped Europe. <promise topic="causes" tokens="60"/><async>The causes were many.</async> '
    '<promise topic="outcome" tokens="40"/><async>The outcome was peace.</async><sync/> Taken together, so.'
)


def test_a_document_in_its_exact_form() -> None:
    document = parse(WARS, strict=True)
    assert document == Document(
        (
            Text("Both wars reshaped Europe. "),
            Promise("causes", 60, Chunk((Text("The causes were many."),))),
            Text(" "),
            Promise("outcome", 40, Chunk((Text("The outcome was peace."),))),
            Sync(),
            Text(" Taken together, so."),
        )
    )
    assert document.diagnostics == ()
    assert document.format() == WARS
    assert document.text == (
        "Both wars reshaped Europe. The causes were many. The outcome was peace. Taken together, so."
    )
    assert [promise.topic for promise in document.promises] == ["causes", "outcome"]


@pytest.mark.parametrize(("gap", "codes"), [("", []), (" \n", ["async-apart"])])
def test_white_space_between_a_promise_and_its_chunk_is_text_of_the_chunk(gap: str, codes: list[str]) -> None:
    document = parse(f"{Promise('a', 10).source}{gap}<async>b</async>")
    assert document.nodes == (Promise("a", 10, Chunk((Text(f"{gap}b"),))),)
    assert document.text == f"{gap}b"
    assert [found.code for found in document.diagnostics] == codes


def test_an_ignored_tag_comes_between_a_promise_and_its_chunk() -> None:
    document = parse(f"{Promise('a', 10).source} </promise><async>b")
    assert document.nodes == (
        Promise("a", 10),
        Text(" "),
        Ignored("</promise>"),
        Ignored("<async>"),
        Text("b"),
    )


def test_in_a_whole_document_a_promise_inside_a_chunk_is_ignored() -> None:
    """There `</async>` is written, so that it is known what belongs to the chunk."""
    inner = '<promise topic="b" tokens="10"/>'
    document = parse(f'<promise topic="a" tokens="10"/><async>One {inner} two</async>')
    assert [promise.chunk for promise in document.promises] == [
        Chunk((Text("One "), Ignored(inner), Text(" two")))
    ]
    assert [found.code for found in document.diagnostics] == ["promise-nested"]


@pytest.mark.parametrize(
    ("tag", "topic", "tokens"),
    [
        ('<promise topic="a b" tokens="60"/>', "a b", 60),
        ("<promise topic='a b' tokens='60'/>", "a b", 60),
        ("<promise topic=a tokens=60/>", "a", 60),
        ("<promise topic=\u201ca b\u201d tokens=\u201860\u2019/>", "a b", 60),
        ('<promise topic="a b" tokens="60">', "a b", 60),
        ('<promise  topic = "a b"\n\ttokens = "60" / >', "a b", 60),
        ('<promise tokens="60" topic="a b"/>', "a b", 60),
        ('<promise topic="a > b" tokens="60"/>', "a > b", 60),
        ("<promise topic=\u201ca > b\u201d tokens=\u2018>60\u2019/>", "a > b", None),
        ('<promise topic="it\'s" tokens="060"/>', "it's", 60),
        ('<promise topic="a" tokens=" 60 "/>', "a", 60),
        ('<promise topic="a" tokens="55"/>', "a", 60),
        ('<promise topic="a" tokens="1"/>', "a", 10),
        (f'<promise topic="a" tokens="{MAX_ESTIMATE}"/>', "a", MAX_ESTIMATE),
        (f'<promise topic="a" tokens="{MAX_ESTIMATE + 1}"/>', "a", None),
        ('<promise topic="a" tokens="0"/>', "a", None),
        ('<promise topic="a" tokens="\u0661\u0660"/>', "a", None),
        ('<promise topic="a" tokens=""/>', "a", None),
        ('<promise topic="a"/>', "a", None),
        ('<promise tokens="60"/>', "", 60),
        ("<promise/>", "", None),
        ("<promise>", "", None),
    ],
)
def test_forms_of_a_promise(tag: str, topic: str, tokens: int | None) -> None:
    document = parse(f"{tag}<async>x</async>")
    assert document == Document((Promise(topic, tokens, Chunk((Text("x"),)), source=tag),))
    assert document.format() == f"{tag}<async>x</async>"


@pytest.mark.parametrize(
    "tag",
    [
        '<promise topic="a" tokens="60" after="b"/>',
        '<promise topic="a" topic="b" tokens="60"/>',
        "<promise causes 60/>",
        '<promise topic="a tokens="60"/>',
        '<promise/topic="a"/>',
        '<promise topic="a/>',
        '<promise "a>',
        "</promise>",
        "<sync now/>",
        '<sync topic="a"/>',
        "<async>",
    ],
)
def test_tags_that_are_ignored(tag: str) -> None:
    promise = '<promise topic="a" tokens="10"/><async>x</async>'
    document = parse(f"{promise}{tag} b")
    assert document.nodes[1:] == (Ignored(tag), Text(" b"))
    assert len(document.diagnostics) == 1
    assert document.format() == f"{promise}{tag} b"


@pytest.mark.parametrize("tag", ["<sync>", "<sync />", "<sync\n/>", "<sync/ >"])
def test_forms_of_a_sync(tag: str) -> None:
    document = parse(f"<promise/>{tag}")
    assert document.nodes[1] == Sync()
    assert document.format() == "<promise/><sync/>"
    assert "tag-form" in [found.code for found in document.diagnostics]


@pytest.mark.parametrize("tag", ["<async >", '<async topic="a" tokens="10">', "<async topic='a'>"])
def test_forms_of_an_opening_tag(tag: str) -> None:
    document = parse(f'<promise topic="a" tokens="10"/>{tag}x</async>')
    assert document.promises[0].chunk == Chunk((Text("x"),))
    assert [found.code for found in document.diagnostics] == ["tag-form"]


@pytest.mark.parametrize("tag", ["<async/>", "<async x>", '<async id="1">'])
def test_an_opening_tag_that_would_swallow_the_rest_is_ignored(tag: str) -> None:
    assert parse(f"<promise/>{tag}rest").nodes[1:] == (Ignored(tag), Text("rest"))


@pytest.mark.parametrize(
    "text",
    [
        "<Promise/>",
        "<synchronous>",
        "<sync",
        "< sync/>",
        "1 < 2 > 0",
        '<promise topic="a<b" tokens="10"/>',
        '<promise topic="a>',
        f'<promise topic="{"a > " * (MAX_TAG // 4)}"/>',
        "<-sync/>",
        "<async",
        f"<sync{' ' * (MAX_TAG - 6)}/>",
        "\\<",
        "<\\>",
        "<\\synonym>",
    ],
)
def test_texts_that_hold_no_tag(text: str) -> None:
    assert parse(text) == Document((Text(text),))
    assert parse(text).format() == parse(text).text == text


def test_a_tag_may_be_as_long_as_the_limit() -> None:
    tag = f"<sync{' ' * (MAX_TAG - 7)}/>"
    assert len(tag) == MAX_TAG
    assert parse(tag) == Document((Ignored(tag),))


@pytest.mark.parametrize(
    "literal",
    [
        "<sync/>",
        "</async>",
        '<promise topic="a" tokens="10"/>',
        '<promise topic="a > b" tokens="10"/>',
        "<\\sync/>",
        "<\\\\async>",
        f"<sync{' ' * 505}/>",
    ],
)
def test_literal_tags(literal: str) -> None:
    written = escape(f"say {literal}!")
    assert written == f"say <\\{literal[1:]}!"
    assert parse(written) == Document((Text(f"say {literal}!"),))
    assert parse(written).diagnostics == ()
    assert parse(written).format() == written


# Threads --------------------------------------------------------------------------------------------------

OPEN, TOKENS, END, ASYNC, CLOSE, SYNC = TAG_TOKENS


def feed(parser: ThreadParser, *pieces: str, cut: bool = False) -> list[Reading]:
    """Feed tag tokens as tags, and everything else as text; then close."""
    readings: list[Reading] = []
    for piece in pieces:
        readings += parser.feed_tag(piece) if piece in TAG_TOKENS else parser.feed_text(piece)
    return readings + parser.close(cut=cut)


def codes(parser: ThreadParser) -> list[str]:
    return [str(diagnostic.code) for diagnostic in parser.diagnostics]


@pytest.mark.parametrize(
    "topic", ["a > b", "a < b", 'so "called"', "R&D", "&gt;", "<sync/ >", '" tokens="1', "/>"]
)
def test_a_topic_is_whatever_stands_between_the_tokens(topic: str) -> None:
    parser = MainParser()
    feed(parser, "So ", OPEN, topic, TOKENS, "60", END, " on.")
    document = Document(parser.nodes)
    assert document.text == "So  on."
    assert [(promise.topic, promise.tokens) for promise in document.promises] == [(topic, 60)]
    assert parse(document.format()) == document
    target = views(document)[0].target
    assert "".join(segment.text for segment in target) == f"So {OPEN}{topic}{TOKENS}60{END} on."


@pytest.mark.parametrize(
    ("pieces", "text", "expected"),
    [
        ((OPEN, "a", SYNC, " b"), "a b", ["tag-broken", "sync-idle"]),
        ((OPEN, "a", OPEN, "b", TOKENS, "10", END), "a", ["tag-broken"]),
        ((OPEN, "a", TOKENS), "a", ["tag-cut"]),
        ((TOKENS, "a", END), "a", []),
        ((OPEN, "a" * MAX_TAG, END), "a" * MAX_TAG, ["tag-broken"]),
        ((OPEN, "a" * (MAX_TAG - 19), TOKENS, END), "a" * (MAX_TAG - 19), ["tag-broken"]),
        ((OPEN, "a", TOKENS, "1", TOKENS, "2", END), "", ["attributes-bad"]),
        ((OPEN, "a", END), "", []),
        ((OPEN, "a", TOKENS, END), "", []),
    ],
)
def test_tag_tokens_that_make_no_tag_are_not_shown(
    pieces: tuple[str, ...], text: str, expected: list[str]
) -> None:
    parser = MainParser()
    readings = feed(parser, *pieces)
    document = Document(parser.nodes)
    assert document.text == "".join(reading for reading in readings if isinstance(reading, str)) == text
    assert codes(parser) == expected
    assert parse(document.format()) == document


def test_half_a_promise_is_left_out_where_the_thread_was_cut() -> None:
    parser = MainParser()
    assert feed(parser, "So ", OPEN, "a", cut=True) == ["So "]
    assert (parser.nodes, codes(parser)) == ((Text("So "),), [])


def test_a_chunk_threads_text_ends_with_its_closing_tag() -> None:
    parser = ChunkParser()
    assert feed(parser, "A ", ASYNC, "chunk", CLOSE, " and more", SYNC) == ["A", " ", "chunk", ChunkEnded()]
    assert parser.nodes == (Text("A "), Ignored("<async>"), Text("chunk"))
    assert codes(parser) == ["async-stray"]


@pytest.mark.parametrize(
    ("left_out", "kept"), [("\n3. ", ""), (" \n\n- ", ""), ("", " "), ("", "\n42"), ("", "\n42 ")]
)
def test_a_list_marker_before_a_threads_closing_tag_is_left_out(left_out: str, kept: str) -> None:
    parser = ChunkParser()
    feed(parser, f"Tea.{kept}{left_out}", CLOSE)
    assert (parser.nodes, parser.diagnostics) == ((Text(f"Tea.{kept}"),), [])


@pytest.mark.parametrize("kept", ["In\n1918", "\n42", "\n42 ", "Costs 3.", "A\n3. x", "well-"])
def test_what_is_no_list_marker_stays_in_front_of_such_a_tag(kept: str) -> None:
    parser = ChunkParser()
    feed(parser, *kept, SYNC)
    assert parser.nodes == (Text(kept),)
