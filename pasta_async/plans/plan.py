"""Plans: the parts of an answer, and which of them sees which. Made from a model, a schema or a template."""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from string import Formatter
from typing import Any

from pydantic import BaseModel, GetJsonSchemaHandler
from pydantic_core import CoreSchema

from pasta_async.errors import InvalidRequestError
from pasta_async.plans.schema import (
    KEY,
    USUAL_TOKENS,
    Schema,
    annotated_below,
    annotation_settings,
    bare_schema,
    definitions_of,
    field_settings,
    is_count,
    object_schema,
    properties_of,
    resolved,
    schema_of,
    token_limit,
)

_LEAST_TOKENS = 8
"""Smallest token limit of a hole that nothing bounds, however few tokens are left for it."""

_ENOUGH_TOKENS = 64
"""Tokens that each such hole should have: unbounded lists lose items until it has."""

_USUAL_ITEMS = 16
"""Largest number of items in a list that has threads for its items, and no `maxItems`."""

_MOST_FIELDS = 500  # of a plan: what is done for each, for all that it sees, has to end soon
_MOST_LOOKED_AT = 20 * _MOST_FIELDS  # those of lists' items count, too, though most are no holes
_MOST_CHARACTERS = 1_000_000  # of the schemas of all holes, each with the definitions: a second to compile


class Annotation:
    """A field's annotation: for `typing.Annotated`, or by name beside a template."""

    def __init__(self, **settings: Any) -> None:
        self.settings: dict[str, Any] = annotation_settings(settings, type(self).__name__)
        """Its part of `x-pasta`."""

    def __get_pydantic_json_schema__(
        self, core_schema: CoreSchema, handler: GetJsonSchemaHandler
    ) -> dict[str, Any]:
        schema: dict[str, Any] = handler(core_schema)
        return {**schema, KEY: {**schema.get(KEY, {}), **self.settings}}


class After(Annotation):
    """The fields that this one sees, and so waits for: ``stars: Annotated[int, After("strengths")]``.

    It also sees the fields that they see. A field without `After` sees the prompt alone, and begins at once.

    In the items of a list it parts the fields. Fields without `After` are the outline of all items, which one
    thread writes. The others have a thread for each item, which sees the outline; `After()` sees no more.
    """

    def __init__(self, *fields: str) -> None:
        super().__init__(after=list(fields))


class Tokens(Annotation):
    """The token limit of a field. A value that is cut off there is closed, so that it stays valid."""

    def __init__(self, most: int) -> None:
        super().__init__(tokens=most)


class Together(Annotation):
    """The group of a field. Its fields are written one after the other; each sees those before it."""

    def __init__(self, group: str) -> None:
        super().__init__(together=group)


@dataclass(frozen=True, slots=True)
class Hole:
    """A part of the answer that one thread writes."""

    name: str
    """Unique: `stars`, or `sections[].text` for what each item has."""
    after: tuple[str, ...]
    """Names of the holes that it waits for and sees."""
    tokens: int
    """Largest number of tokens that it may have."""
    is_bounded: bool
    """False if its schema allows more than the usual number of tokens, and no `Tokens` sets another."""
    key_tokens: int = 0
    """The part of `tokens` that is reserved for the key, where it is written (`Plan.with_keys`)."""
    key: str | None = None
    """Key of the object that it writes; None for free text, and for the whole of an object."""
    schema: Schema | None = None
    """Schema of the object that it writes, with this key alone. None for free text."""
    list_of: str | None = None
    """The list whose items each have a copy of this hole; None for a hole of the answer itself."""
    head: str = ""
    """Fixed text in front of free text."""
    ends: tuple[str, ...] = ()
    """Texts that end free text."""
    keeps_numbers: bool = False
    """True if a point, comma or colon that ends free text does not do so between two digits."""
    unknown: tuple[str, ...] = ()
    """Names in its `After` that no field has."""

    @property
    def value_schema(self) -> Schema:
        """The schema of its key's value, or of the whole object."""
        schema = self.schema or {}
        return schema if self.key is None else {**schema["properties"][self.key], **definitions_of(schema)}


