"""JSON files, and those files of a model folder that describe its tokenizer."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, ClassVar, NamedTuple, Self, TypeVar, cast

from pydantic import BaseModel, ConfigDict, Field, NonNegativeInt, ValidationError

from pasta_async.errors import UnsupportedModelError

_Validated = TypeVar("_Validated", bound=BaseModel)


class File(BaseModel):
    """Values of a file that is not trusted."""

    model_config: ClassVar[ConfigDict] = ConfigDict(frozen=True, allow_inf_nan=False)


class GenerationDefaults(File):
    """A model's default sampling, from its `generation_config.json`."""

    repetition_penalty: float = Field(default=1.0, gt=0, le=2)
    suppress_tokens: tuple[NonNegativeInt, ...] = ()
    """Ids that are never chosen."""

    @classmethod
    def read(cls, path: Path) -> Self:
        """Read the file, which need not be there.

        Raises:
            UnsupportedModelError: It is malformed.
        """
        raw = {key: value for key, value in (read_object(path) or {}).items() if value is not None}
        return validated(cls, raw, path)


class TokenizerFiles(NamedTuple):
    """The parsed files of a model folder that describe its tokenizer."""

    tokenizer: dict[str, Any]
    """`tokenizer.json`."""
    config: dict[str, Any]
    """`tokenizer_config.json`."""
    template: str | None = None
    """The chat template; without one the model takes a single user message."""
    end_ids: tuple[int, ...] = ()
    """End-of-text ids, beside the config's `eos_token`."""

    @classmethod
    def read(cls, folder: Path) -> TokenizerFiles:
        """Read a folder.

        Raises:
            UnsupportedModelError: tokenizer.json is missing, or a file is malformed.
        """
        file = folder / "tokenizer.json"
        tokenizer = read_object(file)
        config = read_object(folder / "tokenizer_config.json") or {}
        if tokenizer is None:
            raise UnsupportedModelError(f"{file} is missing: save the model's fast tokenizer there")
        return cls(tokenizer, config, find_template(folder, config), named_ends(folder))


def read_object(path: Path) -> dict[str, Any] | None:
    """The object in a JSON file; None where there is no such file.

    Raises:
        UnsupportedModelError: It is no JSON, or holds something else.
    """
    try:
        value: Any = json.loads(path.read_text(encoding="utf-8"))
    except (FileNotFoundError, NotADirectoryError):
        return None
    except (OSError, ValueError, RecursionError) as error:
        raise UnsupportedModelError(f"{path} cannot be read: {error}") from error
    if not isinstance(value, dict):
        raise UnsupportedModelError(f"{path} does not hold a JSON object")
    return cast("dict[str, Any]", value)


def validated(kind: type[_Validated], raw: Mapping[str, Any], path: Path) -> _Validated:
    """Values of a file as a model of pydantic.

    Raises:
        UnsupportedModelError: One is wrong; the message names the file and the key.
    """
    try:
        return kind.model_validate(raw)
    except ValidationError as error:
        wrong = (
            f"{'.'.join(map(str, e['loc']))} is {e['input']!r:.60}: {e['msg']}"
            for e in error.errors(include_url=False)
        )
        raise UnsupportedModelError(f"{path}: {'; '.join(wrong)}") from error


def write_json(path: Path, content: Mapping[str, Any]) -> None:
    """Write an object as an indented JSON file in UTF-8; missing folders are made."""
    path.parent.mkdir(parents=True, exist_ok=True)
    text = json.dumps(content, ensure_ascii=False, indent=2) + "\n"
    path.write_text(text, encoding="utf-8", errors="backslashreplace")  # JSON's own escape of lone surrogates


def named_ends(folder: Path) -> tuple[int, ...]:
    """End-of-text ids in a model folder's `generation_config.json` and `config.json`; -1 there means none.

    Raises:
        UnsupportedModelError: A file is malformed.
    """
    ends: list[int] = []
    for path in (folder / "generation_config.json", folder / "config.json"):
        value: Any = (read_object(path) or {}).get("eos_token_id")
        if value is None:
            continue
        ids = cast("list[Any]", value if isinstance(value, list) else [value])
        if not all(type(i) is int and i >= -1 for i in ids):
            raise UnsupportedModelError(f"{path}: eos_token_id must be an id or several, not {value!r:.80}")
        ends += [i for i in ids if i != -1]
    return tuple(dict.fromkeys(ends))


def find_template(folder: Path, config: Mapping[str, Any]) -> str | None:
    """The chat template of a model folder; of several named ones the default one, or else the first.

    Args:
        folder: The model folder.
        config: Its parsed `tokenizer_config.json`.

    Raises:
        UnsupportedModelError: A file cannot be read, or the template is no text.
    """
    file = folder / "chat_template.jinja"
    if file.is_file():
        try:
            return file.read_text(encoding="utf-8")
        except (OSError, ValueError) as error:
            raise UnsupportedModelError(f"{file} cannot be read: {error}") from error
    template: Any = config.get("chat_template")
    template = template or (read_object(folder / "chat_template.json") or {}).get("chat_template")
    try:
        if isinstance(template, list):
            named: dict[str, Any] = {
                entry["name"]: entry["template"] for entry in cast("list[Any]", template)
            }
            template = named.get("default", next(iter(named.values()), None))
        if template is None or isinstance(template, str):
            return template
    except (KeyError, TypeError):
        pass  # an entry without a name or a template
    raise UnsupportedModelError(
        f"{folder}: the chat template in its JSON files is neither text nor a list of some"
    )
