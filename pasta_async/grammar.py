"""Grammars for constrained decoding: the tokens that may come next, and the end of a text that was cut off.

`llguidance` does the work: on token ids for an engine, on bytes where only the text is known.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache, lru_cache
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any, Literal

from pasta_async.errors import BackendError, InvalidRequestError, missing_extra

if TYPE_CHECKING:
    from llguidance import LLMatcher, LLTokenizer

    from pasta_async.tokenizer import Tokenizer

GrammarKind = Literal["lark", "json_schema"]

_COMPACT = {"whitespace_flexible": False, "item_separator": ", ", "key_separator": ": "}
_MOST_BYTES = 5_000
"""Largest number of bytes that are added to a text that was cut off."""

_ENDING = b'}],"'
"""Bytes that bring a JSON text nearer to its end, the best first. Inside a string only the quote does."""

_PAIR = r"\\u[dD][89abAB][\da-fA-F]{2}\\u[dD][c-fC-F][\da-fA-F]{2}"
_SIMPLE = r'\\["\\/bfnrt]'
_ESCAPE = re.compile(rf"{_PAIR}|\\u[\da-fA-F]{{4}}|{_SIMPLE}")
"""An escaped character in JSON text, which may be a pair of halves."""

_WHOLE_ESCAPE = re.compile(rf"{_PAIR}|\\u(?![dD][89abAB])[\da-fA-F]{{4}}|{_SIMPLE}")
"""One that is not the first half of a pair."""

_LATER = b"[{ "
"""Bytes that bring no JSON text nearer to its end, the least bad first; a schema may require one."""


@dataclass(frozen=True, slots=True)
class Grammar:
    """The form of a request's output. Equal grammars have equal texts, by which servers cache them."""

    kind: GrammarKind
    """`lark`: llguidance's dialect of Lark, with JSON schemas inside. `json_schema`: one JSON value."""
    text: str

    @classmethod
    def of_schema(cls, schema: Mapping[str, Any], *, compact: bool = True) -> Grammar:
        """The grammar of JSON values that meet a schema.

        Args:
            schema: A JSON schema.
            compact: Allow one way to write a value, with a space behind each comma and colon. False: any
                white space, as servers allow it.
        """
        form = {"x-guidance": _COMPACT} if compact else {}
        return cls("json_schema", json.dumps({**schema, **form}))

    @classmethod
    def of_value(cls, schema: Mapping[str, Any]) -> Grammar:
        """The grammar of a value in an object, from behind its key's colon up to a comma or brace.

        The space in front and the sign behind belong to it, because a model's usual tokens include them.
        """
        value = json.dumps({**schema, "x-guidance": _COMPACT})
        return cls("lark", f'start: " " value /[,}}]/\nvalue: %json {value}')

    def problems(self) -> list[str]:
        """The reasons why nothing can be decoded by it; empty for a sound grammar."""
        failed, messages = _validated(self._compiled())
        return [_first_line(message) for message in messages] if failed else []

    def accepts(self, text: str) -> bool:
        """True if the text is whole by the grammar."""
        matcher = self.matcher(_bytes())
        return _follow(matcher, _as_written(text)) and matcher.is_accepting()

    def closing(self, text: str) -> str:
        """The text that closes one that was cut off; short, if not always the shortest. Empty if it is whole.

        Raises:
            BackendError: The text does not follow the grammar, or too much is missing.
        """
        matcher = self.matcher(_bytes())
        # A decoder holds an unfinished character back, so the text ends with a whole one. An unfinished
        # escape (`\u00e`) is finished first.
        escape = _rest_of_escape(text)
        written = _as_written(text + escape)
        if not _follow(matcher, written):
            raise BackendError(f"the output {text[:80]!r} does not follow the request's grammar")
        # Add the best allowed byte until the text is whole. Counting how often each byte was used, for each
        # set of allowed bytes, keeps this from going in circles.
        ending = bytearray()
        used = Counter[tuple[bytes, int]]()
        is_string = _ends_inside_string(written)
        while not matcher.is_accepting() and len(ending) < _MOST_BYTES:
            mask = matcher.compute_bitmask()
            byte = _next_byte(mask, used, is_string)
            used[mask, byte] += 1
            ending.append(byte)
            if not matcher.consume_token(byte):
                break
            if byte == ord('"'):
                is_string = _ends_inside_string(written + ending)
        if not matcher.is_accepting():
            raise BackendError(f"the output {text[:80]!r} was cut off, and cannot be closed by its grammar")
        return escape + ending.decode()

    def _compiled(self) -> str:
        matcher = _guidance().LLMatcher
        try:
            if self.kind == "lark":
                return matcher.grammar_from_lark(self.text)
            return matcher.grammar_from_json_schema(self.text)
        except ValueError as error:
            raise InvalidRequestError(f"the grammar cannot be read: {error}") from error

    def matcher(self, vocabulary: LLTokenizer) -> LLMatcher:
        """Follows an output, token by token.

        Raises:
            InvalidRequestError: The grammar cannot be used.
        """
        matcher = _guidance().LLMatcher(vocabulary, self._compiled())
        if matcher.is_error():
            raise InvalidRequestError(f"the grammar cannot be used: {_first_line(matcher.get_error())}")
        return matcher