@dataclass(frozen=True, slots=True)
class ItemList:
    """A list whose items are written in parallel, behind an outline."""

    most: int
    """Largest number of items."""
    least: int
    """The smallest number that `Plan.fitted` lowers `most` to; the same if the schema bounds the list."""
    is_bounded: bool
    """False if nothing bounds the list, so that `most` is the usual number."""
    order: tuple[str, ...]
    """Keys of an item, in the order of the schema."""


class Plan:
    """The holes of an answer, as a graph: the holes that each one sees, its form, its token limit.

    A plan says which holes a hole sees, never when it is written. Limits say how many are written at once;
    the text stays the same.

    Args:
        template: Text with `{name}` for each hole; `{{` and `}}` are braces. A hole sees the fixed text
            in front of it, back to the hole before, and the holes that it is `After`. A hole that
            has a part of a line ends with the line or where the line's fixed text goes on, others where the
            fixed text behind them begins.
        annotations: `After`, `Tokens` or a tuple of both for a hole, by its name.

    Raises:
        InvalidRequestError: The template has no hole, or two of one name, or an annotation is for none.
    """

    holes: tuple[Hole, ...]
    """In the order of the document."""
    lists: Mapping[str, ItemList] = {}
    """Lists with threads for their items, by their keys."""
    schema: Schema | None = None
    """JSON schema of the whole object; None for a template."""
    tail: str = ""
    """Fixed text behind the last hole."""
    unused: tuple[str, ...] = ()
    """Paths of fields whose annotations have no effect: none is a hole."""
    is_tagged: bool = False
    """True for a template with tags, `tagged`."""

    def __init__(self, template: str, /, **annotations: Annotation | Sequence[Annotation]) -> None:
        parts = _parse(template)
        names = [name for _, name in parts if name is not None]
        if not names or len(set(names)) < len(names):
            raise InvalidRequestError("a template needs holes, like {summary}, each with a name of its own")
        if surplus := sorted(annotations.keys() - set(names)):
            raise InvalidRequestError(f"the template has no hole {surplus[0]!r}; it has {', '.join(names)}")
        self.tail = parts.pop()[0] if parts[-1][1] is None else ""  # a last part without a hole
        # The fixed text behind each hole, which ends it.
        behind = [text for text, _ in parts[1:]] + [self.tail]
        holes: list[Hole] = []
        for number, ((head, name), following) in enumerate(zip(parts, behind, strict=True), 1):
            settings = _settings(annotations.get(str(name), ()))
            tokens = settings.get("tokens", USUAL_TOKENS)
            after, unknown = _holes_of(settings.get("after", ()), {key: key for key in names})
            hole = Hole(
                str(name),
                after,
                tokens,
                "tokens" in settings,
                head=head,
                ends=_ends(head, following),
                # In `{hours}:{minutes}` digits are expected behind the sign, at a line's end they are not.
                keeps_numbers="\n" in following or number == len(parts),
                unknown=unknown,
            )
            holes.append(hole)
        self.holes = tuple(holes)

    @property
    def schema_characters(self) -> int:
        """Characters of the schemas of all holes, which the check of the plan compiles."""
        return sum(len(json.dumps(hole.value_schema)) for hole in self.holes if hole.schema is not None)

    @classmethod
    def of(cls, form: PlanForm) -> Plan:
        """The plan of a pydantic model, or of the JSON schema of an object; a plan is returned as it is.

        Each property is a hole. A list whose items have an `After` has a hole for its outline, and more for
        each item.

        Raises:
            InvalidRequestError: It is none of these, its annotations are malformed, or it is too large.
        """
        if isinstance(form, Plan):
            return form
        schema = schema_of(form)
        fields = properties_of(schema)
        if not fields:
            raise InvalidRequestError("a plan's schema is one of an object with properties")
        definitions = definitions_of(schema)
        of_items = {key: properties_of(_item_schema(field, definitions)) for key, field in fields.items()}
        if len(fields) + sum(map(len, of_items.values())) > _MOST_LOOKED_AT:
            raise InvalidRequestError(f"a plan has at most {_MOST_FIELDS} fields")
        apart_of = {key: _apart(item, definitions) for key, item in of_items.items()}
        # Only lists whose items have fields with threads of their own have holes for these.
        count = len(fields) + sum(len(of_items[key]) for key, apart in apart_of.items() if apart)
        if count > _MOST_FIELDS:
            raise InvalidRequestError(f"a plan has at most {_MOST_FIELDS} fields")
        settings = _grouped(fields, definitions)
        # The same schemas without annotations, for grammars. All holes share the definitions.
        bare = bare_schema(schema)
        bare_fields, bare_definitions = properties_of(bare), definitions_of(bare)
        if (copied := count * len(json.dumps(bare_definitions))) > _MOST_CHARACTERS:
            raise InvalidRequestError(
                f"each of the plan's {count} fields has the schema's definitions: {copied:,} characters, "
                f"at most {_MOST_CHARACTERS:,}"
            )
        hole_of = {key: key for key in fields}
        holes: list[Hole] = []
        lists: dict[str, ItemList] = {}
        for key, field in bare_fields.items():
            if not (apart := apart_of[key]):
                holes.append(_hole(key, field, settings[key], hole_of, bare_definitions))
            else:
                lists[key] = _item_list(key, field, of_items[key])
                item_fields = properties_of(resolved(field["items"], bare_definitions))
                outline = _outline(field, item_fields, lists[key], apart)
                holes.append(_hole(key, outline, settings[key], hole_of, bare_definitions))
                # The items' holes may see each other, and the outline in any case.
                item_holes = {name: f"{key}[].{name}" if name in apart else key for name in lists[key].order}
                for name, setting in _grouped(apart, definitions).items():
                    hole = _hole(name, item_fields[name], setting, item_holes, bare_definitions, key)
                    holes.append(hole)
        plan = cls._of_holes(schema, holes, lists)
        if any(key.startswith(f"{name}[") for name in lists for key in fields):
            raise InvalidRequestError(
                "a field is named like a path in one of the plan's lists, `list[0].field`"
            )
        annotated = [path for key in fields for path in annotated_below(fields[key], definitions, key)]
        plan.unused = tuple(path for path in annotated if path not in plan.by_name)
        return plan

    @classmethod
    def in_sequence(cls, form: type[BaseModel] | Schema, tokens: int | None = None) -> Plan:
        """A plan with a single hole, the whole object: a baseline, or for fields that need each other.

        Args:
            form: As for `of`.
            tokens: The object's token limit; None: 4,096, or as many as the plan may have.
        """
        schema = schema_of(form)
        most = annotation_settings({"tokens": 4_096 if tokens is None else tokens}, "the object")["tokens"]
        hole = Hole("object", (), most, tokens is not None, schema=bare_schema(schema))
        return cls._of_holes(schema, [hole], {})

    @classmethod
    def _of_holes(cls, schema: Schema | None, holes: Iterable[Hole], lists: Mapping[str, ItemList]) -> Plan:
        plan = cls.__new__(cls)
        plan.schema = schema
        plan.holes = tuple(holes)
        plan.lists = lists
        return plan

    def with_keys(self, key_tokens: Mapping[str, int]) -> Plan:
        """The plan with room for the keys that holes write beside their values: so many tokens by hole."""
        return self._with(
            replace(hole, tokens=hole.tokens + key_tokens[hole.name], key_tokens=key_tokens[hole.name])
            for hole in self.holes
        )

    def fitted(self, max_tokens: int | None) -> Plan:
        """The plan, made to fit a token limit. Only what nothing bounds shrinks.

        First unbounded lists lose items, the longest one first, until each unbounded hole could have
        `_ENOUGH_TOKENS`. Then these holes share what is left, each with at least `_LEAST_TOKENS`.
        """
        if max_tokens is None or self.tokens <= max_tokens:
            return self
        usual = {hole.name for hole in self.holes if not hole.is_bounded}

        def limited(plan: Plan, most: int) -> Plan:
            """The plan with so many tokens at most for each value that nothing bounds."""
            return plan._with(
                replace(hole, tokens=min(hole.tokens, hole.key_tokens + most)) if hole.name in usual else hole
                for hole in plan.holes
            )

        enough = limited(self, _ENOUGH_TOKENS)
        item_tokens = dict.fromkeys(self.lists, 0)
        for hole in enough.holes:
            if hole.list_of:
                item_tokens[hole.list_of] += hole.tokens
        most = {key: items.most for key, items in self.lists.items()}
        surplus = enough.tokens - max_tokens
        while surplus > 0 and (free := [key for key in most if most[key] > self.lists[key].least]):
            longest = max(free, key=most.__getitem__)
            most[longest] -= 1
            surplus -= item_tokens[longest]
        plan = self
        for key in self.lists:
            if most[key] < self.lists[key].most:
                plan = plan._with_items(key, most[key])
        share = (max_tokens - limited(plan, 0).tokens) // max(1, sum(plan.copies[name] for name in usual))
        return limited(plan, max(share, _LEAST_TOKENS))

    def cut_off(self, room: int) -> Plan:
        """The plan of a whole object in sequence, which ends where the context does; any other as it is."""
        if self.is_text or self.holes[0].key is not None:
            return self
        return self._with(replace(hole, tokens=max(1, min(hole.tokens, room))) for hole in self.holes)

    def tagged(self) -> Plan | None:
        """A template as the main thread of a trained model: each hole is the chunk of a promise.

        A sync stands in front of a hole that is after one of its round. So a hole sees every hole up to the
        last sync, also those that it is not after. None for an object, and where a hole sees a later one.
        """
        joined: list[str] = []  # holes up to the last sync
        round_: list[str] = []  # holes since then
        holes: list[Hole] = []
        for hole in self.holes:
            if not self.is_text or not {*hole.after} <= {*joined, *round_}:
                return None
            if not {*hole.after}.isdisjoint(round_):
                joined += round_
                round_ = []
            holes.append(replace(hole, after=tuple(joined)))
            round_.append(hole.name)
        plan = self._with(holes)
        plan.is_tagged = True
        return plan

    def _with(self, holes: Iterable[Hole]) -> Plan:
        plan = self._of_holes(self.schema, holes, self.lists)
        plan.tail = self.tail
        plan.unused = self.unused
        return plan

    def _with_items(self, key: str, most: int) -> Plan:
        """The plan with so many items in one of its lists at most."""
        schema = self.by_name[key].schema or {}
        array = {**schema["properties"][key], "maxItems": most}
        outline = replace(self.by_name[key], schema={**schema, "properties": {key: array}})
        plan = self._with(outline if hole.name == key else hole for hole in self.holes)
        plan.lists = {**self.lists, key: replace(self.lists[key], most=most)}
        return plan

    @property
    def is_text(self) -> bool:
        """True for a template."""
        return self.schema is None

    @cached_property
    def by_name(self) -> dict[str, Hole]:
        """The holes by their names."""
        return {hole.name: hole for hole in self.holes}

    @property
    def tokens(self) -> int:
        """Largest number of tokens that all holes may have together."""
        return sum(hole.tokens * self.copies[hole.name] for hole in self.holes)

    @cached_property
    def copies(self) -> dict[str, int]:
        """The number of parts that each hole has at most: one, or as many as its list has items."""
        return {hole.name: self.lists[hole.list_of].most if hole.list_of else 1 for hole in self.holes}

    @cached_property
    def seen(self) -> dict[str, frozenset[str]]:
        """Names of the transitive dependencies of each hole; a hole in a cycle contains itself.

        A hole of an item depends on its list's outline. Depending on a list includes its items.
        """
        # The holes of each list's items, by the list.
        item_holes: dict[str, list[str]] = {}
        for hole in self.holes:
            if hole.list_of:
                item_holes.setdefault(hole.list_of, []).append(hole.name)
        # The direct dependencies. Only a hole of the answer itself sees the items of a list: one of an item
        # sees its own item's parts.
        direct: dict[str, set[str]] = {}
        for hole in self.holes:
            seen = set(hole.after)
            if hole.list_of:
                seen.add(hole.list_of)
            else:
                seen.update(item_hole for name in hole.after for item_hole in item_holes.get(name, ()))
            direct[hole.name] = seen
        # Warshall's algorithm on sets of bits: through each hole in turn, those that see it see what it sees.
        names = [*direct]
        bit = {name: 1 << index for index, name in enumerate(names)}
        reached = [sum(bit.get(name, 0) for name in direct[hole]) for hole in names]
        for index, name in enumerate(names):
            for other, mask in enumerate(reached):
                if mask & bit[name]:
                    reached[other] |= reached[index]
        return {
            hole: frozenset(name for name in names if mask & bit[name])
            for hole, mask in zip(names, reached, strict=True)
        }

    def instruction(self) -> str:
        """The sentence that tells a model the form of the answer."""
        if self.schema is not None:
            shown = json.dumps(bare_schema(self.schema, keep=("description",)), ensure_ascii=False)
            return f"Answer with one JSON object of this JSON schema, and nothing else:\n{shown}"
        form = "".join(f"{hole.head}[{hole.name}]" for hole in self.holes) + self.tail
        return f"Write the answer in exactly this form:\n\n{form}"


