"""Settings from the environment: `PASTA_BACKEND` and its like."""

from __future__ import annotations

from collections.abc import Callable
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


@pytest.fixture
def setting(monkeypatch: pytest.MonkeyPatch) -> Callable[[str, str], None]:
    return monkeypatch.setenv


def test_without_settings_it_is_the_embedded_engine_and_the_default_limits(opened: Opened) -> None:
    assert Client().limits == Limits()
    assert opened == [("local:", {})]


def test_the_backend(setting: Callable[[str, str], None], opened: Opened) -> None:
    setting("PASTA_BACKEND", "sglang:/model")
    Client()
    Client("local:/other")
    assert [url for url, _ in opened] == ["sglang:/model", "local:/other"]


def test_the_limits(setting: Callable[[str, str], None], opened: Opened) -> None:
    values = {
        "MAX_THREADS": "3",
        "CLIENT_THREADS": "7",
        "CHUNK_TOKENS": "99",
        "PROMPT_TOKENS": "5000",
        "TIMEOUT": "1.5",
        "RETRIES": "0",
        "ON_FAILURE": "sequence",
    }
    for name, value in values.items():
        setting(f"PASTA_{name}", value)
    expected = Limits(
        max_threads=3,
        client_threads=7,
        chunk_tokens=99,
        prompt_tokens=5000,
        timeout=1.5,
        retries=0,
        on_failure="sequence",
    )
    assert Client("local:").limits == expected
    assert len(opened) == 1


def test_limits_are_laid_over_those_of_the_environment(
    setting: Callable[[str, str], None], opened: Opened
) -> None:
    setting("PASTA_TIMEOUT", "7")
    setting("PASTA_MAX_THREADS", "3")
    assert Client("local:", limits=Limits(max_threads=2)).limits == Limits(timeout=7, max_threads=2)


def test_an_http_backend_gets_the_key(setting: Callable[[str, str], None], opened: Opened) -> None:
    setting("PASTA_API_KEY", "secret")
    Client("http://host:30000")
    Client("http://host:30000", api_key="mine")
    Client("local:")
    assert opened == [
        ("http://host:30000", {"api_key": "secret"}),
        ("http://host:30000", {"api_key": "mine"}),
        ("local:", {}),
    ]


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("MAX_THREADS", "many"),
        ("TIMEOUT", "-1"),
        ("ON_FAILURE", "hope"),
        ("RETRIES", "-1"),
    ],
)
def test_bad_values_are_refused_with_their_names(
    setting: Callable[[str, str], None], opened: Opened, name: str, value: str
) -> None:
    setting(f"PASTA_{name}", value)
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
