"""A model's tokenizer: text and chats to token ids, and back.

It reads the files of a model folder (`tokenizer.json`, the configs, the chat template) without transformers.

Text that a user typed is data. Two kinds of tokens are *commands* of the model: its special tokens, such as
``<|im_end|>``, and the six tags. If data or the texts of a chat spell a command, they are encoded by other
tokens. Only the chat template writes commands.
"""

from __future__ import annotations

import codecs
import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from datetime import datetime
from itertools import chain, groupby
from operator import itemgetter
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar, cast

import anyio
from anyio.lowlevel import RunVar

from pasta_async.errors import InvalidRequestError, PromptTooLongError, UnsupportedModelError
from pasta_async.lang.document import TAG_TOKENS
from pasta_async.lang.views import Segment
from pasta_async.model_folder import TokenizerFiles
from pasta_async.tag_tokens import TagIds

if TYPE_CHECKING:
    import tokenizers
    from jinja2 import Template

_T = TypeVar("_T")

_LONG_TEXT = 5_000
"""Characters; texts with more are encoded in a worker thread, so that the event loop goes on."""

_WORKERS = 2
"""Number of worker threads of an event loop that encode at the same time."""

_MAX_DEPTH = 64
"""Largest number of levels of lists and objects in a message."""

_SLACK = 16
"""Tokens by which a text's beginning, encoded alone, may exceed its share of the whole text's tokens."""

_SPACE = "\N{LOWER ONE EIGHTH BLOCK}"  # SentencePiece's space
_PRIVATE = (range(0xE000, 0xF900), range(0xF0000, 0xFFFFE), range(0x100000, 0x10FFFE))
_NEVER = "(?!)"  # a regular expression that matches nothing
_FLAGS = ("single_word", "lstrip", "rstrip", "normalized")  # of added tokens
_NO_MODEL: dict[str, Any] = {"type": "BPE", "vocab": {}, "merges": []}
_LOSSY = ("NFC", "NFD", "NFKC", "NFKD", "Precompiled", "Lowercase", "Strip", "StripAccents", "Nmt")