PlanForm = type[BaseModel] | Schema | Plan
"""A pydantic model, the JSON schema of an object, or a plan."""


def _parse(template: object) -> list[tuple[str, str | None]]:
    """The fixed texts of a template, each with the name of the hole behind it; None behind the last text."""
    if not isinstance(template, str):
        raise InvalidRequestError(f"a template is a text; use Plan.of for {template!r:.80}")
    try:
        parts = list(Formatter().parse(template))
    except ValueError as error:
        raise InvalidRequestError(f"the template cannot be read: {error}; write {{{{ for a brace") from error
    for _, name, spec, conversion in parts:
        if name is not None and (not name.isidentifier() or spec or conversion):
            raise InvalidRequestError(
                f"a hole is a plain name in braces, not {{{name}{spec and ':' + spec}}}"
            )
    # The parser ends a part at an escaped brace: parts without a hole belong to the next one.
    joined: list[tuple[str, str | None]] = []
    text = ""
    for literal, name, _, _ in parts:
        text += literal
        if name is not None:
            joined.append((text, name))
            text = ""
    return [*joined, (text, None)] if text else joined


def _ends(head: str, following: str) -> tuple[str, ...]:
    """Texts that end a hole between two fixed texts."""
    line, same_line = head.rpartition("\n")[2], following.partition("\n")[0]
    if line.strip() or same_line.strip():  # the hole has a part of a line
        return ("\n", same_line) if same_line.strip() else ("\n",)
    # It fills whole lines: the next line of fixed text ends it, and so does a heading like the one above it.
    heading = head.strip().rpartition("\n")[2]
    marks = re.match(r"#+ ", heading)
    next_line = following.strip().partition("\n")[0]
    starts = [text for text in (next_line, marks and marks[0]) if text]
    # In an indented template the model may keep the indentation.
    indented = following.strip("\n").partition("\n")[0]
    indent = indented[: len(indented) - len(indented.lstrip())]
    return tuple(dict.fromkeys(f"\n{space}{text}" for space in ("", indent) for text in starts))


