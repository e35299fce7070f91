"""What models that were never trained to annotate may write, and what becomes of it.

Each output is played through tokenizers that cut and merge its tags in different ways.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import pytest

from pasta_async.lang import parse
from pasta_async.testing import Script, ScriptedBackend
from tests.interpreter.support import answer
from tests.interpreter.vocabularies import UNTAGGED, tokenizer


@dataclass
class Output:
    """What a model writes: main up to each sync that joins, the chunks; and what comes of it."""

    main: list[str]
    chunks: dict[int, str] = field(default_factory=dict[int, str])
    text: str = ""
    finish_reason: tuple[str, ...] = ()
    """How the threads end, without main."""
    codes: tuple[str, ...] = ()
    """What there is to complain about."""


P = '<promise topic="tea" tokens="20"/>'
Q = '<promise topic="coffee" tokens="20"/>'
TEA, COFFEE = {1: "Tea is mild.</async>"}, {1: "Tea is mild.</async>", 2: "Coffee is strong.</async>"}

SAME = "A. Tea is mild. B."

OUTPUTS = {
    "as it should be": Output(
        [f"Both are drinks. {P} {Q}<sync/>", " In all, coffee wins."],
        COFFEE,
        "Both are drinks. Tea is mild. Coffee is strong. In all, coffee wins.",
        ("stop", "stop"),
    ),
    "the chunk written inline": Output(
        [f"A. {P}<async>Inline.</async> B."], TEA, "A. Inline. B.", ("superseded",)
    ),
    "inline on a line of its own": Output(
        [f"A. {P}\n<async>Inline.</async>\nB."], TEA, "A. \nInline.\nB.", ("superseded",), ("async-apart",)
    ),
    "inline behind white space": Output(
        [f"A. {P}  <async>Inline.</async> B."], TEA, "A.   Inline. B.", ("superseded",), ("async-apart",)
    ),
    "one inline, one not": Output(
        [f"{P}<async>Inline.</async>\n{Q}\n<sync/>", "So."],
        COFFEE,
        "Inline.\nCoffee is strong.\nSo.",
        ("superseded", "stop"),
    ),
    "inline and never closed": Output(
        [f"A. {P}<async>Inline to the end."],
        TEA,
        "A. Inline to the end.",
        ("superseded",),
        ("async-unclosed",),
    ),
    "a code fence around the tags": Output(
        [f"```xml\n{P}\n<sync/>", "\n```\nDone."], TEA, "```xml\nTea is mild.\n\n```\nDone.", ("stop",)
    ),
    "single quotes": Output(
        ["A. <promise topic='tea' tokens='20'/> B."], TEA, SAME, ("stop",), ("tag-form",)
    ),
    "typographic quotes": Output(
        ["A. <promise topic=\u201ctea\u201d tokens=\u201c20\u201d/> B."],
        TEA,
        "A. Tea is mild. B.",
        ("stop",),
        ("tag-form",),
    ),
    "no quotes": Output(["A. <promise topic=tea tokens=20/> B."], TEA, SAME, ("stop",), ("tag-form",)),
    "a topic with a tag's end in it": Output(
        ['A. <promise topic="tea > coffee" tokens="20"/> B.'], TEA, SAME, ("stop",)
    ),
    "a quote that never closes": Output(
        ['A. <promise topic="tea" tokens="20/> B <promise topic="tea/> C > B'],
        {},
        "A.  B  C > B",
        (),
        ("attributes-bad", "attributes-bad"),
    ),
    "attributes the other way round": Output(
        ['A. <promise tokens="20" topic="tea"/> B.'], TEA, SAME, ("stop",), ("tag-form",)
    ),
    "spaces everywhere": Output(
        ['A. <promise  topic = "tea"  tokens = "20" /> B.'],
        TEA,
        "A. Tea is mild. B.",
        ("stop",),
        ("tag-form",),
    ),
    "the sync forgotten": Output(
        [f"A. {P} {Q} In all, both."],
        COFFEE,
        "A. Tea is mild. Coffee is strong. In all, both.",
        ("stop", "stop"),
    ),
    "no slash": Output(['A. <promise topic="tea" tokens="20"> B.'], TEA, SAME, ("stop",), ("tag-form",)),
    "a closing tag of its own": Output(
        ['A. <promise topic="tea" tokens="20"></promise> B.'],
        TEA,
        "A. Tea is mild. B.",
        ("stop",),
        ("tag-form", "tag-stray-close"),
    ),
    "bold": Output([f"A. **{P}** B."], TEA, "A. **Tea is mild.** B.", ("stop",)),
    "trailing spaces": Output(
        [f"A. {P}   \n<sync/>", "   \nB."], TEA, "A. Tea is mild.   \n   \nB.", ("stop",)
    ),
    "two syncs": Output(
        [f"A. {P}<sync/>", "<sync/> B."], TEA, "A. Tea is mild. B.", ("stop",), ("sync-idle",)
    ),
    "a sync before anything": Output(
        [f"<sync/>A. {P}<sync/>", " B."], TEA, "A. Tea is mild. B.", ("stop",), ("sync-idle",)
    ),
    "a sync without its slash": Output([f"A. {P}<sync>", " B."], TEA, SAME, ("stop",), ("tag-form",)),
    "a sync with a space": Output([f"A. {P}<sync />", " B."], TEA, SAME, ("stop",), ("tag-form",)),
    "a promise inside a chunk": Output(
        [f"A. {P} B."], {1: f"Tea is mild.\n2. {Q}\n3. Water."}, SAME, ("stop",), ("promise-nested",)
    ),
    "a sync inside a chunk": Output(
        [f"A. {P} B."], {1: "Tea is mild.\n\n<sync/>So.</async>"}, SAME, ("stop",), ("sync-nested",)
    ),
    "a chunk that repeats its opening tag": Output(
        [f"A. {P} B."], {1: "<async>Tea is mild.</async>"}, "A. Tea is mild. B.", ("stop",), ("async-stray",)
    ),
    "a chunk that ends without its tag": Output(
        [f"A. {P} B."], {1: "Tea is mild."}, "A. Tea is mild. B.", ("stop",), ("async-unclosed",)
    ),
    "a chunk that goes on behind its end": Output(
        [f"A. {P} B."], {1: "Tea is mild.</async>\n\nAnd coffee."}, "A. Tea is mild. B.", ("stop",)
    ),
    "an empty chunk": Output([f"A. {P} B."], {1: "</async>"}, "A.  B.", ("stop",)),
    "no estimate": Output(['A. <promise topic="tea"/> B.'], TEA, "A. Tea is mild. B.", ("stop",)),
    "an estimate in words": Output(
        ['A. <promise topic="tea" tokens="about 50"/> B.'],
        TEA,
        "A. Tea is mild. B.",
        ("stop",),
        ("tokens-bad",),
    ),
    "an attribute of its own": Output(
        ['A. <promise topic="tea" tokens="20" style="long"/> B.'], TEA, "A.  B.", (), ("attribute-unknown",)
    ),
    "a chunk without a promise": Output(
        ["A. <async>B.</async> C."], {}, "A. B. C.", (), ("async-stray", "async-stray-close")
    ),
    "a tag talked about": Output(["Write <\\sync/> there."], {}, "Write <sync/> there."),
    "a tag cut by the end": Output(['A. <promise topic="te'], {}, 'A. <promise topic="te', (), ("tag-cut",)),
    "a list": Output(
        [f"1. {P}\n2. {Q}\n\n<sync/>", "\nSo."],
        COFFEE,
        "1. Tea is mild.\n2. Coffee is strong.\n\n\nSo.",
        ("stop", "stop"),
    ),
    "other tags": Output([f"<b>A.</b> {P} <i>B.</i>"], TEA, "<b>A.</b> Tea is mild. <i>B.</i>", ("stop",)),
    "thoughts about tags": Output(
        [f"<think>\nUse {P} and <sync/>?</think>\nA. {P}<sync/>", " B."],
        TEA,
        "\nA. Tea is mild. B.",
        ("stop",),
    ),
    "no tags at all": Output(["Two and two is four."], {}, "Two and two is four."),
    "nothing": Output([""], {}, ""),
}


@pytest.mark.parametrize("name", UNTAGGED)
@pytest.mark.parametrize("output", OUTPUTS.values(), ids=OUTPUTS)
async def test_an_imperfect_output_has_a_sensible_result(output: Output, name: str) -> None:
    words = tokenizer(name)
    for latencies, piece in (({}, 1), ({0: 20.0}, 1), ({1: 20.0, 2: 9.0}, 1), ({}, 4)):
        script = Script(output.main, output.chunks)
        backend = ScriptedBackend(script, tokenizer=words, latency=1.0, thread_latency=latencies, piece=piece)
        generation = await answer(backend)
        assert generation.text == generation.document.text == output.text
        assert tuple(thread.finish_reason for thread in generation.threads[1:]) == output.finish_reason
        assert tuple(sorted(str(found.code) for found in generation.diagnostics)) == tuple(
            sorted(output.codes)
        )
        assert parse(generation.document.format()) == generation.document
        assert not backend.open


@pytest.mark.parametrize("name", ["plain words", "plain merged"])
@pytest.mark.parametrize("output", OUTPUTS.values(), ids=OUTPUTS)
async def test_the_result_is_the_same_in_turn_and_with_whole_chunks(output: Output, name: str) -> None:
    script = Script(output.main, output.chunks)
    ways: list[dict[str, Any]] = [{"parallel": "never"}, {"whole_chunks": True}]
    for options in ways:
        generation = await answer(ScriptedBackend(script, tokenizer=tokenizer(name)), **options)
        assert generation.text == output.text
