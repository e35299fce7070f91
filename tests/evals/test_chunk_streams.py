from __future__ import annotations

from pasta_async.backends import open_backend
from pasta_async.evals.chunk_streams import Round, measure, summarise


async def test_both_ways_decode_the_same_number_of_tokens() -> None:
    backend = open_backend("local:")
    try:
        rounds = await measure(backend, at_once=[1, 2], tokens=6, rounds=2)
    finally:
        await backend.aclose()
    assert [found.stream for found in rounds] == [True, False, False, True] * 2
    assert [found.tokens for found in rounds] == [6] * 4 + [12] * 4
    assert all(found.seconds > 0 and found.cpu_seconds > 0 for found in rounds)


def test_the_ratio_is_that_of_whole_replies_to_streams() -> None:
    rounds = [Round(4, True, 100, 2.0, 0.2), Round(4, False, 100, 1.0, 0.01)] * 3
    (row,) = summarise(rounds)
    assert row["requests at once"] == 4
    assert (round(row["CPU us a token, streamed"]), round(row["CPU us a token, whole"])) == (2000, 100)
    assert row["seconds whole / streamed"] == "0.50 (0.50 to 0.50)"
