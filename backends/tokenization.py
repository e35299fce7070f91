"""Text and token ids, by a model folder's `tokenizer.json`, without transformers.

What a user typed is *data*: whatever it spells, no command comes out of it, neither a tag nor a special token
such as ``<|im_end|>``.
"""

from __future__ import annotations

import codecs
import json
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from tokenizers import Tokenizer

from pasta_async.backends.chat import ChatTemplate, free_marker, mark
from pasta_async.errors import InvalidRequestError, UnsupportedModelError
from pasta_async.lang.document import TAG_TOKENS
from pasta_async.protocol import TagIds

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from pasta_async.protocol import Message

__all__ = ["Detokenizer", "TextCodec", "find_template"]

_SPACE = "\N{LOWER ONE EIGHTH BLOCK}"  # how SentencePiece writes a space
_LOSSY = ("NFC", "NFD", "NFKC", "NFKD", "Precompiled", "Lowercase", "Strip", "StripAccents", "Nmt")


class TextCodec:
    """Encodes and decodes for one model.

    Decoding joins the tokens' own texts: nothing is skipped, no space is added or stripped. Encoding
    therefore adds no space either (SentencePiece-like tokenizers put one before a text by default), so that
    decoding gives every text back; only characters that the vocabulary cannot write at all are lost.

    Args:
        tokenizer: The parsed `tokenizer.json`.
        config: The parsed `tokenizer_config.json`.
        template: The chat template, if there is one.
        end_ids: End-of-text ids.
    """

    def __init__(
        self,
        tokenizer: dict[str, Any],
        config: dict[str, Any],
        template: str | None = None,
        end_ids: Sequence[int] = (),
    ) -> None:
        added: list[dict[str, Any]] = tokenizer.get("added_tokens") or []
        self._added = {entry["id"]: str(entry["content"]) for entry in added}
        spacing = [entry for entry in added if not entry["special"] and _is_space(entry["content"])]
        self._full = _build(tokenizer, _keep)
        self._inner = _build(tokenizer, _without_prefix)
        self._data = _build({**tokenizer, "added_tokens": spacing}, _without_prefix)
        self._bare = _build({**tokenizer, "added_tokens": spacing}, _without_loss)
        self._piece = _piece_reader(tokenizer)
        unknown = self._full.token_to_id(str(tokenizer["model"].get("unk_token")))
        self._commands = set(self._added) - {entry["id"] for entry in spacing} - {unknown}
        self._bytes: dict[int, bytes] = {}
        self._template = ChatTemplate(template, _named_tokens(config)) if template else None
        self.end_ids: tuple[int, ...] = tuple(end_ids) or self._ends(config)
        self.tags: TagIds | None = self._find_tags()

    @classmethod
    def from_folder(cls, folder: str | Path) -> TextCodec:
        """Read a model folder: tokenizer.json, and where present tokenizer_config.json and a chat template.

        Raises:
            UnsupportedModelError: tokenizer.json is missing or malformed, or of a kind that is not supported.
        """
        folder = Path(folder)
        config = _read(folder / "tokenizer_config.json") or {}
        tokenizer = _read(folder / "tokenizer.json")
        if tokenizer is None:
            raise UnsupportedModelError(
                f"{folder / 'tokenizer.json'} is missing: save the model's fast tokenizer there"
            )
        try:
            codec = cls(tokenizer, config, find_template(folder, config))
        except (KeyError, TypeError, ValueError) as error:
            raise UnsupportedModelError(f"{folder / 'tokenizer.json'} cannot be used: {error}") from error
        ends = [_as_ids((_read(folder / name) or {}).get("eos_token_id")) for name in _END_FILES]
        codec.end_ids = tuple(dict.fromkeys([*(i for ids in ends for i in ids), *codec.end_ids]))
        return codec

    @property
    def vocab_size(self) -> int:
        """Ids that the tokenizer knows; a model may have more rows."""
        return self._full.get_vocab_size()

    def encode(self, text: str) -> list[int]:
        """Encode text as data: no added token comes out, whatever it spells; decoding gives it back."""
        ids: list[int] = self._data.encode(text, add_special_tokens=False).ids
        return ids if self._faithful(ids, text) else self._encode_parts(text)

    def encode_chat(self, messages: Sequence[Message], template_kwargs: Mapping[str, Any]) -> list[int]:
        """Encode messages by the chat template, up to where the answer begins.

        Raises:
            InvalidRequestError: A message is malformed, the template refuses them, or there is none and they
                are more than one user message.
        """
        _check_messages(messages)
        marker = free_marker(text for message in messages for text in message.values())
        commands = [self._added[i] for i in self._commands]
        marked = [
            {key: mark(text, commands, marker) for key, text in message.items()} for message in messages
        ]
        if self._template is not None:
            return self._encode_marked(self._template.render(marked, template_kwargs), marker)
        if len(messages) != 1 or messages[0]["role"] != "user":
            raise InvalidRequestError("this model has no chat template: give it one user message, or text")
        return self._opening() + self._encode_marked(marked[0]["content"], marker)

    def detokenize(self, ids: Iterable[int]) -> str:
        """The text of ids, special tokens kept, no spaces added; unfinished characters become U+FFFD."""
        return b"".join(map(self.token_bytes, ids)).decode("utf-8", "replace")

    def token_bytes(self, token: int) -> bytes:
        """The UTF-8 of one token, maybe only a part of a character; empty for an id without a token."""
        found = self._bytes.get(token)
        if found is None:
            content = self._added.get(token)
            piece = self._full.id_to_token(token)
            found = (
                content.encode() if content is not None else self._piece(piece) if piece is not None else b""
            )
            self._bytes[token] = found
        return found

    def _faithful(self, ids: list[int], text: str) -> bool:
        return self._commands.isdisjoint(ids) and self.detokenize(ids) == text

    def _encode_parts(self, text: str) -> list[int]:
        """Cut the text until each part encodes faithfully: this also cuts inside what spells a command."""
        ids: list[int] = self._bare.encode(text, add_special_tokens=False).ids
        if self._faithful(ids, text):
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
                ids += tokenizer.encode(stretch, add_special_tokens=False).ids
        return ids

    def _opening(self) -> list[int]:
        """The ids that the tokenizer puts before every text (a beginning-of-text token, if any)."""
        both: list[int] = self._full.encode("", add_special_tokens=True).ids
        return [i for i in both if i not in self.end_ids]

    def _ends(self, config: Mapping[str, Any]) -> tuple[int, ...]:
        end = self._full.token_to_id(_named_tokens(config).get("eos_token", ""))
        return () if end is None else (end,)

    def _find_tags(self) -> TagIds | None:
        by_text = {text: i for i, text in self._added.items()}
        found = [by_text.get(tag) for tag in TAG_TOKENS]
        return None if None in found else TagIds(*(i for i in found if i is not None))


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


