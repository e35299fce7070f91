"""Answers that the real server is made to write."""

from __future__ import annotations

from pasta_async.backends.local import LocalBackend
from pasta_async.backends.sglang import SGLangBackend
from pasta_async.evals.answers import Answer
from pasta_async.evals.methods import METHODS, Case, open_forced_engine, time_answer
from pasta_async.lang import parse

LISTED = parse(
    "Two wars:\n\n"
    + "\n".join(
        f'{number}. <promise topic="{topic}" tokens="30"/><async>{topic}: {" and then" * 15}</async>'
        for number, topic in enumerate(("Causes", "Outcome"), 1)
    )
    + "<sync/>\n\nBoth were long."
)


async def test_every_method_decodes_the_same_on_the_server_as_on_the_embedded_engine(
    backend: SGLangBackend, local: LocalBackend
):
    case = Case(0, "Well?", LISTED)
    played = list[list[Answer]]()
    for inner in (backend, local):
        async with open_forced_engine(inner, {"Well?": LISTED}) as engine:
            played.append(
                [await time_answer(engine, METHODS[name], case) for name in METHODS if name != "auto"]
            )
    real, embedded = ([(row.method, row.tokens, row.critical_path) for row in rows] for rows in played)
    assert real == embedded
    rows = {row.method: row for row in played[0]}
    assert rows["skeleton"].requests == 1 + 3
    assert rows["apar"].requests == 1 + 2
    assert all(row.tokens > row.critical_path for row in rows.values() if row.method != "sequential")
    assert all(row.tokens > rows["sequential"].tokens for name, row in rows.items() if name != "sequential")
