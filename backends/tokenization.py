"""Text and token ids, by a model folder's `tokenizer.json`, without transformers.

What a user typed is *data*: whatever it spells, no command comes out of it, neither a tag nor a special token
such as ``<|im_end|>``.
"""

from __future__ import annotations

import codecs
import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from operator import itemgetter
from pathlib import Path
from typing import Any, NamedTuple, TypeVar, cast

import anyio
from tokenizers import AddedToken, Tokenizer

from pasta_async.backends.chat_template import ChatTemplate
from pasta_async.backends.guard import (
    apart,
    as_written,
    beginnings,
    check_fits,
    check_messages,
    free_marker,
    lone_text,
    mark,
    replace_texts,
    spells_command,
    texts_in,
)
from pasta_async.errors import UnsupportedModelError
from pasta_async.lang.document import TAG_TOKENS
from pasta_async.protocol import Message
from pasta_async.tag_tokens import TagIds

_T = TypeVar("_T")

LONG_TEXT = 5_000
"""Characters; texts with more are encoded in a worker thread, so that the event loop goes on."""

LONG_TEXTS_AT_ONCE = 2
"""Worker threads that encode for one model at the same time."""

_SPACE = "\N{LOWER ONE EIGHTH BLOCK}"  # how SentencePiece writes a space
_FLAGS = ("single_word", "lstrip", "rstrip", "normalized")  # of added tokens
_LOSSY = ("NFC", "NFD", "NFKC", "NFKD", "Precompiled", "Lowercase", "Strip", "StripAccents", "Nmt")


class TokenizerFiles(NamedTuple):
    """What the files of a model folder say of its tokenizer."""

    tokenizer: dict[str, Any]
    """The parsed `tokenizer.json`."""
    config: dict[str, Any]
    """The parsed `tokenizer_config.json`."""
    template: str | None = None
    """The chat template, if there is one."""
    end_ids: tuple[int, ...] = ()
    """End-of-text ids."""

    @classmethod
    def read(cls, folder: Path) -> TokenizerFiles:
        """Read a folder: tokenizer.json, and where present the configs and a chat template.

        Raises:
            UnsupportedModelError: tokenizer.json is missing, or a file is malformed.
        """
        config = read_object(folder / "tokenizer_config.json") or {}
        tokenizer = read_object(folder / "tokenizer.json")
        if tokenizer is None:
            raise UnsupportedModelError(
                f"{folder / 'tokenizer.json'} is missing: save the model's fast tokenizer there"
            )
        return cls(tokenizer, config, find_template(folder, config), tuple(named_ends(folder)))

    def codec(self, place: Path) -> TextCodec:
        """The codec of these files, which were read from a place.

        Raises:
            UnsupportedModelError: They are malformed, or of a kind that is not supported.
        """
        try:
            return TextCodec(self)
        except (KeyError, TypeError, ValueError) as error:
            raise UnsupportedModelError(f"{place}: its tokenizer cannot be used: {error!r}") from error


