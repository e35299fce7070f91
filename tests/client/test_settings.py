"""Settings from the environment: `PASTA_BACKEND` and its like."""

from __future__ import annotations

from typing import Any

import pytest

from pasta_async import Client, InvalidRequestError, Limits
from pasta_async.testing import ScriptedBackend

Opened = list[tuple[str, dict[str, Any]]]


@pytest.fixture
def opened(monkeypatch: pytest.MonkeyPatch) -> Opened:
    """Backends are not opened, but noted."""
    seen: Opened = []

    def note(url: str, **options: Any) -> ScriptedBackend:
        seen.append((url, options))
        return ScriptedBackend("Because.")

    monkeypatch.setattr("pasta_async.client.open_backend", note)
    return seen


def test_without_settings_it_is_the_embedded_engine_and_the_default_limits(opened: Opened) -> None:
    assert Client().limits == Limits()
    assert opened == [("local:", {})]


def test_the_backend(monkeypatch: pytest.MonkeyPatch, opened: Opened) -> None:
    monkeypatch.setenv("PASTA_BACKEND", "sglang:/model")
    Client()
    Client("local:/other")
    assert [url for url, _ in opened] == ["sglang:/model", "local:/other"]


def test_the_limits_are_laid_over_those_of_the_environment(
    monkeypatch: pytest.MonkeyPatch, opened: Opened
) -> None:
    monkeypatch.setenv("PASTA_TIMEOUT", "1.5")
    monkeypatch.setenv("PASTA_RETRIES", "5")
    monkeypatch.setenv("PASTA_MAX_THREADS", "3")
    expected = Limits(timeout=1.5, retries=5, max_threads=2)
    assert Client("local:", limits=Limits(max_threads=2)).limits == expected


def test_an_http_backend_gets_the_key_and_the_tokenizer(
    monkeypatch: pytest.MonkeyPatch, opened: Opened
) -> None:
    monkeypatch.setenv("PASTA_API_KEY", "secret")
    monkeypatch.setenv("PASTA_TOKENIZER", "models/mine")
    Client("http://host:30000")
    Client("http://host:30000", api_key="mine", tokenizer="other")
    Client("local:")
    assert opened == [
        ("http://host:30000", {"api_key": "secret", "tokenizer": "models/mine"}),
        ("http://host:30000", {"api_key": "mine", "tokenizer": "other"}),
        ("local:", {}),
    ]


@pytest.mark.parametrize(
    ("name", "value"),
    [("MAX_THREADS", "many"), ("TIMEOUT", "-1"), ("RETRIES", "-1")],
)
def test_bad_values_are_refused_with_their_names(
    monkeypatch: pytest.MonkeyPatch, opened: Opened, name: str, value: str
) -> None:
    monkeypatch.setenv(f"PASTA_{name}", value)
    with pytest.raises(InvalidRequestError, match=f"PASTA_{name}"):
        Client()
    assert not opened


async def test_a_backend_that_was_passed_in_is_not_closed_and_one_that_was_opened_is(
    monkeypatch: pytest.MonkeyPatch, opened: Opened
) -> None:
    closed: list[ScriptedBackend] = []

    async def aclose(self: ScriptedBackend) -> None:
        closed.append(self)

    monkeypatch.setattr(ScriptedBackend, "aclose", aclose)
    async with Client(ScriptedBackend("Because.")) as client:
        await client.generate("Why?")
    assert not closed
    async with Client("local:") as client:
        assert (await client.generate("Why?")).text == "Because."
    assert (len(opened), len(closed)) == (1, 1)
