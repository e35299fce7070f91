"""What the parser makes of texts: documents, events, written form."""

from __future__ import annotations

import pytest

from pasta_async.lang import (
    MAX_ESTIMATE,
    MAX_TAG,
    TAG_TOKENS,
    Chunk,
    ChunkBegun,
    ChunkEnded,
    Document,
    Ignored,
    IgnoredRead,
    Node,
    Parser,
    Promise,
    PromiseRead,
    Reading,
    Sync,
    SyncRead,
    Text,
    escape,
    parse,
    views,
)

WARS = (
    'Both wars reshaped Europe. <promise topic="causes" tokens="60"/><async>The causes were many.</async> '
    '<promise topic="outcome" tokens="40"/><async>The outcome was peace.</async><sync/> Taken together, so.'
)


def feed_all(parser: Parser, *pieces: str) -> list[Reading]:
    return [event for piece in pieces for event in parser.feed(piece)] + parser.close()


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


def test_the_empty_text_is_the_empty_document() -> None:
    assert parse("") == Document()
    assert Document().format() == Document().text == ""


def test_events_tell_where_tags_end() -> None:
    events = feed_all(Parser(), WARS)
    ends = [event.end for event in events if not isinstance(event, str)]
    assert [WARS[:end].endswith(">") for end in ends] == [True] * 7
    assert [type(event) for event in events if not isinstance(event, str)] == [
        PromiseRead,
        ChunkBegun,
        ChunkEnded,
        PromiseRead,
        ChunkBegun,
        ChunkEnded,
        SyncRead,
    ]


def test_text_comes_out_at_once_and_a_possible_tag_is_held() -> None:
    parser = Parser()
    assert parser.feed("Hello <") == ["Hello "]
    assert parser.feed("sy") == []
    assert parser.feed("nonym") == ["<synonym"]
    assert parser.feed(" <pro") == [" "]
    assert parser.close() == ["<pro"]
    assert parser.document() == Document((Text("Hello <synonym <pro"),))


def test_white_space_behind_a_promise_waits_for_what_follows() -> None:
    promise = Promise("a", 10)
    parser = Parser()
    assert parser.feed(promise.source) == [PromiseRead(promise, 32)]
    assert parser.feed(" \n") == []
    assert parser.feed("b") == [" \n", "b"]

    parser = Parser()
    parser.feed(promise.source + " \n")
    assert parser.feed("<async>") == [ChunkBegun(41, " \n")]
    assert parser.nodes == (Promise("a", 10, Chunk(), gap=" \n"),)


def test_an_ignored_tag_comes_between_a_promise_and_its_chunk() -> None:
    promise = Promise("a", 10)
    events = feed_all(Parser(), f"{promise.source} </promise><async>b")
    assert events == [
        PromiseRead(promise, 32),
        " ",
        IgnoredRead("</promise>", 43),
        IgnoredRead("<async>", 50),
        "b",
    ]


def test_nodes_so_far_can_be_read_at_any_time() -> None:
    parser = Parser()
    parser.feed('one <promise topic="a" tokens="10"/><async>two <sy')
    assert parser.nodes == (Text("one "), Promise("a", 10, Chunk((Text("two "),))))
    parser.feed("nonym</async> three")
    assert parser.document().text == "one two <synonym three"


def test_a_promise_is_open_until_a_sync_even_when_it_is_kept() -> None:
    parser = Parser("main")
    events = feed_all(parser, '<promise topic="a" tokens="10"/>', "<sync/>", "<sync/>")
    assert events[1:] == [SyncRead(39, "<sync/>"), IgnoredRead("<sync/>", 46)]
    assert parser.diagnostics[0].code == "sync-idle"
    assert len(parser.diagnostics) == 1, "a main thread's promises are kept elsewhere"


