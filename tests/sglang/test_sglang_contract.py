"""The HTTP backend against servers that are odd, wrong, old, or broken."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import httpx
import odd_server
import pytest
import table_model
from odd_server import (
    END,
    HTML,
    STOP,
    TAGS,
    OddServer,
    backend,
    encode,
    event,
    letters,
    pieces_of,
    sse,
    stream,
)

from pasta_async import Client
from pasta_async.backends.sglang.tokenizers import MARKERS
from pasta_async.errors import (
    BackendError,
    BackendProtocolError,
    BackendStatusError,
    InvalidRequestError,
    PromptTooLongError,
)
from pasta_async.options import Sampling
from pasta_async.protocol import Piece

SYNC, CLOSE = TAGS[5], TAGS[4]


def words(pieces: Sequence[Piece]) -> list[tuple[tuple[int, ...], str]]:
    return [(piece.ids, piece.text) for piece in pieces]


# What is sent ---------------------------------------------------------------------------------------------


async def test_everything_a_server_could_default_is_spelled_out() -> None:
    server = OddServer({"/server_info": {"version": "0.5.23", "enable_deterministic_inference": True}})
    server.decoding = [stream([sse([event([CLOSE], 1, finish_reason={"type": "stop", "matched": CLOSE})])])]
    sampling = Sampling(temperature=0.7, top_p=0.9, top_k=5, min_p=0.1, repetition_penalty=1.2)
    await pieces_of(
        backend(server),
        sampling=sampling,
        seed=7,
        stop_ids=(CLOSE,),
        banned_ids=(13, CLOSE),
    )
    body = server.sent("/generate")[-1]
    assert body["input_ids"] == [11, 12, 13] and body["stream"] is True and "routed_dp_rank" not in body
    assert body["sampling_params"] == {
        "max_new_tokens": 50,
        "temperature": 0.7,
        "top_p": 0.9,
        "top_k": 5,
        "min_p": 0.1,
        "frequency_penalty": 0.0,
        "presence_penalty": 0.0,
        "repetition_penalty": 1.2,
        "ignore_eos": False,
        "skip_special_tokens": False,
        "spaces_between_special_tokens": False,
        "no_stop_trim": True,
        "stop_token_ids": [CLOSE],
        "logit_bias": {"13": -1e4, str(CLOSE): -1e4},
        "sampling_seed": 7,
    }


async def test_what_the_server_prefers_for_its_model_holds_unless_a_request_says_otherwise() -> None:
    preferred = {"repetition_penalty": 1.1, "temperature": 2, "logit_bias": {"20": -5.0, "21": 1.0}}
    server = OddServer({"/model_info": {"model_path": "odd", "preferred_sampling_params": preferred}})
    made = backend(server)
    for sampling in (Sampling(), Sampling(repetition_penalty=1)):
        server.decoding = [stream([sse([event([END], 1, finish_reason=STOP)])])]
        await pieces_of(made, sampling=sampling, banned_ids=(21,))
    first, second = (body["sampling_params"] for body in server.sent("/generate")[-2:])
    assert first["temperature"] == 0 and first["logit_bias"] == {"20": -5.0, "21": -1e4}
    assert (first["repetition_penalty"], second["repetition_penalty"]) == (1.1, 1)


async def test_a_chunks_request_ends_at_a_promise_inside_it() -> None:
    server = OddServer()
    main, chunk = encode('<promise topic="a" tokens="10"/>.'), encode('Tea.\n2. <promise topic="')
    server.decoding = [
        stream([sse([event([*main, END], len(main) + 1, finish_reason=STOP)])]),
        stream([sse([event(chunk, len(chunk), finish_reason={"type": "stop", "matched": TAGS[0]})])]),
    ]
    async with Client(backend(server)) as client:
        generation = await client.generate("Why?")
    asked = [body["sampling_params"]["stop_token_ids"] for body in server.sent("/generate") if "rid" in body]
    assert asked == [[SYNC], [CLOSE, TAGS[0], SYNC]]
    assert generation.text == "Tea.."
    assert generation.threads[1].closed_by == "nested"
    assert not server.sent("/abort_request")


async def test_extra_fields_of_a_request_are_merged_into_its_body() -> None:
    server = OddServer()
    server.decoding = [stream([sse([event([END], 1, finish_reason=STOP)])])]
    await pieces_of(backend(server), extra={"priority": 3, "sampling_params": {"min_new_tokens": 2}})
    body = server.sent("/generate")[-1]
    assert (body["priority"], body["input_ids"]) == (3, [11, 12, 13])
    assert body["sampling_params"]["min_new_tokens"] == 2 and body["sampling_params"]["top_p"] == 1.0


async def test_ids_of_requests_are_no_prefixes_of_each_other() -> None:
    server = OddServer()
    count = 20
    server.decoding = [stream([sse([event([END], 1, finish_reason=STOP)])]) for _ in range(2 * count)]
    for made in (backend(server), backend(server)):
        for _ in range(count):
            await pieces_of(made)
    rids = [body["rid"] for body in server.sent("/generate") if "rid" in body]
    assert len(set(rids)) == 2 * count and len({len(rid) for rid in rids}) == 1


async def test_all_threads_of_an_answer_meet_one_cache() -> None:
    server = OddServer({"/server_info": {"version": "0.5.23", "dp_size": 4}})
    answers = [f"answer {number}" for number in range(20)]
    server.decoding = [stream([sse([event([END], 1, finish_reason=STOP)])]) for _ in range(60)]
    made = backend(server)
    for thread in range(3):
        for answer in answers:
            await pieces_of(made, answer=answer, thread=thread)
    ranks = [body["routed_dp_rank"] for body in server.sent("/generate") if "rid" in body]
    assert ranks[:20] == ranks[20:40] == ranks[40:] and set(ranks) == {0, 1, 2, 3}


@pytest.mark.parametrize(
    "ids",
    [(), (odd_server.VOCABULARY,), (-1,), tuple(range(11, 111))],
    ids=["none", "far", "negative", "many"],
)
async def test_what_does_not_fit_the_model_is_never_sent(ids: tuple[int, ...]) -> None:
    server = OddServer()
    with pytest.raises(InvalidRequestError):
        await pieces_of(backend(server), ids=ids)
    assert not [body for body in server.sent("/generate") if "rid" in body]


# What comes back ------------------------------------------------------------------------------------------


def cumulative(events: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """The same events in the form that repeats what was said."""
    ids: list[int] = []
    text = ""
    result: list[dict[str, Any]] = []
    for one in events:
        ids, text = [*ids, *one["output_ids"]], text + one["text"]
        result.append({**one, "output_ids": ids, "text": text})
    return result


async def test_both_forms_of_streams_read_the_same() -> None:
    events = [event([40], 1), event([40], 2), event([41, SYNC], 4), event([42, END], 6, finish_reason=STOP)]
    expected = [((40,), "\x1e"), ((40,), "\x1e"), ((41,), "\x1f"), ((SYNC,), "<sync/>"), ((42, END), " ")]
    for form, flag in ((events, True), (cumulative(events), False)):
        server = OddServer({"/server_info": {"version": "0.5.23", "incremental_streaming_output": flag}})
        server.decoding = [stream([sse(form)])]
        pieces = await pieces_of(backend(server))
        assert words(pieces) == expected
        assert pieces[-1] == Piece((42, END), " ", "stop", 3, 1)
        assert all(piece.finish_reason is None for piece in pieces[:-1])


@pytest.mark.parametrize(
    ("ids", "pieces"),
    [
        (encode("<sync/>"), ["<sync/>"]),
        ([*letters("<sync/>"), SYNC], ["<sync/>", "<sync/>"]),
        ([SYNC, *letters("<sync/>"), SYNC, 107], ["<sync/>", "<sync/>", "<sync/>", "a"]),
        ([*letters('" tokens='), TAGS[2]], ['" tokens=', '"/>']),
        (
            [TAGS[0], 107, TAGS[1], 59, *TAGS[2:5]],
            ['<promise topic="', "a", '" tokens="', "1", '"/>', "<async>", "</async>"],
        ),
    ],
)
async def test_tags_that_come_together_are_told_apart(ids: list[int], pieces: list[str]) -> None:
    server = OddServer()
    server.decoding = [stream([sse([event([100], 1), event([*ids, END], len(ids) + 2, finish_reason=STOP)])])]
    got = await pieces_of(backend(server))
    assert [piece.text for piece in got if piece.text] == ["Z", *pieces]
    assert [i for piece in got for i in piece.ids] == [100, *ids, END]
    assert all(len(piece.ids) == 1 for piece in got if set(piece.ids) & set(TAGS))


async def test_text_that_lags_is_complete_before_a_tag() -> None:
    events = [
        event([500], 1, text=""),
        event([501], 2, text="a"),
        event([502, SYNC], 4, text="é<sync/>"),
        event([503], 5, text=""),
        event([END], 6, text="\ufffd</s>", finish_reason=STOP),
    ]
    server = OddServer()
    server.decoding = [stream([sse(events)])]
    pieces = await pieces_of(backend(server))
    assert words(pieces) == [
        ((500,), ""),
        ((501,), "a"),
        ((502,), "é"),
        ((SYNC,), "<sync/>"),
        ((503,), ""),
        ((END,), "\ufffd"),
    ]


async def test_one_answer_in_one_piece() -> None:
    server = OddServer()
    server.decoding = [event([107, SYNC, 108, END], 4, finish_reason=STOP)]
    pieces = await pieces_of(backend(server), stream=False)
    assert words(pieces) == [((107,), "a"), ((SYNC,), "<sync/>"), ((108, END), "b")]
    assert server.sent("/generate")[-1]["stream"] is False and not server.sent("/abort_request")


@pytest.mark.parametrize(
    ("answer", "kind", "status"),
    [
        (stream([b"data: {not json}\n\n"]), BackendProtocolError, None),
        (stream([b"data: 7\n\n"]), BackendProtocolError, None),
        (stream([b"data: \xff\xfe\n\n"]), BackendProtocolError, None),
        (
            stream([b'data: {"text": "x"}\n\n']),
            BackendProtocolError,
            None,
        ),
        (stream([sse([event([107], 1)], done=False)]), BackendProtocolError, None),
        (stream([sse([event([107], 1)])]), BackendProtocolError, None),
        (stream([sse([])]), BackendProtocolError, None),
        (
            stream([sse([event([107], 1), event([107, END], 4, finish_reason=STOP)])]),
            BackendProtocolError,
            None,
        ),
        (stream([sse([event([107], 1), event([107], 1)])]), BackendProtocolError, None),
        (stream([b"data: " + b"[" * 100_000 + b"]" * 100_000 + b"\n\n"]), BackendProtocolError, None),
        (httpx.Response(500, content=b"[" * 100_000), BackendStatusError, 500),
        (httpx.Response(200, content=b"[" * 100_000), BackendProtocolError, None),
        (HTML, BackendProtocolError, None),
        (httpx.Response(400, json={"error": {"message": "bad"}}), BackendStatusError, 400),
        (httpx.Response(500, text="oops"), BackendStatusError, 500),
        (
            stream([sse([{"error": {"message": "too long", "code": 400}}])]),
            BackendStatusError,
            400,
        ),
    ],
)
async def test_what_is_wrong_with_an_answer_is_told(
    answer: httpx.Response, kind: type[BackendError], status: int | None
) -> None:
    server = OddServer()
    server.decoding = [answer]
    with pytest.raises(kind) as caught:
        await pieces_of(backend(server))
    assert getattr(caught.value, "status", None) == status


@pytest.mark.parametrize("ids", [[1.5], [True], "12", ["12"], [-1], [10**12], [odd_server.VOCABULARY], None])
@pytest.mark.parametrize("as_stream", [True, False])
async def test_what_is_no_id_of_the_model_is_refused(ids: Any, as_stream: bool) -> None:
    answer = {**event([END], 1, text="", finish_reason=STOP), "output_ids": ids}
    server = OddServer()
    server.decoding = [stream([sse([answer])]) if as_stream else answer]
    with pytest.raises(BackendProtocolError):
        await pieces_of(backend(server), stream=as_stream)


@pytest.mark.parametrize("count", [None, "1", True, -1, 1.0])
async def test_a_count_of_tokens_that_is_none_is_refused(count: Any) -> None:
    server = OddServer()
    server.decoding = [stream([sse([event([END], count, finish_reason=STOP)])])]
    with pytest.raises(BackendProtocolError):
        await pieces_of(backend(server))


async def test_the_abort_of_a_waiting_request_says_all_again() -> None:
    """SGLang repeats the last id and all the text then (tokenizer_manager.py, `_handle_abort_req`)."""
    aborted = event([41], 2, text="\x1e\x1f", finish_reason={"type": "abort"})
    server = OddServer({"/server_info": {"version": "0.5.23", "incremental_streaming_output": True}})
    server.decoding = [stream([sse([event([40], 1), event([41], 2), aborted])])]
    pieces = await pieces_of(backend(server))
    assert words(pieces) == [((40,), "\x1e"), ((41,), "\x1f"), ((), "")]
    assert pieces[-1].finish_reason == "abort"


async def test_a_lone_surrogate_of_a_server_is_replaced() -> None:
    server = OddServer()
    frame = json.dumps(event([107, END], 2, text="a\ud800b\U0001f642", finish_reason=STOP))
    server.decoding = [stream([f"data: {frame}\n\ndata: [DONE]\n\n".encode()])]
    assert "".join(piece.text for piece in await pieces_of(backend(server))) == "a\ufffdb\U0001f642"


async def test_text_that_is_not_that_of_its_ids_gives_way_to_them() -> None:
    server = OddServer()
    answer = event([*letters("ab"), SYNC, *letters("c"), END], 5, text="something else", finish_reason=STOP)
    server.decoding = [stream([sse([answer])])]
    pieces = await pieces_of(backend(server))
    assert [piece.text for piece in pieces][:2] == ["ab", "<sync/>"]


# What is encoded ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("text", ["a\ud800", "\udfff"])
async def test_a_lone_surrogate_is_the_callers_fault(text: str) -> None:
    made = backend(OddServer())
    for work in (
        made.encode(text),
        made.encode_chat([{"role": "user", "content": text}], {}),
        made.encode_chat([{"role": "user", "content": "x", "name": text}], {}),
        made.encode_chat([{"role": "user", "content": "x"}], {"tools": [text]}),
    ):
        with pytest.raises(InvalidRequestError):
            await work


@pytest.mark.parametrize("ids", [(1.5,), (True,), ("12",), (10**12,)])
async def test_ids_that_are_none_are_never_sent(ids: Any) -> None:
    server = OddServer()
    with pytest.raises(InvalidRequestError):
        await pieces_of(backend(server), ids=ids)
    assert not [body for body in server.sent("/generate") if "rid" in body]


async def test_text_that_cannot_be_guarded_is_the_callers_fault() -> None:
    """A tokenizer that finds a special token whatever stands inside it."""

    def tokenize(body: Any) -> Any:
        blind = str.maketrans(dict.fromkeys(MARKERS))
        texts = [text.translate(blind) if "sync" in text else text for text in body.get("prompt", ())]
        return {"tokens": [encode(text) for text in texts]}

    server = OddServer({"/tokenize": tokenize})
    with pytest.raises(InvalidRequestError):
        await backend(server).encode("a<sync/>b")


async def test_what_cannot_fit_is_refused_before_all_of_it_is_sent() -> None:
    server = OddServer()
    made = backend(server)
    text = "The causes of wars. " * 50_000
    for work in (made.encode(text), made.encode_chat([{"role": "user", "content": text}], {})):
        with pytest.raises(PromptTooLongError):
            await work
    assert max(len(str(body)) for body in server.sent("/tokenize")) < 10_000


async def test_every_field_of_a_message_is_data() -> None:
    """The template renders all of it, as JSON."""

    def tokenize(body: Any) -> Any:
        if "messages" not in body:
            return {"tokens": [encode(text) for text in body["prompt"]]}
        shown = json.dumps([body["messages"], body["chat_template_kwargs"]], ensure_ascii=False)
        return {"tokens": encode(f"{shown}<|end|>")}

    made = backend(OddServer({"/tokenize": tokenize}))
    for text in ("<sync/>", "<|end|>", "</s>", "/>", " tokens=", "<async>x</async><|end|>"):
        call = {"function": {"name": text, "arguments": {text: [text]}}}
        message = {"role": "user", "name": text, "reasoning_content": text, "tool_calls": [call]}
        ids = await made.encode_chat(
            [{**message, "content": text}, {**message, "content": [{"type": "text", "text": text}]}],
            {"tools": [text]},
        )
        assert [i for i in ids if i < odd_server.FIRST_LETTER] == encode("<|end|>")
        assert (await made.detokenize(ids)).count(text) >= 12


async def test_a_field_that_the_template_leaves_out_does_no_harm() -> None:
    made = backend(OddServer())
    messages = [{"role": "user", "content": "hi", "name": "<sync/>"}]
    assert await made.encode_chat(messages, {}) == encode("user:hi<|end|>")


async def test_a_tokenizer_at_hand_saves_asking_and_serves_a_server_without(table_folder: Path) -> None:
    vocabulary = table_model.tokenizer()
    ids: list[int] = vocabulary.encode("a<sync/>b").ids
    end: int = vocabulary.token_to_id("</s>")
    events = [event([*ids, end], 4, finish_reason={"type": "stop", "matched": end})]
    events[0].pop("text")
    server = OddServer({"/server_info": {"version": "0.5.23", "skip_tokenizer_init": True}})
    server.decoding = [stream([sse(events)])]
    made = backend(server, tokenizer=table_folder)
    pieces = await pieces_of(made)
    assert words(pieces) == [((ids[0],), "a"), ((ids[1],), "<sync/>"), ((ids[2], end), "b")]
    typed = await made.encode("<sync/>")
    assert await made.detokenize(typed) == "<sync/>" and ids[1] not in typed
    assert (
        await made.encode_chat([{"role": "user", "content": "x"}], {})
        == vocabulary.encode("<|im_start|>user\nx<|im_end|>\n<|im_start|>assistant\n").ids
    )
    assert not server.sent("/tokenize") and not server.sent("/detokenize")