def _settings(annotations: Annotation | Sequence[Annotation]) -> dict[str, Any]:
    given = annotations if isinstance(annotations, Sequence) else [annotations]
    if not all(isinstance(annotation, Annotation) for annotation in given):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise InvalidRequestError(f"a hole takes After, Tokens, or a tuple of them, not {annotations!r}")
    merged: dict[str, Any] = {}
    for annotation in given:
        merged |= annotation.settings
    if "together" in merged:
        raise InvalidRequestError("Together is for fields of an object; holes of a template use After")
    return merged


def _grouped(fields: Mapping[str, Schema], definitions: Schema) -> dict[str, dict[str, Any]]:
    """The `x-pasta` of each field. One of a group is after those of the group before it."""
    grouped: dict[str, dict[str, Any]] = {}
    groups: dict[str, list[str]] = {}
    for key, field in fields.items():
        settings = field_settings(field, key, definitions)
        if "together" in settings:
            before = groups.setdefault(settings["together"], [])
            settings["after"] = [*settings.get("after", ()), *before]
            before.append(key)
        grouped[key] = settings
    return grouped


def _item_schema(field: Schema, definitions: Schema) -> Schema:
    """The schema of a list's items; an empty one if the field is no list."""
    return resolved(field.get("items"), definitions) if field.get("type") == "array" else {}