def test_a_halting_parser_forgets_what_follows_a_sync_in_its_piece() -> None:
    parser = Parser("main")
    events = parser.feed("<promise/><sync/> so <async> <sync\n")
    assert events[1:] == [SyncRead(17, "<sync/>")]
    parser.feed("/> <sync/>")
    parser.close()
    assert parser.nodes[2:] == (Text("/> "), Ignored("<sync/>"))
    place = parser.diagnostics[-1]
    assert (place.code, place.line, place.column) == ("sync-idle", 2, 4)


def test_a_chunk_threads_text_ends_with_its_closing_tag() -> None:
    parser = Parser("chunk")
    assert parser.feed("A <async>chunk </as") == [
        "A",
        " ",
        IgnoredRead("<async>", 9),
        "chunk",
    ]
    assert parser.end is None
    assert parser.feed("ync> and more") == [" ", ChunkEnded(23)]
    assert parser.end == 23
    assert parser.feed("even <more>") == parser.close() == []
    assert parser.nodes == (Text("A "), Ignored("<async>"), Text("chunk "))
    assert [found.code for found in parser.diagnostics] == ["async-stray"]


@pytest.mark.parametrize("tag", ['<promise topic="a" tokens="10"/>', "<promise topic='a'>", "<sync/>"])
@pytest.mark.parametrize("left_out", ["", " ", "\n\n", "\n3. ", " \n \n- ", "\r\n12)", "\n\t\u2022 "])
def test_a_promise_or_sync_ends_a_chunk_threads_text(tag: str, left_out: str) -> None:
    parser = Parser("chunk")
    assert parser.feed(f"Tea.\nIt is mild.{left_out}") == ["Tea.\nIt is mild."]
    ended = [ChunkEnded(16 + len(left_out), "nested")]
    assert parser.feed(f"{tag} And more</async>") == ended
    assert parser.end == ended[0].end
    assert parser.feed("even more") == parser.close() == []
    assert parser.nodes == (Text("Tea.\nIt is mild."),)
    (found,) = parser.diagnostics
    line, column = 2 + left_out.count("\n"), len((f"It is mild.{left_out}").rpartition("\n")[2]) + 1
    assert (found.code.endswith("-nested"), found.offset) == (True, parser.end)
    assert (found.line, found.column) == (line, column)


@pytest.mark.parametrize(("left_out", "kept"), [("\n3. ", ""), (" \n\n- ", ""), ("", " "), ("", "\n42")])
def test_a_list_marker_before_a_threads_closing_tag_is_left_out(left_out: str, kept: str) -> None:
    parser = Parser("chunk")
    feed_all(parser, f"Tea.{kept}{left_out}", "</async>")
    assert (parser.nodes, parser.diagnostics) == ((Text(f"Tea.{kept}"),), [])


@pytest.mark.parametrize("kept", ["In\n1918", "\n42", "Costs 3.", "A\n3. x", "well-"])
def test_what_is_no_list_marker_stays_in_front_of_such_a_tag(kept: str) -> None:
    parser = Parser("chunk")
    feed_all(parser, *kept, "<sync/>")
    assert parser.nodes == (Text(kept),)


def test_a_promises_first_tag_token_ends_a_chunk_threads_text() -> None:
    parser = Parser("chunk")
    assert feed_all(parser, "Tea.", ' <promise topic="') == ["Tea.", ChunkEnded(5, "nested")]
    parser = Parser("chunk")
    readings = [*parser.feed_text("Tea. "), *parser.feed_tag(TAG_TOKENS[0])]
    assert readings == ["Tea.", ChunkEnded(5, "nested")]
    assert parser.feed_text("more") == []


def test_in_a_whole_document_a_promise_inside_a_chunk_is_ignored() -> None:
    """There `</async>` is written, so that it is known what belongs to the chunk."""
    inner = '<promise topic="b" tokens="10"/>'
    document = parse(f'<promise topic="a" tokens="10"/><async>One {inner} two</async>')
    assert [promise.chunk for promise in document.promises] == [
        Chunk((Text("One "), Ignored(inner), Text(" two")))
    ]
    assert [found.code for found in document.diagnostics] == ["promise-nested"]