class TextCodec:
    """Encodes and decodes for one model.

    Decoding joins the tokens' own texts: nothing is skipped, no space is added or stripped. Encoding
    therefore adds no space either (SentencePiece-like tokenizers put one before a text by default), so that
    decoding gives every text back; only characters that the vocabulary cannot write at all are lost.
    """

    def __init__(self, files: TokenizerFiles) -> None:
        tokenizer, config, template, end_ids = files
        added: list[dict[str, Any]] = tokenizer.get("added_tokens") or []
        self._added = {entry["id"]: str(entry["content"]) for entry in added}
        plain = [entry for entry in added if not entry["special"]]
        spacing = [entry for entry in plain if entry["content"].replace(_SPACE, " ").isspace()]
        self._full = _build(tokenizer)
        inner = _without_prefix(tokenizer)  # for what is not the beginning of a text
        self._inner = self._full if inner == tokenizer else _build(inner)
        data = _without_prefix({**tokenizer, "added_tokens": spacing}, lossless=True)
        self._data = _with_model(self._full, data)
        self._piece = _piece_reader(tokenizer)
        unknown = self._full.token_to_id(str(tokenizer["model"].get("unk_token")))
        self._commands = set(self._added) - {entry["id"] for entry in spacing} - {unknown}
        self._bytes: dict[int, bytes] = {}
        named = _named_tokens(config)
        self._template = ChatTemplate(template, named) if template else None
        end = self._full.token_to_id(named.get("eos_token", ""))
        self.end_ids: tuple[int, ...] = tuple(i for i in dict.fromkeys((*end_ids, end)) if i is not None)
        by_text = {text: i for i, text in self._added.items()}
        tags = [by_text[tag] for tag in TAG_TOKENS if tag in by_text]
        self.tags: TagIds | None = TagIds(*tags) if len(tags) == len(TAG_TOKENS) else None
        special = {entry["id"] for entry in added if entry["special"]} - {unknown}
        self._special = special.union(self.tags or ())

    @classmethod
    def from_folder(cls, folder: str | Path) -> TextCodec:
        """Read a model folder; raises as `TokenizerFiles.read`, and where the kind is not supported."""
        return TokenizerFiles.read(Path(folder)).codec(Path(folder) / "tokenizer.json")

    @property
    def vocab_size(self) -> int:
        """Ids that the tokenizer knows; a model may have more rows."""
        return self._full.get_vocab_size()

    def encode(self, text: str, limit: int | None = None) -> list[int]:
        """Encode text as data: no added token comes out, whatever it spells; decoding gives it back.

        Raises:
            InvalidRequestError: The text is no valid Unicode.
            PromptTooLongError: Its beginning has more tokens than `limit`.
        """
        self._check_length(texts_in(text), limit)
        return self._encode_parts(text)

    def encode_chat(
        self, messages: Sequence[Message], template_kwargs: Mapping[str, Any], limit: int | None = None
    ) -> list[int]:
        """Encode messages by the chat template, up to where the answer begins.

        Whatever stands in the messages (a role, a content, and what else the template knows) or in
        `template_kwargs` (descriptions of tools, say) is data.

        Raises:
            InvalidRequestError: A message is malformed, the template refuses them, or there is none and they
                are more than one user message.
            PromptTooLongError: The beginning of a text has more tokens than `limit`.
        """
        check_messages(messages)
        texts = texts_in(messages, template_kwargs)
        self._check_length(texts, limit)
        marker = free_marker(texts)
        commands = [self._added[i] for i in self._commands]
        guarded = {text: mark(text, commands, marker) for text in texts}
        marked, kwargs = replace_texts([messages, dict(template_kwargs)], guarded.__getitem__)
        if self._template is not None:
            marked = [apart(message, marker) for message in marked]
            return self._encode_marked(self._template.render(marked, kwargs), marker)
        return self._opening() + self._encode_marked(guarded[lone_text(messages)], marker)

    def _check_length(self, texts: Iterable[str], limit: int | None) -> None:
        if limit:
            for beginning in beginnings(texts, limit):
                check_fits(_token_ids(self._data, beginning), limit)

    def check_data(self, texts: Sequence[str], limit: int | None = None) -> None:
        """Refuse what would not be data where an engine encodes it as it is.

        Raises:
            InvalidRequestError: A text spells a special token or a tag.
            PromptTooLongError: As for `encode`.
        """
        self._check_length(texts, limit)
        for form in as_written(texts):
            for i in self._special.intersection(_token_ids(self._full, form)):
                raise spells_command(form, self._added[i])

    def detokenize(self, ids: Iterable[int]) -> str:
        """The text of ids, special tokens kept, no spaces added; unfinished characters become U+FFFD."""
        return b"".join(map(self.token_bytes, ids)).decode("utf-8", "replace")

    def token_bytes(self, token: int) -> bytes:
        """The UTF-8 of one token, maybe only a part of a character; empty for an id without a token."""
        if token not in self._bytes:
            piece = self._full.id_to_token(token)
            added = self._added.get(token)
            self._bytes[token] = added.encode() if added is not None else self._piece(piece) if piece else b""
        return self._bytes[token]

    def _encode_parts(self, text: str) -> list[int]:
        """Cut the text until each part encodes faithfully: this also cuts inside what spells a command."""
        ids = _token_ids(self._data, text)
        if self._commands.isdisjoint(ids) and self.detokenize(ids) == text:
            return ids
        if len(text) == 1:
            return self._encode_bytes(text) or ids
        middle = len(text) // 2
        return self._encode_parts(text[:middle]) + self._encode_parts(text[middle:])

    def _encode_bytes(self, character: str) -> list[int]:
        """A character by byte tokens, nothing where the vocabulary has none."""
        names = [f"<0x{byte:02X}>" for byte in character.encode("utf-8", "surrogatepass")]
        found = [self._full.token_to_id(name) for name in names]
        ids = [i for i in found if i is not None]
        return ids if len(ids) == len(names) else []

    def _encode_marked(self, text: str, marker: str) -> list[int]:
        """Encode template output: its own special tokens count, those in messages are cut by the marker."""
        written = self._encode_bytes(_SPACE)  # this character would be read as a space
        ids: list[int] = []
        for part in text.split(marker):
            for number, stretch in enumerate(part.split(_SPACE) if written else [part]):
                tokenizer = self._inner if ids or number else self._full
                ids += written if number else []
                ids += _token_ids(tokenizer, stretch)
        return ids

    def _opening(self) -> list[int]:
        """The ids that the tokenizer puts before every text (a beginning-of-text token, if any)."""
        both: list[int] = self._full.encode("", add_special_tokens=True).ids
        return [i for i in both if i not in self.end_ids]