def _apart(fields: Mapping[str, Schema], definitions: Schema) -> dict[str, Schema]:
    """The fields of a list's items that have threads of their own: those with an `After`."""
    apart = {
        name: field for name, field in fields.items() if "after" in field_settings(field, name, definitions)
    }
    if apart and len(apart) == len(fields):
        raise InvalidRequestError("the items of a list need a field without After: the outline")
    return apart


def _item_list(key: str, field: Schema, item_fields: Iterable[str]) -> ItemList:
    """A list whose items, of these fields, are written in parallel.

    Raises:
        InvalidRequestError: Its `maxItems` or `minItems` is no number.
    """
    most, least = field.get("maxItems"), field.get("minItems", 1)
    if not (most is None or is_count(most)) or not is_count(least):
        raise InvalidRequestError(f"maxItems and minItems of {key!r} are numbers from 0 to 2**63 - 1")
    order = tuple(item_fields)
    if most is not None:
        return ItemList(most, most, True, order)
    return ItemList(max(_USUAL_ITEMS, least), max(1, least), False, order)


def _hole(
    key: str,
    field: Schema,
    settings: Mapping[str, Any],
    hole_of: Mapping[str, str],
    definitions: Schema,
    list_of: str | None = None,
) -> Hole:
    """The hole of a field; `hole_of` has the names of the holes that it may see, by field."""
    after, unknown = _holes_of(settings.get("after", ()), hole_of)
    tokens, is_bounded = token_limit(field, settings, definitions)
    return Hole(
        name=f"{list_of}[].{key}" if list_of else key,
        after=after,
        tokens=tokens,
        is_bounded=is_bounded,
        key=key,
        schema=object_schema({key: field}, definitions),
        list_of=list_of,
        unknown=unknown,
    )


def _outline(
    field: Schema, item_fields: Mapping[str, Schema], items: ItemList, apart: Collection[str]
) -> Schema:
    """The schema of a list whose items have the fields of the outline alone, not those `apart`."""
    outline = {name: part for name, part in item_fields.items() if name not in apart}
    least = {"minItems": field["minItems"]} if "minItems" in field else {}
    return {**least, "type": "array", "items": object_schema(outline, {}), "maxItems": items.most}


def _holes_of(names: Iterable[str], hole_of: Mapping[str, str]) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """The holes with these fields, and the names that no field has, for `check`."""
    unique = dict.fromkeys(names)
    after = dict.fromkeys(hole_of[name] for name in unique if name in hole_of)
    return tuple(after), tuple(name for name in unique if name not in hole_of)