class Tokenizer:
    """Encodes and decodes for one model. Nothing here waits; `run_encoding` is for event loops.

    Decoding joins the bytes of the tokens: nothing is skipped, no space is added or removed. `encode` puts no
    space in front of a text, and normalizes nothing, so that decoding gives the text back.

    Attributes:
        tags: Ids of the six tags; None for a model that was not trained to annotate.
        end_ids: End-of-text ids.
        vocab_size: Number of ids that the tokenizer knows; a model may have more rows.
        commands: Ids of special tokens and tags, which encoded data never has.

    Raises:
        UnsupportedModelError: The files are malformed, or of a kind that is not supported.
    """

    def __init__(self, files: TokenizerFiles) -> None:
        try:
            self._set_up(files)
        except (AttributeError, KeyError, TypeError, ValueError, RecursionError) as error:
            raise UnsupportedModelError(f"the tokenizer cannot be used: {error!r}") from error

    def _set_up(self, files: TokenizerFiles) -> None:
        _, config, template, end_ids = files
        entries: list[dict[str, Any]] = files.tokenizer.get("added_tokens") or []
        added = [_as_command(entry) for entry in entries]
        tokenizer: dict[str, Any] = {**files.tokenizer, "added_tokens": added}
        self._added: dict[int, str] = {entry["id"]: entry["content"] for entry in added}
        self._full = _build(tokenizer)
        self._data = _data_tokenizer(self._full, tokenizer)
        self._read_piece = _piece_reader(tokenizer)
        self._bytes: dict[int, bytes] = {}

        unknown = self._full.token_to_id(str(tokenizer["model"].get("unk_token")))
        special = [entry for entry in added if entry["special"] and entry["id"] != unknown]
        self.commands: set[int] = {entry["id"] for entry in special}
        # `encode_chat` puts a marker behind the first character of a command that a user typed, to tell it
        # from the template's own. A command of a single character cannot be marked.
        spellings = [entry["content"] for entry in special if len(entry["content"]) > 1]
        self._command = re.compile(_alternatives(spellings) or _NEVER)
        # The matches of this one are one character long, so that commands which overlap are found as well.
        endings = _by_first_character(spellings)
        first = "|".join(f"{re.escape(first)}(?={_alternatives(rest)})" for first, rest in endings.items())
        self._command_start = re.compile(first or _NEVER)

        names = _named_tokens(config)
        self._template = _compile_template(template) if template else None
        self._template_source = template or ""
        self._template_tokens = names
        end = self._full.token_to_id(names.get("eos_token", ""))
        ends = dict.fromkeys((*end_ids, end))
        self.end_ids: tuple[int, ...] = tuple(i for i in ends if i is not None)
        ids = {text: i for i, text in self._added.items()}
        has_tags = ids.keys() >= set(TAG_TOKENS)
        self.tags: TagIds | None = TagIds(*(ids[tag] for tag in TAG_TOKENS)) if has_tags else None
        added_ids = [token for text in ids if (token := self._full.token_to_id(text)) is not None]
        self.vocab_size: int = 1 + max([-1, *_ids(tokenizer["model"]["vocab"]).values(), *added_ids])

    @classmethod
    def from_folder(cls, path: str | Path) -> Tokenizer:
        """The tokenizer of a model folder.

        Args:
            path: A folder with a `tokenizer.json`, or that file. `tokenizer_config.json`, a chat template,
                `generation_config.json` and `config.json` are read where they lie beside it.

        Raises:
            UnsupportedModelError: `tokenizer.json` is missing, a file is malformed, or the kind of tokenizer
                is not supported.
        """
        path = Path(path)
        folder = path.parent if path.is_file() else path
        files = TokenizerFiles.read(folder)
        try:
            return cls(files)
        except UnsupportedModelError as error:
            raise UnsupportedModelError(f"{folder / 'tokenizer.json'}: {error}") from error

    def encode(self, text: str, limit: int | None = None) -> list[int]:
        """Encode text as data: no command comes out, whatever it spells; decoding gives the text back.

        Only characters that the vocabulary cannot write at all are lost.

        Args:
            text: Any text.
            limit: Largest number of tokens that the model takes.

        Raises:
            InvalidRequestError: The text is no valid Unicode.
            PromptTooLongError: It has far more tokens than `limit`. Only its beginning was encoded.
        """
        self._check_text(text, limit)
        return self._encode_data(text)

    def encode_chat(
        self,
        messages: Sequence[Mapping[str, Any]],
        template_kwargs: Mapping[str, Any],
        limit: int | None = None,
    ) -> list[int]:
        """Encode messages by the chat template, up to where the answer begins.

        The texts in messages and in `template_kwargs` (descriptions of tools, say) are data. Roles and names
        of fields reach the template as they are, so one that spells a command is refused.

        Args:
            messages: Chat messages, with every field that the template knows. Their contents are texts.
            template_kwargs: Further variables of the template.
            limit: Largest number of tokens that the model takes.

        Raises:
            InvalidRequestError: A text is no valid Unicode, a role or name spells a command, the template
                refuses the messages, or there is none and they are more than one user message.
            PromptTooLongError: They have far more tokens than `limit`. Only a beginning was encoded.
        """
        texts = [*texts_in((messages, template_kwargs))]
        for text in texts:
            self._check_text(text, limit)
        # Every command in the texts is marked before the template joins them with its own commands.
        marker = _unused_character([*texts, self._template_source])
        marked = [
            {**self._mark(message, marker), "role": self._checked_name(message["role"])}
            for message in messages
        ]
        if self._template is None:
            text = marked[0].get("content")
            if len(marked) > 1 or marked[0]["role"] != "user" or not isinstance(text, str):
                raise InvalidRequestError(
                    "this model has no chat template: give it one user message, or text"
                )
            return self.opening + self._encode_rendered(text, marker)
        values = {
            **self._template_tokens,
            "add_generation_prompt": True,
            "tools": None,
            "documents": None,
            **self._mark(dict(template_kwargs), marker),
            "messages": marked,
        }
        rendered = _render(self._template, values)
        # Encoded with commands: as data, each of the template's commands would count as several tokens.
        _check_size(rendered, limit, self._full)
        return self._encode_rendered(rendered, marker)

    def encode_segments(self, segments: Iterable[Segment]) -> tuple[int, ...]:
        """Ids of segments: each tag becomes its id, each run of text is encoded by itself."""
        ids: list[int] = []
        for segment in segments:
            if segment.is_tag and self.tags:
                ids.append(self.tags[TAG_TOKENS.index(segment.text)])
            else:
                ids += self.encode(segment.text)
        return tuple(ids)

    def encode_unguarded(self, text: str) -> list[int]:
        """Encode text as the model's tokenizer does by itself, commands included: never what a user typed."""
        return _token_ids(self._full, text)

    def decode(self, ids: Iterable[int]) -> str:
        """The text of ids, special tokens included; an unfinished character becomes U+FFFD."""
        return b"".join(map(self.token_bytes, ids)).decode("utf-8", "replace")

    def token_bytes(self, token: int) -> bytes:
        """The UTF-8 of one token, maybe only a part of a character; empty for an id without a token."""
        if token not in self._bytes:
            piece = self._full.id_to_token(token)
            added = self._added.get(token)
            self._bytes[token] = added.encode() if added is not None else self._read_piece(piece or "")
        return self._bytes[token]

    def _check_text(self, text: str, limit: int | None) -> None:
        try:
            text.encode()
        except UnicodeEncodeError as error:
            raise InvalidRequestError(
                f"the text has a lone surrogate at character {error.start}, which is no valid Unicode"
            ) from error
        _check_size(text, limit, self._data)

    def _encode_data(self, text: str) -> list[int]:
        ids = _token_ids(self._data, text)
        if self.commands.isdisjoint(ids) and self.decode(ids) == text:
            return ids
        # Some tokenizers lose characters even without a normalizer (runs of spaces, SentencePiece's own sign
        # for a space), or have the spelling of a command in their vocabulary. Then the text is halved until
        # each part decodes to itself; a single character that does not is encoded by the tokens of its bytes.
        if len(text) == 1:
            return self._encode_bytes(text) or ids
        middle = len(text) // 2
        return self._encode_data(text[:middle]) + self._encode_data(text[middle:])

    def _encode_bytes(self, character: str) -> list[int]:
        """A character by SentencePiece's byte tokens; nothing where the vocabulary has none."""
        tokens = [self._full.token_to_id(f"<0x{byte:02X}>") for byte in character.encode()]
        ids = [token for token in tokens if token is not None]
        return ids if len(ids) == len(tokens) else []

    def _encode_rendered(self, text: str, marker: str) -> list[int]:
        """Encode what a template wrote, in which `_mark` left a marker in every command that a user spelled.

        The model's own tokenizer encodes all of it, except for those stretches between two commands of the
        template that hold a marker: they are data.
        """
        if marker not in text:
            return _token_ids(self._full, text)
        ids: list[int] = []
        begin = 0  # of the stretch behind the last command of the template
        encoded = 0  # characters of the text that are encoded
        for end, following in [*(match.span() for match in self._command.finditer(text)), (len(text), 0)]:
            stretch = text[begin:end]
            if marker in stretch:
                # First the text before the stretch, commands included; then the stretch, as data.
                ids += _token_ids(self._full, text[encoded:begin])
                ids += self._encode_data(stretch.replace(marker, ""))
                encoded = end
            begin = following
        return ids + _token_ids(self._full, text[encoded:])

    def _mark(self, value: Any, marker: str) -> Any:
        """A copy of a JSON value with the marker behind the first character of every command in its texts."""
        if isinstance(value, str):
            # A template may write a value as JSON, in quotes, and a quote is the first or last character of
            # some tags.
            return self._command_start.sub(rf"\g<0>{marker}", f'"{value}"')[1:-1]
        if isinstance(value, Mapping):
            fields = cast("Mapping[Any, Any]", value)
            return {self._checked_name(key): self._mark(field, marker) for key, field in fields.items()}
        if isinstance(value, list | tuple):
            return [self._mark(item, marker) for item in cast("Sequence[Any]", value)]
        return value

    def _checked_name(self, name: Any) -> Any:
        # A plain word is harmless, even where the tokenizer was taught it as a special token.
        if isinstance(name, str) and not name.isidentifier() and self._command_start.search(f'"{name}"'):
            raise InvalidRequestError(
                f"{name!r:.80} spells a command of the model, so it cannot be a role or a name"
            )
        return name

    @property
    def opening(self) -> list[int]:
        """Ids that the tokenizer puts in front of every text: a beginning-of-text token, if any."""
        return [i for i in self._full.encode("", add_special_tokens=True).ids if i not in self.end_ids]