class AsyncTextCodec:
    """A codec for event loops: what is long is encoded in a worker thread.

    Both ways to encode may be cancelled at any point. They raise `InvalidRequestError` for text that is no
    valid Unicode and for messages that are malformed, or refused by the template, and `PromptTooLongError`
    where there are far more tokens than the model takes.
    """

    def __init__(self, codec: TextCodec, context_length: int) -> None:
        self.codec = codec
        self.tags: TagIds | None = codec.tags
        self._limit = context_length
        self._workers = anyio.CapacityLimiter(LONG_TEXTS_AT_ONCE)

    async def encode(self, text: str) -> list[int]:
        """Encode text as data."""
        return await self._run(len(text), lambda: self.codec.encode(text, self._limit))

    async def encode_chat(self, messages: Sequence[Message], template_kwargs: Mapping[str, Any]) -> list[int]:
        """Encode messages by the chat template."""
        size = sum(map(len, texts_in(messages, template_kwargs)))
        return await self._run(size, lambda: self.codec.encode_chat(messages, template_kwargs, self._limit))

    async def check_data(self, texts: Sequence[str]) -> None:
        """Refuse what is no data; raises as `TextCodec.check_data`. May be cancelled at any point."""
        await self._run(sum(map(len, texts)), lambda: self.codec.check_data(texts, self._limit))

    async def detokenize(self, ids: Sequence[int]) -> str:
        """The text of ids, special tokens kept. Never waits, so there is nothing to cancel."""
        return self.codec.detokenize(ids)

    def detokenizer(self) -> Detokenizer:
        """Turns the ids of one thread into text as they come."""
        return Detokenizer(self.codec)

    async def _run(self, size: int, work: Callable[[], _T]) -> _T:
        if size <= LONG_TEXT:
            return work()
        # A cancelled caller leaves at once; the thread finishes what it does, which is bounded by the limit.
        return await anyio.to_thread.run_sync(work, abandon_on_cancel=True, limiter=self._workers)