def test_a_chunk_thread_without_closing_tag() -> None:
    parser = Parser("chunk")
    readings = ["A", " chunk", " <b"]
    assert feed_all(parser, "A", " chunk <", "b") == readings
    assert parser.nodes == (Text("A chunk <b"),)
    assert [found.code for found in parser.diagnostics] == ["async-unclosed"]


@pytest.mark.parametrize(
    ("tag", "topic", "tokens"),
    [
        ('<promise topic="a b" tokens="60"/>', "a b", 60),
        ("<promise topic='a b' tokens='60'/>", "a b", 60),
        ("<promise topic=a tokens=60/>", "a", 60),
        ("<promise topic=a/b tokens=60 />", "a/b", 60),
        ("<promise topic=\u201ca b\u201d tokens=\u201860\u2019/>", "a b", 60),
        ('<promise topic="a b" tokens="60">', "a b", 60),
        ('<promise  topic = "a b"\n\ttokens = "60" / >', "a b", 60),
        ('<promise tokens="60" topic="a b"/>', "a b", 60),
        ('<promise topic="a > b" tokens="60"/>', "a > b", 60),
        ('<promise topic="a>" tokens="60"/>', "a>", 60),
        ('<promise topic = ">" tokens="60">', ">", 60),
        ("<promise topic='a > \"b\"' tokens='60'/>", 'a > "b"', 60),
        ("<promise topic=\u201ca > b\u201d tokens=\u2018>60\u2019/>", "a > b", None),
        ('<promise topic="it\'s" tokens="060"/>', "it's", 60),
        ('<promise topic="a" tokens=" 60 "/>', "a", 60),
        ('<promise topic="a" tokens="55"/>', "a", 60),
        ('<promise topic="a" tokens="1"/>', "a", 10),
        (f'<promise topic="a" tokens="{MAX_ESTIMATE}"/>', "a", MAX_ESTIMATE),
        (f'<promise topic="a" tokens="{MAX_ESTIMATE + 1}"/>', "a", None),
        (f'<promise topic="a" tokens="{"9" * 400}"/>', "a", None),
        ('<promise topic="a" tokens="0"/>', "a", None),
        ('<promise topic="a" tokens="-10"/>', "a", None),
        ('<promise topic="a" tokens="6e1"/>', "a", None),
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
        '<promise topic="a" tokens="60/>',
        '<promise topic="a" tokens="60" "/>',
        '<promise/topic="a"/>',
        '<promise topic="a/>',
        '<promise topic="a" b tokens="/>',
        '<promise topic="a/>',
        "<promise topic=a b>",
        '<promise "a>',
        "</promise>",
        "</sync>",
        "</sync/>",
        "</async >",
        "<sync now/>",
        '<sync topic="a"/>',
        "<async>",
    ],
)
def test_tags_that_are_ignored(tag: str) -> None:
    kept = '<promise topic="a" tokens="10"/><async>x</async>'
    document = parse(f"{kept}{tag} b")
    assert document.nodes[1:] == (Ignored(tag), Text(" b"))
    assert len(document.diagnostics) == 1
    assert document.format() == f"{kept}{tag} b"


@pytest.mark.parametrize("tag", ["<sync>", "<sync />", "<sync\n/>", "<sync/ >"])
def test_forms_of_a_sync(tag: str) -> None:
    assert parse(f"<promise/>{tag}").nodes[1] == Sync(tag)


@pytest.mark.parametrize("tag", ["<async >", '<async topic="a" tokens="10">', "<async topic='a'>"])
def test_forms_of_an_opening_tag(tag: str) -> None:
    document = parse(f'<promise topic="a" tokens="10"/>{tag}x</async>')
    assert document.promises[0].chunk == Chunk((Text("x"),), opened=tag)


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
        "<a><b></b>",
        "1 < 2 > 0",
        '<promise topic="a<b" tokens="10"/>',
        '<promise topic="a>',
        '<promise topic="a> b" ',
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