class Detokenizer:
    """Turns the ids of one thread into text as they come, holding back unfinished characters."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")

    def add(self, token: int) -> str:
        """The text of the characters that this token completes."""
        return self._decoder.decode(self._tokenizer.token_bytes(token))

    def flush(self) -> str:
        """The text that is held back, U+FFFD for an unfinished character. For use before a tag, and last."""
        rest = self._decoder.decode(b"", final=True)
        self._decoder.reset()
        return rest


_limiter: RunVar[anyio.CapacityLimiter] = RunVar("encoding")


async def run_encoding(size: int, encode: Callable[[], _T]) -> _T:
    """Call a function that reads text: in a worker thread if there is much of it, at once otherwise.

    Args:
        size: Characters to read.
        encode: Calls `Tokenizer.encode`, say, or compiles grammars. Its errors are raised here.

    A cancelled caller leaves at once. The thread finishes its text, whose length a limit has to bound.
    """
    if size <= _LONG_TEXT:
        return encode()
    limiter = _limiter.get(None)
    if limiter is None:
        limiter = anyio.CapacityLimiter(_WORKERS)
        _limiter.set(limiter)
    return await anyio.to_thread.run_sync(encode, abandon_on_cancel=True, limiter=limiter)


def add_tags(tokenizer: dict[str, Any], config: dict[str, Any]) -> None:
    """Add the six tags as special tokens. Tags without ids get the next free ones.

    Args:
        tokenizer: The parsed `tokenizer.json`, which is changed.
        config: The parsed `tokenizer_config.json`, which is changed if it lists added tokens.
    """
    ids = _ids(tokenizer["model"]["vocab"])
    entries = {entry["content"]: entry for entry in tokenizer.setdefault("added_tokens", [])}
    free = max([len(ids), *(entry["id"] + 1 for entry in entries.values())])
    for tag in TAG_TOKENS:
        form = {"content": tag, **dict.fromkeys(_FLAGS, False), "special": True}
        if tag in entries:
            entries[tag].update(form)
        else:
            entries[tag] = {"id": ids.get(tag, free), **form}
            tokenizer["added_tokens"].append(entries[tag])
            free = max(free, entries[tag]["id"] + 1)
        if "added_tokens_decoder" in config:
            config["added_tokens_decoder"][str(entries[tag]["id"])] = form
    tokenizer["added_tokens"].sort(key=itemgetter("id"))


def texts_in(value: Any) -> Iterator[str]:
    """Every string in a JSON value, names of fields included."""
    # A stack of values with their depths: a recursion would overflow in deep values, a loop can refuse them.
    remaining = [(value, 0)]
    while remaining:
        value, depth = remaining.pop()
        if depth > _MAX_DEPTH:
            raise InvalidRequestError(f"the messages are nested more than {_MAX_DEPTH} deep")
        if isinstance(value, str):
            yield value
        elif isinstance(value, Mapping):
            # Both the name and the value of a field may be, or have, strings.
            fields = cast("Mapping[Any, Any]", value)
            remaining += [(item, depth + 1) for field in fields.items() for item in field]
        elif isinstance(value, list | tuple):
            remaining += [(item, depth + 1) for item in cast("Sequence[Any]", value)]


def _unused_character(texts: Iterable[str]) -> str:
    used = set[str]().union(*texts)
    if (unused := next((chr(code) for code in chain(*_PRIVATE) if chr(code) not in used), None)) is None:
        raise InvalidRequestError("the messages have every private-use character: leave one out")
    return unused


def _by_first_character(words: Iterable[str]) -> dict[str, list[str]]:
    """The rests of words behind their first character, grouped by that character."""
    endings: dict[str, list[str]] = {}
    for word in words:
        endings.setdefault(word[:1], []).append(word[1:])
    return endings


def _alternatives(words: Iterable[str]) -> str:
    """A regular expression for any of the words, the longest where one begins another.

    Words that begin alike share the beginning, so that matching is fast: a model may have a thousand special
    tokens, and a text may have a million places where one could begin.
    """
    endings = _by_first_character(words)
    branches = [re.escape(first) + _alternatives(rest) for first, rest in endings.items() if first]
    if not branches:
        return ""
    ends_here = "" in endings  # one of the words ends where the others go on
    if len(branches) == 1 and not ends_here:
        return branches[0]
    return f"(?:{'|'.join(branches)})" + ("?" if ends_here else "")


def _as_command(entry: Mapping[str, Any]) -> dict[str, Any]:
    """An entry of `added_tokens`; commands are matched before the text is normalized.

    Otherwise a normalizer like NFKC would turn full-width characters of a text into a tag.
    """
    if entry["special"] or entry["content"] in TAG_TOKENS:
        return {**entry, "special": True, "normalized": False}
    return {**entry}


def _named_tokens(config: Mapping[str, Any]) -> dict[str, str]:
    """The special tokens that templates may name: ``bos_token``, ``eos_token``, ..."""
    named: dict[str, str] = {}
    for key, value in config.items():
        text: Any = cast("dict[str, Any]", value).get("content") if isinstance(value, dict) else value
        if key.endswith("_token") and isinstance(text, str):
            named[key] = text
    return named


def _compile_template(source: str) -> Template:
    """A chat template with Hugging Face's functions for templates, in a sandbox (ValueError if malformed)."""
    import jinja2
    from jinja2.ext import loopcontrols
    from jinja2.sandbox import ImmutableSandboxedEnvironment

    def refuse(message: str) -> None:
        raise jinja2.TemplateError(message)

    def now(format: str) -> str:  # templates may pass it by name
        return datetime.now().strftime(format)

    def to_json(value: Any, ensure_ascii: bool = False, indent: int | None = None, **options: Any) -> str:
        return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, **options)

    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[loopcontrols]
    )
    environment.filters["tojson"] = to_json
    environment.globals.update(cast("dict[str, Any]", {"raise_exception": refuse, "strftime_now": now}))
    # `{% generation %}` marks an answer for training, which has no meaning here: only the content is kept.
    source = re.sub(r"(\{%[-+]?\s*)generation(\s*[-+]?%\})", r"\1if true\2", source)
    source = re.sub(r"(\{%[-+]?\s*)endgeneration(\s*[-+]?%\})", r"\1endif\2", source)
    try:
        return environment.from_string(source)
    except jinja2.TemplateError as error:
        raise ValueError(f"the chat template is malformed: {error}") from error