_END_FILES = ("generation_config.json", "config.json")


def _read(path: Path) -> dict[str, Any] | None:
    """The JSON object in a file; None where there is no such file."""
    try:
        value: Any = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return None
    except (OSError, ValueError) as error:
        raise UnsupportedModelError(f"{path} cannot be read: {error}") from error
    if not isinstance(value, dict):
        raise UnsupportedModelError(f"{path} does not hold a JSON object")
    return cast("dict[str, Any]", value)


def find_template(folder: Path, config: Mapping[str, Any]) -> str | None:
    """The chat template of a model folder, whose parsed `tokenizer_config.json` is given."""
    file = folder / "chat_template.jinja"
    if file.is_file():
        return file.read_text(encoding="utf-8")
    template: Any = config.get("chat_template")
    template = template or (_read(folder / "chat_template.json") or {}).get("chat_template")
    if isinstance(template, list):  # several, by name
        several = cast("list[dict[str, str]]", template)
        return {entry["name"]: entry["template"] for entry in several}.get("default")
    return template


def _named_tokens(config: Mapping[str, Any]) -> dict[str, str]:
    """The special tokens that templates may name: ``bos_token``, ``eos_token``, ..."""
    tokens = {key: value for key, value in config.items() if key.endswith("_token")}
    named = {key: value.get("content") if hasattr(value, "get") else value for key, value in tokens.items()}
    return {key: value for key, value in named.items() if isinstance(value, str)}


