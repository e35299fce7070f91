"""evals.forks: what a fork and a join find in the cache."""

from __future__ import annotations

import pytest

from pasta_async import Client, InvalidRequestError
from pasta_async.evals.forks import observe, summarise
from pasta_async.testing import ScriptedBackend

ANSWER = (
    'Both. <promise topic="tea" tokens="10"/><async>Tea is old.</async>'
    '<promise topic="milk" tokens="10"/><async>Milk is older.</async><sync/> Enough.'
)


async def test_forks_and_joins_are_told_apart() -> None:
    backend = ScriptedBackend(ANSWER)
    async with Client(backend) as client:
        fork, join = summarise(await observe(client, ["Tea?", "Milk?"], 100))
    assert (fork["requests"], join["requests"]) == (4, 2)
    assert fork["found in the cache, %"] > 50
    assert 0 < fork["computed, tokens"] <= fork["most computed"]
    assert join["wait, ms"] is not None


async def test_answers_without_forks_have_no_table() -> None:
    async with Client(ScriptedBackend("Nothing to mark.")) as client:
        observed = await observe(client, ["Tea?"], 100)
    with pytest.raises(InvalidRequestError):
        summarise(observed)