def _render(template: Template, values: Mapping[str, Any]) -> str:
    from jinja2 import TemplateError

    try:
        return template.render(values)
    except (
        TemplateError,
        AttributeError,  # of filters
        TypeError,
        ValueError,
        ArithmeticError,
        LookupError,
        RecursionError,
    ) as error:
        raise InvalidRequestError(f"the chat template refuses these messages: {error}") from error


def _check_size(text: str, limit: int | None, tokenizer: tokenizers.Tokenizer) -> None:
    """Refuse a text that is far too long without encoding all of it.

    Few texts have less than one token for eight characters, so a beginning of that length shows it.
    """
    if limit is None:
        return
    beginning = text[: 8 * (limit + _SLACK)]
    if len(beginning) < len(text) and len(_token_ids(tokenizer, beginning)) > limit + _SLACK:
        raise PromptTooLongError(f"the text has more than the {limit} tokens that fit", limit=limit)


def _token_ids(tokenizer: tokenizers.Tokenizer, text: str) -> list[int]:
    if len(text) <= _LONG_TEXT:
        return tokenizer.encode(text, add_special_tokens=False).ids
    # `encode` would hold the GIL until it is done, and with it every other thread.
    return tokenizer.encode_batch_fast([text], add_special_tokens=False)[0].ids