def _as_ids(value: Any) -> list[int]:
    return [] if value is None else [value] if isinstance(value, int) else list(value)


def _is_space(text: str) -> bool:
    return text.replace(_SPACE, " ").isspace()


def _check_messages(messages: Sequence[Message]) -> None:
    if not messages:
        raise InvalidRequestError("there are no messages")
    for i, message in enumerate(messages):
        content: Any = message.get("content")
        if not isinstance(content, str) or not isinstance(message.get("role"), str):
            raise InvalidRequestError(f"message {i} needs a role and a content, both text")


def _build(raw: dict[str, Any], edit: Any) -> Tokenizer:
    """A tokenizer whose steps before the model are kept, changed or dropped by `edit`."""
    steps = {key: _edit(raw.get(key), edit) for key in ("normalizer", "pre_tokenizer")}
    try:
        return Tokenizer.from_str(json.dumps({**raw, **steps, "truncation": None, "padding": None}))
    except Exception as error:  # tokenizers raises bare Exception
        raise ValueError(str(error)) from error


def _edit(step: dict[str, Any] | None, edit: Any) -> dict[str, Any] | None:
    if step is None:
        return None
    for key in ("normalizers", "pretokenizers"):
        if key in step:
            kept = [_edit(part, edit) for part in step[key]]
            return {**step, key: [part for part in kept if part is not None]}
    return edit(step)


def _keep(step: dict[str, Any]) -> dict[str, Any] | None:
    return step


def _without_prefix(step: dict[str, Any]) -> dict[str, Any] | None:
    """Drop what adds a space before a text."""
    match step["type"]:
        case "Prepend":
            return None
        case "Metaspace":
            return {"type": "Metaspace", "replacement": step["replacement"], "prepend_scheme": "never"} | {
                "split": step.get("split", True)
            }
        case "ByteLevel":
            return {**step, "add_prefix_space": False}
        case _:
            return step


def _without_loss(step: dict[str, Any]) -> dict[str, Any] | None:
    """Drop what changes characters, too."""
    return None if step["type"] in _LOSSY else _without_prefix(step)


def _piece_reader(raw: dict[str, Any]) -> Any:
    """How the bytes of a vocabulary entry are read, by the tokenizer's decoder."""
    decoder: dict[str, Any] = raw.get("decoder") or {"type": "Fuse"}
    steps: list[dict[str, Any]] = decoder.get("decoders") or [decoder]
    kinds = {step["type"] for step in steps}
    if unknown := kinds - {"ByteLevel", "Metaspace", "Replace", "ByteFallback", "Fuse", "Strip"}:
        raise ValueError(
            f"its decoder {', '.join(sorted(unknown))} is neither byte-level nor SentencePiece-like"
        )
    if "ByteLevel" in kinds:
        return _read_byte_level
    spaces = kinds & {"Metaspace", "Replace"}

    def read(piece: str) -> bytes:
        if "ByteFallback" in kinds and len(piece) == 6 and piece.startswith("<0x") and piece.endswith(">"):
            return bytes([int(piece[3:5], 16)])
        return (piece.replace(_SPACE, " ") if spaces else piece).encode()

    return read


def _byte_of_character() -> dict[str, int]:
    """GPT-2's way to write any byte as a printable character."""
    plain = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    table = {chr(byte): byte for byte in plain}
    others = (byte for byte in range(256) if byte not in set(plain))
    return table | {chr(256 + i): byte for i, byte in enumerate(others)}


_BYTES = _byte_of_character()


def _read_byte_level(piece: str) -> bytes:
    try:
        return bytes(_BYTES[character] for character in piece)
    except KeyError:  # a token that was added to the vocabulary as it is
        return piece.encode()
