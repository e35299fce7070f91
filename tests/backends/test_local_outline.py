"""The lists of a real model that was not trained: pasta-smol's base."""

from __future__ import annotations

from trained import require_model

from pasta_async import Client
from pasta_async.backends.local.pull import base_found

PROMPT = "What are the best exercises for beginners?"


async def test_the_items_of_its_list_are_written_in_parallel() -> None:
    base = base_found(require_model("pasta-smol"))
    assert base
    async with Client(f"local:{base}") as client:
        outlined = await client.generate(PROMPT, parallel="outline", max_tokens=200)
        plain = await client.generate(PROMPT, max_tokens=120)
    main, first, *others = outlined.threads
    assert others
    assert first.text.strip() and others[0].text.strip()  # the last may stand behind the end
    assert outlined.critical_path < outlined.text_tokens
    before, topic, _ = main.text.partition(first.topic)
    assert plain.text.startswith(before + topic)
    assert first.text in plain.text  # its thread sees what it sees in a plain answer