def _build(raw: Mapping[str, Any]) -> tokenizers.Tokenizer:
    from tokenizers import Tokenizer as Wheel
    from tokenizers import models

    untyped: Any = models
    settings = {**raw, "truncation": None, "padding": None}
    model = raw["model"]
    try:
        if model.get("type") != "BPE":
            return Wheel.from_str(json.dumps(settings))
        # A vocabulary of 150,000 entries takes a second to read as JSON, and a quarter of that as an object.
        options = {key: value for key, value in model.items() if value is not None}
        vocabulary = options.pop("vocab")
        del options["type"]
        pairs = (merge.split(" ") if isinstance(merge, str) else merge for merge in options.pop("merges"))
        built: Any = Wheel.from_str(json.dumps({**settings, "model": _NO_MODEL, "added_tokens": []}))
        built.model = untyped.BPE(vocabulary, [tuple(pair) for pair in pairs], **options)
    except Exception as error:  # tokenizers raises bare Exception
        raise ValueError(str(error)) from error
    _add_tokens(built, raw.get("added_tokens") or [])
    return built


def _ids(vocabulary: Mapping[str, int] | Sequence[tuple[str, float]]) -> Mapping[str, int]:
    """Ids of a model's vocabulary, by text; a unigram model has a list, in the order of ids."""
    if isinstance(vocabulary, Mapping):
        return vocabulary
    return {text: i for i, (text, _) in enumerate(vocabulary)}


