"""Read a recipe: from a file, over the one that it extends, with values set on the command line."""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from pydantic import ValidationError

from pasta_async.errors import InvalidRequestError
from pasta_async.training.corpus.records import explain
from pasta_async.training.recipe.schema import Recipe

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["PACKAGED", "read_recipe", "recipe_path"]

PACKAGED: Path = Path(__file__).parent.parent / "recipes"
"""Where the recipes lie that come with the package."""

Table = dict[str, Any]


def recipe_path(name: Path | str, beside: Path | None = None) -> Path:
    """The file of a recipe: a path (from the folder `beside`, or from here), or the name of a packaged one.

    Raises:
        InvalidRequestError: There is no such file; the message names the packaged ones.
    """
    path = Path(name)
    places = [path if beside is None else beside / path, PACKAGED / path, PACKAGED / f"{path}.toml"]
    for place in places:
        if place.is_file():
            return place
    packaged = ", ".join(sorted(one.stem for one in PACKAGED.glob("*.toml")))
    raise InvalidRequestError(f"there is no recipe {name}; the package has {packaged}")


def read_recipe(path: Path, settings: Sequence[str] = ()) -> Recipe:
    """Read a recipe.

    `extends = "OTHER.toml"` lays it over another one: tables are joined, other values replaced. A value that
    begins with `./` is a path from the recipe's folder, others are from the working directory.

    Args:
        path: Of the file.
        settings: `key=value` with a dotted key and a value as in TOML (or a bare string); they come last.
            Without a value, the key is taken out.

    Raises:
        InvalidRequestError: The file cannot be read, or something in it does not fit; with its place.
    """
    table = _read(path, ())
    for setting in settings:
        key, equals, value = setting.partition("=")
        if not equals:
            raise InvalidRequestError(f"--set {setting}: write key=value")
        _set(table, key.strip().split("."), value.strip(), setting)
    try:
        return Recipe.model_validate(table)
    except ValidationError as error:
        raise InvalidRequestError(f"{path}: {explain(error)}") from None


def _read(path: Path, below: tuple[Path, ...]) -> Table:
    if path.resolve() in below:
        raise InvalidRequestError(f"{path} extends itself")
    try:
        table = tomllib.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise InvalidRequestError(f"{path} cannot be read as a recipe: {error}") from error
    table = _located(table, path.parent)
    other = table.pop("extends", None)
    if other is None:
        return table
    return _joined(_read(recipe_path(str(other), path.parent), (*below, path.resolve())), table)


def _located(table: Table, folder: Path) -> Table:
    """Values that begin with `./` as paths from a folder."""

    def located(value: Any) -> Any:
        if isinstance(value, dict):
            return _located(cast("Table", value), folder)
        if isinstance(value, list):
            return [located(one) for one in cast("list[Any]", value)]
        return str(folder / value) if isinstance(value, str) and value.startswith("./") else value

    return {key: located(value) for key, value in table.items()}


def _joined(under: Table, over: Table) -> Table:
    joined = dict(under)
    for key, value in over.items():
        known = joined.get(key)
        both = isinstance(known, dict) and isinstance(value, dict)
        joined[key] = _joined(cast("Table", known), cast("Table", value)) if both else value
    return joined


def _set(table: Table, keys: Sequence[str], value: str, setting: str) -> None:
    for key in keys[:-1]:
        table = table.setdefault(key, {})
        if not isinstance(table, dict):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise InvalidRequestError(f"--set {setting}: {key} is no table")
    if value:
        table[keys[-1]] = _value(value)
    else:
        table.pop(keys[-1], None)


def _value(text: str) -> object:
    try:
        return tomllib.loads(f"value = {text}")["value"]
    except tomllib.TOMLDecodeError:
        return text
