"""Grammars: the texts that they accept, and closing what was cut off."""

from __future__ import annotations

import json
from typing import Any

import pytest

from pasta_async import BackendError
from pasta_async.grammar import Grammar

SCHEMA: dict[str, Any] = {
    "type": "object",
    "properties": {
        "day": {"type": "string", "format": "date"},
        "code": {"type": "string", "pattern": "^(ab)*c$"},
        "names": {"type": "array", "items": {"type": "string", "minLength": 3}, "minItems": 2},
        "size": {"type": "integer", "minimum": 150, "maximum": 2000},
        "kind": {"enum": ["alpha", "beta"]},
    },
    "required": ["day", "code", "names", "size", "kind"],
    "additionalProperties": False,
}
WRITTEN = (
    '{"day": "2024-02-29", "code": "ababc", "names": ["a\\"\\\\b", "née😀"], "size": 1999, "kind": "beta"}'
)


def test_a_text_cut_anywhere_is_closed_and_valid() -> None:
    grammar = Grammar.of_schema(SCHEMA)
    for size in range(len(WRITTEN) + 1):
        closed = WRITTEN[:size] + grammar.closing(WRITTEN[:size])
        assert grammar.accepts(closed), closed
        assert set(json.loads(closed)) == set(SCHEMA["required"]), closed


_NODE = {
    "type": "object",
    "properties": {"left": {"$ref": "#/$defs/node"}, "right": {"$ref": "#/$defs/node"}},
    "required": ["left", "right"],
}


@pytest.mark.parametrize(
    ("schema", "written"),
    [
        ({"type": "array", "items": {"type": "number"}, "minItems": 9}, "[-10.5e-3, 25"),
        (
            {"type": "object", "properties": {"a": {"type": "number"}, "b": {}}, "required": ["a", "b"]},
            '{"a": 25',
        ),
        ({"type": "string", "pattern": "^[0-9]+-[0-9]+x$"}, '"0451-'),
        ({"type": "string", "pattern": "^([0-9],)*[0-9]e$"}, '"1,1'),
        ({"type": "string", "pattern": "^(ac)*c$"}, '"acac'),
        ({"type": "integer", "multipleOf": 7}, "-10"),
        (
            {"$defs": {"node": {"anyOf": [_NODE, {"type": "null"}]}}, "$ref": "#/$defs/node"},
            '{"left": {"left',
        ),
        ({"type": "object", "additionalProperties": {"type": "string"}}, '{"a\\"": "b\\'),
    ],
)
def test_what_could_go_on_for_ever_is_closed_soon(schema: dict[str, Any], written: str) -> None:
    grammar = Grammar.of_schema(schema)
    for size in range(len(written) + 1):
        missing = grammar.closing(written[:size])
        assert grammar.accepts(written[:size] + missing)
        assert len(missing) < 60


def test_escapes_that_servers_allow_are_read() -> None:
    grammar = Grammar.of_schema({"type": "string", "maxLength": 40}, compact=False)
    written = r'"Caf\u00e9 \ud83d\ude00 http:\/\/x \u0022 \\u00e9 \u000a"'
    assert grammar.accepts(written)
    for size in range(1, len(written)):
        text = written[:size]
        assert isinstance(json.loads(text + grammar.closing(text)), str)


def test_odd_escapes_are_no_text_of_the_grammar() -> None:
    grammar = Grammar.of_schema({"type": "string"}, compact=False)
    assert grammar.accepts(r'"\u007f \u007F"')
    assert not any(grammar.accepts(text) for text in (r'"\d+"', r'"\ud83d x"', r'"\u00"'))


def test_a_text_that_does_not_follow_the_grammar_cannot_be_closed() -> None:
    with pytest.raises(BackendError):
        Grammar.of_schema(SCHEMA).closing('{"other')


def test_values_have_a_space_before_them_and_end_with_a_sign_behind_them() -> None:
    grammar = Grammar.of_value({"type": "integer"})
    assert grammar.accepts(" 12}") and grammar.accepts(" 12,") and grammar.accepts(" 1}")
    assert not any(grammar.accepts(text) for text in (" 12", "  1}", " 1 }", "\n1}"))


def test_white_space_cannot_run_away() -> None:  # SGLang 8250, vLLM 38696
    schema = {"type": "object", "properties": {"a": {"type": "array", "items": {"type": "integer"}}}}
    grammar = Grammar.of_schema(schema)
    assert grammar.accepts('{"a": [1, 2]}')
    assert not any(grammar.accepts(text) for text in ('{"a":  [1]}', '{"a": [1,\n2]}', ' {"a": []}'))


def test_strings_of_bounded_length_may_hold_quotes_and_line_breaks() -> None:  # SGLang 800
    grammar = Grammar.of_schema({"type": "string", "maxLength": 4})
    assert grammar.accepts(json.dumps('"\n\\é', ensure_ascii=False))
    assert not grammar.accepts(json.dumps("fives"))