def _add_tokens(tokenizer: Any, entries: Iterable[Mapping[str, Any]]) -> None:
    """Add the tokens of a `tokenizer.json` in their order, so that each gets its own id again."""
    from tokenizers import AddedToken

    for special, group in groupby(entries, itemgetter("special")):
        tokens = [AddedToken(entry["content"], **{flag: entry[flag] for flag in _FLAGS}) for entry in group]
        if special:
            tokenizer.add_special_tokens(tokens)
        else:
            tokenizer.add_tokens(tokens)


def _data_tokenizer(full: tokenizers.Tokenizer, raw: Mapping[str, Any]) -> Any:
    """A tokenizer that reads no commands, adds no space and normalizes nothing.

    It shares the model of the other one, which may take a second to parse.
    """
    from tokenizers import Tokenizer as Wheel

    steps = {key: _lossless(raw.get(key)) for key in ("normalizer", "pre_tokenizer")}
    built = _build({**raw, **steps, "model": _NO_MODEL, "added_tokens": [], "post_processor": None})
    data: Any = Wheel(full.model)
    if built.normalizer is not None:
        data.normalizer = built.normalizer
    if built.pre_tokenizer is not None:
        data.pre_tokenizer = built.pre_tokenizer
    _add_tokens(data, raw["added_tokens"])
    data.encode_special_tokens = True
    return data


def _lossless(step: dict[str, Any] | None) -> dict[str, Any] | None:
    """A normalizer or pre-tokenizer without the parts that add a space before a text or change characters."""
    if step is None or step["type"] in ("Prepend", *_LOSSY):
        return None
    if step["type"] == "Sequence":
        key = "normalizers" if "normalizers" in step else "pretokenizers"
        return {**step, key: [lossless for part in step[key] if (lossless := _lossless(part))]}
    if step["type"] == "Metaspace":
        fields = {key: step[key] for key in ("type", "replacement", "split") if key in step}
        return {"split": True, **fields, "prepend_scheme": "never"}
    return {**step, "add_prefix_space": False} if step["type"] == "ByteLevel" else step


def _piece_reader(raw: Mapping[str, Any]) -> Callable[[str], bytes]:
    """A function that reads the bytes of a vocabulary entry, as the tokenizer's decoder does."""
    decoder: dict[str, Any] = raw.get("decoder") or {"type": "Fuse"}
    steps: list[dict[str, Any]] = decoder.get("decoders") or [decoder]
    kinds = {step["type"] for step in steps}
    if unknown := kinds - {"ByteLevel", "Metaspace", "Replace", "ByteFallback", "Fuse", "Strip"}:
        raise ValueError(f"its decoder {', '.join(sorted(unknown))} is not byte-level, nor SentencePiece's")
    if "ByteLevel" in kinds:
        return _read_byte_level
    has_spaces = bool(kinds & {"Metaspace", "Replace"})

    def read(piece: str) -> bytes:
        if "ByteFallback" in kinds and re.fullmatch("<0x[0-9A-F]{2}>", piece):
            return bytes([int(piece[3:5], 16)])
        return (piece.replace(_SPACE, " ") if has_spaces else piece).encode()

    return read


_PRINTABLE = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
_BYTES = {chr(byte): byte for byte in _PRINTABLE} | {
    chr(256 + i): byte for i, byte in enumerate(sorted(set(range(256)).difference(_PRINTABLE)))
}
"""The bytes by their characters in a byte-level vocabulary: GPT-2 writes any byte as a printable one."""


def _read_byte_level(piece: str) -> bytes:
    try:
        return bytes(_BYTES[character] for character in piece)
    except KeyError:  # a token that was added to the vocabulary as it is
        return piece.encode()