class Detokenizer:
    """Turns the ids of one thread into text as they come, holding back unfinished characters."""

    def __init__(self, codec: TextCodec) -> None:
        self._codec = codec
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")

    def add(self, token: int) -> str:
        """The text that is certain with this token."""
        return self._decoder.decode(self._codec.token_bytes(token))

    def flush(self) -> str:
        """What was held back, U+FFFD for an unfinished character; call it before a tag and at the end."""
        rest = self._decoder.decode(b"", final=True)
        self._decoder.reset()
        return rest


def read_object(path: Path) -> dict[str, Any] | None:
    """The object in a JSON file; None where there is no such file.

    Raises:
        UnsupportedModelError: It is no JSON, or holds something else.
    """
    try:
        value: Any = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return None
    except (OSError, ValueError, RecursionError) as error:
        raise UnsupportedModelError(f"{path} cannot be read: {error}") from error
    if not isinstance(value, dict):
        raise UnsupportedModelError(f"{path} does not hold a JSON object")
    return cast("dict[str, Any]", value)


def named_ends(folder: Path) -> list[int]:
    """The end-of-text ids of a model folder's `generation_config.json` and `config.json`, where they are.

    Raises:
        UnsupportedModelError: A file is malformed.
    """
    ends: list[int] = []
    for path in (folder / "generation_config.json", folder / "config.json"):
        value: Any = (read_object(path) or {}).get("eos_token_id")
        ids = cast("list[Any]", value if isinstance(value, list) else [] if value is None else [value])
        if not all(type(one) is int for one in ids):
            raise UnsupportedModelError(f"{path}: eos_token_id must be an id or several, not {value!r:.80}")
        ends += ids
    return ends


def add_tags(tokenizer: dict[str, Any], config: dict[str, Any]) -> None:
    """Add the six tags as special tokens, with ids behind the others unless they have some.

    The parsed `tokenizer.json` is changed, and `tokenizer_config.json` where it lists added tokens.
    """
    built: Any = Tokenizer.from_str(json.dumps(tokenizer))
    known = {entry["content"]: entry for entry in tokenizer.setdefault("added_tokens", [])}
    built.add_special_tokens([AddedToken(tag, special=True, normalized=False) for tag in TAG_TOKENS])
    for tag in TAG_TOKENS:
        form = {"content": tag, **dict.fromkeys(_FLAGS, False), "special": True}
        if tag in known:
            known[tag].update(form)
        else:
            tokenizer["added_tokens"].append({"id": built.token_to_id(tag), **form})
        if "added_tokens_decoder" in config:
            config["added_tokens_decoder"][str(built.token_to_id(tag))] = form
    tokenizer["added_tokens"].sort(key=itemgetter("id"))


def find_template(folder: Path, config: Mapping[str, Any]) -> str | None:
    """The chat template of a model folder, whose parsed `tokenizer_config.json` is given.

    Raises:
        UnsupportedModelError: Its file cannot be read.
    """
    file = folder / "chat_template.jinja"
    if file.is_file():
        try:
            return file.read_text(encoding="utf-8")
        except (OSError, ValueError) as error:
            raise UnsupportedModelError(f"{file} cannot be read: {error}") from error
    template: Any = config.get("chat_template")
    template = template or (read_object(folder / "chat_template.json") or {}).get("chat_template")
    if isinstance(template, list):  # several, by name
        several = cast("list[dict[str, str]]", template)
        return {entry["name"]: entry["template"] for entry in several}.get("default")
    return template


def _named_tokens(config: Mapping[str, Any]) -> dict[str, str]:
    """The special tokens that templates may name: ``bos_token``, ``eos_token``, ..."""
    tokens = {key: value for key, value in config.items() if key.endswith("_token")}
    named = {key: value.get("content") if hasattr(value, "get") else value for key, value in tokens.items()}
    return {key: value for key, value in named.items() if isinstance(value, str)}


