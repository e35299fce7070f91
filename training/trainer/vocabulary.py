"""The tokenizer of a base model, with the six tag tokens added and a chat template that knows both forms."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer

from pasta_async.backends.local.checkpoint import read_json
from pasta_async.backends.tokenization import TextCodec, add_tags, find_template
from pasta_async.errors import InvalidRequestError
from pasta_async.jobs import write_json
from pasta_async.lang.document import TAG_TOKENS
from pasta_async.protocol import Message
from pasta_async.tag_tokens import TagIds

_COPIED = ("special_tokens_map.json", "vocab.json", "merges.txt", "tokenizer.model")

MARK = "pasta\n"
"""Stands behind a prompt that asks for PASTA-LANG, if the template knew no `pasta`; that for the baseline
(`pasta=false`) stays as the base model knows it."""

_SWITCH = (
    "{%+ if add_generation_prompt and (pasta is not defined or pasta) %}"
    "{{ " + json.dumps(MARK) + " }}"
    "{% endif %}"
)


class Codec:
    """Encodes documents for one model exactly as the backends do, by the files of its folder.

    The model may have the tags or not. `template_kwargs` are further values for its chat template, such as
    `enable_thinking`.

    Raises:
        UnsupportedModelError: The tokenizer cannot be used.
    """

    def __init__(self, folder: Path | str, template_kwargs: Mapping[str, Any] | None = None) -> None:
        self._text = TextCodec.from_folder(folder)
        self._kwargs = dict(template_kwargs or {})
        self.knows_tags: bool = self._text.tags is not None
        stand_ins = range(-len(TAG_TOKENS), 0)  # ids that no text has, and no model sees
        self.tag_ids: TagIds = self._text.tags or TagIds(*stand_ins)
        self.tags: Mapping[str, int] = dict(zip(TAG_TOKENS, self.tag_ids, strict=True))
        self.end: int = next(iter(self._text.end_ids), stand_ins.start - 1)
        """Ends an answer."""

    def encode(self, text: str) -> list[int]:
        """Ids of a text as data: never a special token."""
        return self._text.encode(text)

    def count(self, text: str) -> int:
        """Tokens of a text."""
        return len(self.encode(text))

    def token_bytes(self, token: int) -> bytes:
        """The UTF-8 of one token, maybe only a part of a character."""
        return self._text.token_bytes(token)

    def prompt(self, messages: Sequence[Message], pasta: bool = True) -> list[int]:
        """Ids of a chat up to where the answer begins; without `pasta` it asks for the plain baseline.

        Raises:
            InvalidRequestError: The chat template refuses the messages.
        """
        kwargs = self._kwargs if pasta else {**self._kwargs, "pasta": False}
        return self._text.encode_chat(messages, kwargs)

    def detokenize(self, ids: Iterable[int]) -> str:
        """The text of ids, special tokens kept."""
        return self._text.detokenize(ids)


class ModelCodec(Codec):
    """That of a folder that `write_tokenizer` made; an answer ends as the template ends a turn.

    Raises:
        UnsupportedModelError: The tokenizer cannot be used.
        InvalidRequestError: The chat template does not fit; the message says why.
    """

    def __init__(self, folder: Path, template_kwargs: Mapping[str, Any] | None = None) -> None:
        super().__init__(folder, template_kwargs)
        if not self.knows_tags:
            raise InvalidRequestError(f"{folder} has no tag tokens: make it with write_tokenizer")
        self.vocab_size: int = self._text.vocab_size
        self.end: int = self._end_of_turn(folder)

    def _end_of_turn(self, folder: Path) -> int:
        """The first special token that the template puts behind what an assistant said."""
        said = "qwxz"
        chat = [{"role": "user", "content": "x"}, {"role": "assistant", "content": said}]
        ids = self._text.encode_chat(chat, {**self._kwargs, "add_generation_prompt": False})
        added = Tokenizer.from_file(str(folder / "tokenizer.json")).get_added_tokens_decoder()
        tails = (ids[place:] for place in reversed(range(len(ids))))  # the shortest first
        tail = next((tail for tail in tails if said in self.detokenize(tail)), None)
        if tail is None:
            raise InvalidRequestError(
                f"{folder}: the chat template leaves out what an assistant said; name another one"
            )
        for token in tail[1:]:
            if token in added and added[token].special:
                return token
        raise InvalidRequestError(
            f"{folder}: the chat template puts no special token behind an answer, so answers would have no "
            "end; name another template with --chat-template"
        )


def write_tokenizer(folder: Path, out: Path, template: str | None = None, both: bool = False) -> None:
    """Write the tokenizer of a model folder to `out`, with the tag tokens and perhaps another chat template.

    Files are changed as little as possible: no library, which may rebuild them, loads and saves them. With
    `both`, prompts must differ for PASTA-LANG and for the baseline: a template that does not look at `pasta`
    then gets a switch at its end, which adds a line that says "pasta" unless `pasta=false`.

    Raises:
        UnsupportedModelError: A file is missing or malformed.
        InvalidRequestError: There is no chat template.
    """
    raw, file = read_json(folder / "tokenizer.json"), folder / "tokenizer_config.json"
    config = read_json(file) if file.exists() else {}
    template = template or find_template(folder, config)
    if not template:
        raise InvalidRequestError(
            f"{folder} has no chat template, so its prompts have no form: name one with --chat-template"
        )
    if both and "pasta" not in template:
        template = re.sub(r"\r?\n\Z", "", template) + _SWITCH  # Jinja drops the newline at a template's end
    add_tags(raw, config)
    config.pop("chat_template", None)
    out.mkdir(parents=True, exist_ok=True)
    for name in filter(lambda name: (folder / name).is_file(), _COPIED):
        shutil.copyfile(folder / name, out / name)
    write_json(out / "tokenizer.json", raw)
    write_json(out / "tokenizer_config.json", config)
    (out / "chat_template.jinja").write_text(template, encoding="utf-8")
