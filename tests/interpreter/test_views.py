"""The requests that are sent for a document are its views, token for token."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pasta_async.lang import Document
from pasta_async.testing import ScriptedBackend
from tests.interpreter.support import ENDLESS, ROOMY, answer, documents, heard, unrolled
from tests.interpreter.vocabularies import TAGGED, tokenizer

MODES: dict[str, dict[str, Any]] = {
    "stream": {},
    "in turn": {"parallel": "never"},
}


async def check_requests(document: Document, name: str, mode: str, piece: int = 1) -> None:
    backend = ScriptedBackend(document, tokenizer=tokenizer(name), piece=piece)
    prompt = len(backend.tokenizer.encode_chat([{"role": "user", "content": "Why?"}], {}))
    generation = await answer(backend, limits=ROOMY, sampling=ENDLESS, **MODES[mode])
    expected = unrolled(document, backend.tokenizer)
    assert sorted(heard(backend.played, prompt)) == sorted(expected)
    assert generation.document == document
    assert generation.text == document.text
    assert generation.usage.completion_tokens == sum(len(output) for _, _, output in expected)


@pytest.mark.parametrize("mode", MODES)
@given(document=documents(), name=st.sampled_from(TAGGED))
@settings(max_examples=25)
async def test_the_requests_are_the_views_of_any_document(document: Document, name: str, mode: str) -> None:
    await check_requests(document, name, mode)


@given(document=documents(), piece=st.sampled_from([2, 3, 1000]))
@settings(max_examples=15)
async def test_the_size_of_the_pieces_changes_no_request(document: Document, piece: int) -> None:
    await check_requests(document, "bytes", "stream", piece)