def _token_ids(tokenizer: Tokenizer, text: str) -> list[int]:
    if len(text) <= LONG_TEXT:
        return tokenizer.encode(text, add_special_tokens=False).ids
    # `encode` would hold the GIL until it is done, and with it every other thread.
    return tokenizer.encode_batch_fast([text], add_special_tokens=False)[0].ids


def _build(raw: dict[str, Any]) -> Tokenizer:
    try:
        return Tokenizer.from_str(json.dumps({**raw, "truncation": None, "padding": None}))
    except Exception as error:  # tokenizers raises bare Exception
        raise ValueError(str(error)) from error


def _with_model(full: Tokenizer, raw: dict[str, Any]) -> Tokenizer:
    """A tokenizer by its JSON with the model of another one, which may take seconds to parse."""
    empty: dict[str, Any] = {"type": "BPE", "vocab": {}, "merges": []}
    steps = _build({**raw, "model": empty, "added_tokens": [], "post_processor": None})
    built: Any = Tokenizer(full.model)
    if steps.normalizer is not None:
        built.normalizer = steps.normalizer
    if steps.pre_tokenizer is not None:
        built.pre_tokenizer = steps.pre_tokenizer
    built.add_tokens(
        [AddedToken(one["content"], **{key: one[key] for key in _FLAGS}) for one in raw["added_tokens"]]
    )
    return built


def _without_prefix(raw: dict[str, Any], *, lossless: bool = False) -> dict[str, Any]:
    """A tokenizer without what adds a space before a text, and if wanted without what changes characters."""
    dropped = {"Prepend", *(_LOSSY if lossless else ())}
    return {**raw, **{key: _edit(raw.get(key), dropped) for key in ("normalizer", "pre_tokenizer")}}


def _edit(step: dict[str, Any] | None, dropped: set[str]) -> dict[str, Any] | None:
    if step is None or step["type"] in dropped:
        return None
    if step["type"] == "Sequence":
        key = "normalizers" if "normalizers" in step else "pretokenizers"
        return {**step, key: [kept for part in step[key] if (kept := _edit(part, dropped))]}
    if step["type"] == "Metaspace":
        kept = {key: step[key] for key in ("type", "replacement", "split") if key in step}
        return {"split": True, **kept, "prepend_scheme": "never"}
    return {**step, "add_prefix_space": False} if step["type"] == "ByteLevel" else step


def _piece_reader(raw: dict[str, Any]) -> Any:
    """How the bytes of a vocabulary entry are read, by the tokenizer's decoder."""
    decoder: dict[str, Any] = raw.get("decoder") or {"type": "Fuse"}
    steps: list[dict[str, Any]] = decoder.get("decoders") or [decoder]
    kinds = {step["type"] for step in steps}
    if unknown := kinds - {"ByteLevel", "Metaspace", "Replace", "ByteFallback", "Fuse", "Strip"}:
        raise ValueError(f"its decoder {', '.join(sorted(unknown))} is not byte-level, nor SentencePiece's")
    if "ByteLevel" in kinds:
        return _read_byte_level
    spaces = kinds & {"Metaspace", "Replace"}

    def read(piece: str) -> bytes:
        if "ByteFallback" in kinds and len(piece) == 6 and piece.startswith("<0x") and piece.endswith(">"):
            return bytes([int(piece[3:5], 16)])
        return (piece.replace(_SPACE, " ") if spaces else piece).encode()

    return read


_PRINTABLE = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
_BYTES = {chr(byte): byte for byte in _PRINTABLE} | {
    chr(256 + i): byte for i, byte in enumerate(sorted(set(range(256)).difference(_PRINTABLE)))
}
"""GPT-2's way to write any byte as a printable character."""


def _read_byte_level(piece: str) -> bytes:
    try:
        return bytes(_BYTES[character] for character in piece)
    except KeyError:  # a token that was added to the vocabulary as it is
        return piece.encode()
