"""Bodies that are more or less wrong: each is answered, or refused in OpenAI's form."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from starlette.testclient import TestClient

from pasta_async.server import create_app
from pasta_async.testing import ScriptedBackend
from tests.helpers.live_server import CHAT, COMPLETIONS

ASKED: tuple[dict[str, Any], ...] = (
    {"model": "scripted", "messages": [{"role": "user", "content": "Why?"}]},
    {"model": "scripted", "prompt": "Why?"},
)
PIECES: tuple[Any, ...] = (
    *(None, True, False, 0, 1, -1, 128, 2**63, -(2**70), 0.5, 1e400, -0.0, float("nan")),
    *("", "x", "1", "user", "<sync/>", "\x00", "\ud800", "\ue000", "scripted", "x" * 3000),
    *([], [[]], {}, [None], {"a": 1}, {"include_usage": True}),
    *([{"role": "user", "content": "x"}], [{"type": "text", "text": "x"}]),
)
NAMES = st.sampled_from(
    (
        *("model", "messages", "prompt", "max_tokens", "temperature", "top_p", "stop", "stream", "n", "seed"),
        *("tools", "logit_bias", "response_format", "pasta", "nonsense", "role", "content", "type", "text"),
        *("limits", "timeout", "stream_options", "include_usage", "\ud800", "", "__class__"),
    )
)
VALUES: st.SearchStrategy[Any] = st.recursive(
    st.sampled_from(PIECES),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(NAMES, inner, max_size=3),
    max_leaves=10,
)


@st.composite
def bodies(draw: st.DrawFn) -> bytes:
    """A request with some fields that are wrong, or right by chance; some are cut or have bytes too many."""
    fields = {**draw(st.sampled_from(ASKED)), **draw(st.dictionaries(NAMES, VALUES, max_size=3))}
    written = json.dumps(fields, ensure_ascii=draw(st.booleans())).encode("utf-8", "surrogatepass")
    if draw(st.integers(0, 9)) < 9:
        return written
    at = draw(st.integers(0, len(written)))
    return written[:at] + draw(st.binary(max_size=2)) + written[at + draw(st.integers(0, 2)) :]


@pytest.fixture(scope="module")
def client() -> Iterator[TestClient]:
    with TestClient(create_app(ScriptedBackend("Fine.")), base_url="http://127.0.0.1") as client:
        yield client


@given(bodies())
@example(b'{"model": "scripted", "prompt": %b}' % (b"1" * 100_000))
@example(b'{"model": "\\ud800", "messages": [{"role": "user", "content": "\\udfff\xff"}]}')
@example(b'{"model": "scripted", "prompt": "x", "prompt": [], "__class__": 1}')
@example(b"\xef\xbb\xbf{}")
def test_any_body_is_answered_or_refused(client: TestClient, body: bytes) -> None:
    for path in (CHAT, COMPLETIONS):
        reply = client.post(path, content=body, headers={"content-type": "application/json"})
        assert reply.status_code == 200 or 400 <= reply.status_code < 500, reply.text
        if reply.status_code != 200:
            assert reply.json()["error"]["message"]