def test_an_escape_may_be_longer_than_the_limit_by_its_backslashes() -> None:
    longest = f"<\\{'sync'}{' ' * (MAX_TAG - 7)}/>"
    assert parse(longest).text == longest.replace("\\", "")
    too_long = f"<\\{'sync'}{' ' * (MAX_TAG - 6)}/>"
    assert parse(too_long).text == too_long


# Tags that are ids ----------------------------------------------------------------------------------------

OPEN, TOKENS, CLOSE, *_ = TAG_TOKENS


def from_ids(*pieces: str) -> Parser:
    """A parser that was fed tag tokens as tags, and everything else as text."""
    parser = Parser("main")
    for piece in pieces:
        parser.feed_tag(piece) if piece in TAG_TOKENS else parser.feed_text(piece)
    parser.close()
    return parser


def test_only_tag_ids_are_tags() -> None:
    document = from_ids("<sync/ > ", OPEN, "it", TOKENS, "60", CLOSE, " <async ", ">").document()
    assert document == Document((Text("<sync/ > "), Promise("it", 60), Text(" <async >")))
    assert document.format() == '<\\sync/ > <promise topic="it" tokens="60"/> <\\async >'


@pytest.mark.parametrize(
    "topic", ["a > b", "a < b", 'so "called"', "R&D", "&gt;", "<sync/ >", '" tokens="1', "/>"]
)
def test_a_topic_is_whatever_stands_between_the_ids(topic: str) -> None:
    parser = from_ids("So ", OPEN, topic, TOKENS, "60", CLOSE, " on.")
    document = parser.document()
    assert document.text == "So  on."
    assert [(promise.topic, promise.tokens) for promise in document.promises] == [(topic, 60)]
    assert parse(document.format()) == document
    target = views(document)[0].target
    assert "".join(segment.text for segment in target) == f"So {OPEN}{topic}{TOKENS}60{CLOSE} on."


@pytest.mark.parametrize(
    ("pieces", "text", "codes"),
    [
        ((OPEN, "a", "<sync/>", " b"), "a b", ["tag-broken", "sync-idle"]),
        ((OPEN, "a", OPEN, "b", TOKENS, "10", CLOSE), "a", ["tag-broken"]),
        ((OPEN, "a", TOKENS), "a", ["tag-cut"]),
        ((TOKENS, "a", CLOSE), "a", []),
        ((OPEN, "a" * MAX_TAG, CLOSE), "a" * MAX_TAG, ["tag-broken"]),
        ((OPEN, "a", TOKENS, "1", TOKENS, "2", CLOSE), "", ["attributes-bad"]),
        ((OPEN, "a", CLOSE), "", []),
        ((OPEN, "a", TOKENS, CLOSE), "", []),
    ],
)
def test_tag_ids_that_make_no_tag_are_not_shown(pieces: tuple[str, ...], text: str, codes: list[str]) -> None:
    parser = from_ids(*pieces)
    assert parser.document().text == text
    assert [found.code for found in parser.diagnostics] == codes
    assert parse(parser.document().format()) == parser.document()


@pytest.mark.parametrize(
    "nodes",
    [
        (Text("a"), Promise("b", None), Text(" c")),
        (Promise("b", 20, Chunk(closed_by="budget")), Promise("c d e f", 30), Sync(), Ignored("<sync/>")),
        (Text("<sync/> <\\sync/> <sync"), Ignored("</async>"), Text("<promise ")),
        (Promise("", 10, Chunk((Text("</async>"), Ignored("<async>"), Text("<"))), gap="\n\n"),),
    ],
)
def test_documents_made_by_hand_are_read_back(nodes: tuple[Node, ...]) -> None:
    assert parse(Document(nodes).format()) == Document(nodes)
