"""Every diagnostic by the examples of docs/language.md, which lists them all."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from pasta_async.lang import STYLE_CODES, Code, ParseError, parse

PAGE = (Path(__file__).parents[2] / "docs" / "language.md").read_text(encoding="utf-8")
EXAMPLES = dict(re.findall(r"^### `([a-z-]+)`\n\n```text\n(.*?)\n```$", PAGE, re.M | re.S))
# (line, column) of the code's diagnostic in its example, and the codes that come with it.
FOUND: dict[Code, tuple[int, int, list[Code]]] = {
    Code.TOKENS_BAD: (1, 1, []),
    Code.TOKENS_NOT_TENS: (1, 1, []),
    Code.TOPIC_MISSING: (1, 1, []),
    Code.TOPIC_LONG: (1, 1, []),
    Code.ATTRIBUTE_UNKNOWN: (1, 1, []),
    Code.ATTRIBUTES_BAD: (1, 1, []),
    Code.TAG_FORM: (1, 1, [Code.TAG_FORM]),
    Code.TAG_CUT: (1, 28, []),
    Code.TAG_BROKEN: (1, 1, []),
    Code.PROMISE_NESTED: (1, 44, []),
    Code.PROMISE_OPEN: (1, 12, []),
    Code.ASYNC_STRAY: (1, 13, [Code.ASYNC_STRAY_CLOSE]),
    Code.ASYNC_APART: (2, 1, []),
    Code.ASYNC_STRAY_CLOSE: (1, 6, []),
    Code.ASYNC_UNCLOSED: (1, 49, []),
    Code.SYNC_IDLE: (1, 13, []),
    Code.SYNC_NESTED: (1, 43, []),
    Code.TAG_STRAY_CLOSE: (1, 32, [Code.TAG_FORM, Code.PROMISE_OPEN]),
}


def test_the_page_has_every_code_in_order() -> None:
    assert list(EXAMPLES) == [str(code) for code in Code]


@pytest.mark.parametrize("code", Code)
def test_the_example_of_the_page(code: Code) -> None:
    line, column, others = FOUND[code]
    diagnostics = parse(EXAMPLES[code]).diagnostics
    first = next(diagnostic for diagnostic in diagnostics if diagnostic.code == code)
    assert (first.line, first.column) == (line, column)
    assert sorted(diagnostic.code for diagnostic in diagnostics) == sorted([code, *others])


@pytest.mark.parametrize("code", Code)
def test_strict_reading_raises_unless_the_diagnostic_is_mild(code: Code) -> None:
    text = EXAMPLES[code]
    if code in STYLE_CODES:
        assert [found.code for found in parse(text, strict=True).diagnostics] == [code]
        return
    with pytest.raises(ParseError) as raised:
        parse(text, strict=True)
    assert raised.value.diagnostic in parse(text).diagnostics
    assert str(raised.value) == str(raised.value.diagnostic)


def test_the_pages_document_and_its_visible_text() -> None:
    written, visible = re.findall(r"^```text\n(.*?)\n```$", PAGE, re.M | re.S)[:2]
    assert parse(written, strict=True).text == visible


def test_the_pages_program_runs(capsys: pytest.CaptureFixture[str]) -> None:
    (program,) = re.findall(r"^```python\n(.*?)\n```$", PAGE, re.M | re.S)
    exec(program, {})  # the page's own text
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] in program
    assert [line.partition("(")[0] for line in lines[1:]] == ["Hi. ", "Promise", "Sync"]