def grammar_vocabulary(tokenizer: Tokenizer) -> LLTokenizer:
    """A model's tokens, as grammars read them. Making it takes a second or two for 150,000 tokens.

    Raises:
        BackendError: llguidance is not installed.
    """
    guidance = _guidance()
    return guidance.LLTokenizer(
        guidance.TokenizerWrapper(_GuidanceTokenizer(tokenizer)), n_vocab=tokenizer.vocab_size
    )


class _GuidanceTokenizer:
    """A tokenizer in the form that llguidance asks for."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self.eos_token_id = tokenizer.end_ids[0]
        self.bos_token_id = None
        self.tokens = [tokenizer.token_bytes(token) for token in range(tokenizer.vocab_size)]
        self.special_token_ids = sorted(tokenizer.commands)

    def __call__(self, text: str) -> Sequence[int]:
        return self._tokenizer.encode(text)


def _as_written(text: str) -> bytes:
    """JSON text with the escapes alone that JSON needs, since llguidance reads no others; servers do."""

    def plain(escape: re.Match[str]) -> str:
        written = json.dumps(json.loads(f'"{escape[0]}"'), ensure_ascii=False)[1:-1]
        return written.replace("\x7f", r"\u007f")  # for llguidance that is a control character, too

    return _ESCAPE.sub(plain, text).encode("utf-8", "surrogatepass")


def _rest_of_escape(text: str) -> str:
    r"""The end of an escape in which a JSON text breaks off: in `\u00e`, or between the halves of a pair."""
    _, backslash, begun = _WHOLE_ESCAPE.sub("", text).partition("\\")
    is_pair = re.match("u[dD][89abAB]", begun)
    whole = r"\ud800\udc00" if is_pair else r"\u0020"
    return whole[len(backslash + begun) :] if begun else ""


def _follow(matcher: LLMatcher, written: bytes) -> bool:
    return not written or matcher.consume_tokens(list(written))


def _next_byte(mask: bytes, used: Counter[tuple[bytes, int]], is_string: bool) -> int:
    """The allowed byte that brings the text nearest to its end, or else the one that was used least.

    Always taking the same byte can loop: in a pattern, or in a nullable recursive object.
    """
    bits = int.from_bytes(mask, "little")
    allowed = [byte for byte in range(256) if bits >> byte & 1]
    for byte in b'"' if is_string else _ENDING:
        if byte in allowed:
            return byte
    # Readable characters go first. Among them come those that open nothing (`find` gives them -1), and among
    # those the one that was used least.
    plain = [byte for byte in allowed if 32 <= byte < 127 and byte != ord("\\")]
    later = b"" if is_string else _LATER
    return min(plain or allowed, key=lambda byte: (later.find(byte), used[mask, byte]))


def _ends_inside_string(text: bytes) -> bool:
    """True if a JSON text is cut off in a string."""
    return bool(re.sub(rb"\\.", b"", text).count(b'"') % 2)


def _first_line(message: str) -> str:
    """The reason in a message of llguidance, without the place in the grammar's text."""
    lines = [line.strip() for line in message.splitlines() if line.strip()]
    line = next((line for line in lines if line.startswith("error:")), lines[0] if lines else "")
    return line.removeprefix("error:").rpartition("failed to compile JSON schema:")[2].strip()


def _guidance() -> Any:
    try:
        import llguidance
    except ModuleNotFoundError as error:
        raise BackendError(str(missing_extra("constrained decoding", "plans", error))) from error
    return llguidance


@lru_cache(256)  # plans often have equal fields, and are filled again and again
def _validated(compiled: str) -> tuple[bool, list[str]]:
    return _guidance().LLMatcher.validate_grammar_with_warnings(compiled, _bytes())


@cache
def _bytes() -> LLTokenizer:
    """A vocabulary whose tokens are the 256 bytes."""
    return _guidance().LLTokenizer("byte")


def has_guidance() -> bool:
    """True if llguidance is installed, which the `plans` and `local` extras bring."""
    return find_spec("llguidance") is not None
