"""JSON Schemas: the tree of fields, validation, and equality of values.

`parse_schema` refuses a schema whose fields are not a finite tree. `Node.read` validates a value, and reads
numbers and dates that are written as texts.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from functools import cached_property, lru_cache, partial
from itertools import chain
from typing import Any, TypeAlias
from urllib.parse import unquote

from semcal.errors import InputError, shown
from semcal.files import dumps, fault, json_checksum
from semcal.text.normal_form import normal_form

JsonValue: TypeAlias = Any
"""A value of JSON."""

#: Largest number of leaf paths of a schema.
MOST_LEAVES = 500
#: Keywords whose meaning a tree of fields cannot express.
REFUSED = (
    "not",
    "if",
    "then",
    "else",
    "patternProperties",
    "propertyNames",
    "contains",
    "dependentSchemas",
    "dependentRequired",
    "unevaluatedProperties",
    "unevaluatedItems",
    "$dynamicRef",
)
#: The key of an empty field: null, or a blank string.
EMPTY = (False, None)
#: The types of JSON that a leaf may have.
TYPES = ("string", "number", "integer", "boolean")
#: The types that values of keywords have; other keywords are notes.
KEYWORDS: Mapping[str, type | tuple[type, ...]] = {
    **dict.fromkeys(("properties", "discriminator", "$defs", "definitions"), Mapping),
    **dict.fromkeys(("required", "enum", "anyOf", "oneOf", "allOf", "prefixItems"), list),
    **dict.fromkeys(("pattern", "format", "$ref", "description", "title"), str),
    **dict.fromkeys(("minItems", "maxItems", "minLength", "maxLength"), int),
    **dict.fromkeys(("minProperties", "maxProperties"), int),
    **dict.fromkeys(("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum"), (int, float)),
    **dict.fromkeys(("multipleOf", "x-tolerance"), (int, float)),
    **dict.fromkeys(("x-ordered", "x-set", "uniqueItems"), bool),
    "additionalProperties": (bool, Mapping),
    "items": (bool, Mapping),
    "type": (str, list),
}
_NUMBERS = (int, (int, float))
#: Keywords that do not change values, and definitions, which references have resolved.
NOTES = ("title", "examples", "default", "$schema", "$id", "$comment", "$defs", "definitions")
#: The keywords that limit values, with their checks; a keyword for another type holds.
CHECKS: Mapping[str, Callable[[Any, Any], bool]] = {
    "enum": lambda value, choices: any(_equal(value, choice) for choice in choices),
    "const": lambda value, choice: _equal(value, choice),
    "minItems": lambda value, limit: not isinstance(value, list) or len(value) >= limit,
    "maxItems": lambda value, limit: not isinstance(value, list) or len(value) <= limit,
    "uniqueItems": lambda value, on: not (on and isinstance(value, list)) or _are_distinct(value),
    "minProperties": lambda value, limit: not isinstance(value, Mapping) or len(value) >= limit,
    "maxProperties": lambda value, limit: not isinstance(value, Mapping) or len(value) <= limit,
    "minLength": lambda value, limit: not isinstance(value, str) or len(value) >= limit,
    "maxLength": lambda value, limit: not isinstance(value, str) or len(value) <= limit,
    "pattern": lambda value, pattern: not isinstance(value, str) or bool(re.search(pattern, value)),
    "minimum": lambda value, limit: not _is_number(value) or value >= limit,
    "maximum": lambda value, limit: not _is_number(value) or value <= limit,
    "exclusiveMinimum": lambda value, limit: not _is_number(value) or value > limit,
    "exclusiveMaximum": lambda value, limit: not _is_number(value) or value < limit,
    "multipleOf": lambda value, step: not _is_number(value) or not step or _is_whole(value / step),
}
#: The normal forms of values that are compared many times: samples repeat them.
_form = lru_cache(maxsize=4096)(normal_form)
_NUMBER = re.compile(r"(-?)(?:[$€£¥₹]|[a-z]{2,3} ?)?(-?\d+(?:\.\d+)?)(?: ?[a-z]{3})?")
#: Minus signs of accounts: "(12.50)" and "12.50-".
_MINUS = re.compile(r"\([^()]*\d|\d[-\u2212]\s*$")
_DATE = re.compile(r"\d{4}-\d\d-\d\d")


class InvalidDocument(InputError):
    """A value is not valid under a schema; the message begins with the JSON Pointer of the value."""


@dataclass(frozen=True)
class Node:
    """A place of a schema: an object, a list or a leaf.

    A list whose elements are compared as a whole (`x-set`, or a list in a list) is a leaf.
    """

    path: str  # JSON Pointer, with * for the elements of a list
    kind: str  # "object", "list" or "leaf"
    nullable: bool = False
    types: tuple[str, ...] = ()  # of a leaf; empty if every value is allowed
    rules: Mapping[str, Any] = field(default_factory=dict, hash=False)  # the keywords that limit values
    properties: Mapping[str, Node] = field(default_factory=dict, hash=False)
    required: frozenset[str] = frozenset()
    additional: Node | None = None  # for further keys of an object; None if they are invalid
    items: Node | None = None  # the elements of a list
    ordered: bool = False  # elements are compared by position
    options: tuple[Node, ...] = ()  # the leaf has the first of these types that reads the value
    tag: str = ""  # the property that chooses among `variants`
    variants: Mapping[str, Node] = field(default_factory=dict, hash=False)
    description: str = ""

    @property
    def tolerance(self) -> float:
        """The difference up to which two numbers are equal; of alternative types the largest."""
        of_options = max((option.tolerance for option in self.options), default=0.0)
        return float(self.rules.get("x-tolerance", of_options))

    def is_near(self, first: float, second: float) -> bool:
        """Return whether two numbers differ by at most the tolerance; they may be rounded."""
        rounding = 1e-14 * max(abs(first), abs(second))
        return self.tolerance > 0 and abs(first - second) <= self.tolerance + rounding

    @property
    def is_free(self) -> bool:
        """True if every value is allowed."""
        limited = self.types or self.options or self.items or {"enum", "const"} & self.rules.keys()
        return self.kind == "leaf" and not limited

    @property
    def to_the_letter(self) -> bool:
        """True if strings are compared to the letter: identifiers, e-mail addresses and codes."""
        is_code = {"pattern", "format", "enum", "const"} & self.rules.keys() and not self.is_date
        return bool(is_code) or any(option.to_the_letter for option in self.options)

    @property
    def is_date(self) -> bool:
        """True if strings are dates."""
        return self.rules.get("format") in ("date", "date-time")

    @property
    def question(self) -> str:
        """The name and the description of the field, as a question for an equivalence."""
        name = next((part for part in reversed(self.path.split("/")) if part not in ("", "*")), "value")
        name = name.replace("~1", "/").replace("~0", "~").replace("_", " ")
        return f"{name}: {self.description}" if self.description else name

    def variant(self, value: Mapping[str, Any]) -> Node:
        """Return the node for an object, which its tag chooses if there are variants."""
        return self.variants.get(str(value.get(self.tag)), self) if self.tag else self

    def child(self, name: str) -> Node:
        """Return the node of a property; further keys share one field if the schema describes them."""
        if name in self.properties:
            return self.properties[name]
        assert self.additional is not None
        is_described = not self.additional.is_free
        return self.additional if is_described else replace(_ANY, path=f"{self.path}/{escaped(name)}")

    # ---- Validation

    def read(self, value: JsonValue, place: str = "", *, reference: bool = False) -> JsonValue:
        """Return the value with numbers and dates read; InvalidDocument if it is not valid.

        In a `reference` null is valid everywhere, and a leaf may hold alternatives: {"any_of": [...]}, or for
        a field without lists a list. They are returned as `any_of`.
        """
        if value is None:
            if self.nullable or self.is_free or reference:
                return None
            raise _invalid(place, "null is not allowed")
        if reference and self.kind != "leaf" and self._is_choice(value):
            raise _invalid(place, "alternatives are for fields, not for objects and lists")
        if reference and self.kind == "leaf" and (accepted := self._alternatives(value)) is not None:
            if not accepted:
                raise _invalid(place, "there is no accepted value")
            return {"any_of": [self.read(one, place) if one is not None else None for one in accepted]}
        if self.options:
            for option in self.options:
                with suppress(InvalidDocument):
                    return option.read(value, place)
            raise _invalid(place, f"{shown(value)} has none of the allowed types")
        if self.kind == "object":
            value = self._read_object(value, place, reference)
        elif self.items is not None:
            if not isinstance(value, list):
                raise _invalid(place, f"a list is expected, got {shown(value)}")
            element = self.items
            value = [
                element.read(item, f"{place}/{number}", reference=reference)
                for number, item in enumerate(value)
            ]
        elif self.types:
            value = self._read_leaf(value, place)
        elif self.is_free and (
            reason := fault(value)
        ):  # values that the schema does not describe may be deep
            raise _invalid(place, reason)
        for name, holds in CHECKS.items():
            if name in self.rules and not holds(value, self.rules[name]):
                raise _invalid(place, f"{shown(value)} is not valid under {name} = {shown(self.rules[name])}")
        return value

    def _is_choice(self, value: JsonValue) -> bool:
        is_choice = isinstance(value, Mapping) and value.keys() == {"any_of"}
        return is_choice and isinstance(value["any_of"], list) and "any_of" not in self.properties

    def _alternatives(self, value: JsonValue) -> list[JsonValue] | None:
        if self._is_choice(value):
            return list(value["any_of"])
        return value if isinstance(value, list) and self.items is None and not self.is_free else None

    def _read_object(self, value: JsonValue, place: str, reference: bool) -> JsonValue:
        if not isinstance(value, Mapping):
            raise _invalid(place, f"an object is expected, got {shown(value)}")
        if self.tag and str(tag := value.get(self.tag)) not in self.variants:
            expected = ", ".join(self.variants)
            raise _invalid(f"{place}/{self.tag}", f"got {shown(tag)}, expected one of {expected}")
        node = self.variant(value)
        if missing := sorted(node.required - value.keys()):
            raise _invalid(f"{place}/{escaped(missing[0])}", "this key is required, and missing")
        further = sorted(value.keys() - node.properties.keys())
        if further and node.additional is None:
            raise _invalid(f"{place}/{escaped(further[0])}", "this key is not in the schema")
        return {
            name: node.child(name).read(item, f"{place}/{escaped(name)}", reference=reference)
            for name, item in value.items()
        }

    def _read_leaf(self, value: JsonValue, place: str) -> JsonValue:
        if isinstance(value, str):
            if "string" not in self.types and {"number", "integer"} & {*self.types}:
                number = _number(value)
                value = value if number is None else number
            elif self.rules.get("format") == "date":
                value = _day(value)
        found = {str: "string", bool: "boolean", int: "number", float: "number"}.get(type(value))
        if found == "number" and not abs(value) < 1e300:  # NaN too
            found = None
        if found == "number" and "number" not in self.types and value == int(value):
            found, value = "integer", int(value)
        if found not in self.types:
            raise _invalid(place, f"expected {' or '.join(self.types)}, got {shown(value)}")
        return value

    # ---- Equality

    def key(self, value: JsonValue) -> Hashable:
        """Return what equal values of the field have in common.

        Numbers and dates are compared by value, identifiers to the letter, other strings by their normal
        form, and the elements of an `x-set` without their order. Blank strings and empty lists equal null.
        """
        if value is None or isinstance(value, bool):
            return value is not None, value
        if value == [] or (isinstance(value, str) and not value.strip()):
            return EMPTY
        for option in self.options:
            with suppress(InvalidDocument):
                option.read(value)
                return option.key(value)
        if isinstance(value, str):
            return self._text_key(value)
        if isinstance(value, int | float):
            return "number", value
        if isinstance(value, list):
            element = self.items or _ANY
            keys = [element.key(item) for item in value]
            return "list", tuple(keys) if self.ordered or self.items is None else frozenset(keys)
        node = self.variant(value)
        known = node if node.kind == "object" else _OPEN
        return "object", frozenset(
            (name, known.child(name).key(item))
            for name, item in value.items()
            if item is not None and (name in known.properties or known.additional is not None)
        )

    def _text_key(self, value: str) -> Hashable:
        if self.rules.get("format") == "date-time":
            try:
                moment = datetime.fromisoformat(value.strip())
            except ValueError:
                return "text", _form(value)
            utc = moment.astimezone(UTC) if moment.tzinfo else moment
            return "time", utc.isoformat()
        letters = unicodedata.normalize("NFC", value).strip()
        return "text", letters if self.to_the_letter else _form(value) or letters

    def leaves(self) -> Iterator[Node]:
        """Yield the leaves of the schema, of all variants and of further keys that it describes."""
        if self.kind == "leaf":
            yield self
        elif self.items is not None:
            yield from self.items.leaves()
        further = [] if self.additional is None or self.additional.is_free else [self.additional]
        for node in (*self.properties.values(), *self.variants.values(), *further):
            yield from node.leaves()


#: Nodes of values that a schema does not describe.
_ANY = Node("", "leaf")
_OPEN = Node("", "object", additional=_ANY)


@dataclass(frozen=True)
class Schema:
    """A JSON Schema with its tree of fields."""

    json: Mapping[str, Any]
    root: Node

    @cached_property
    def hash(self) -> str:
        """The hash of the canonical form: all properties are required, no others are allowed, no notes.

        OpenAI's clients send a pydantic class as such a strict schema, which must equal the class itself.
        """
        form = _canonical(_Parser(self.json), self.json)
        return json_checksum({**form, "description": None})[:32]  # a tool has the description of the root


def parse_schema(json: JsonValue) -> Schema:
    """Return the tree of fields of a JSON Schema; InputError with the place of what is not supported.

    >>> schema = parse_schema({"type": "object", "properties": {"total": {"type": "number"}}})
    >>> schema.root.read({"total": "$1,200.50"})
    {'total': 1200.5}
    """
    if isinstance(json, type) and hasattr(json, "model_json_schema"):
        json = json.model_json_schema()
    if not isinstance(json, Mapping):
        raise InputError(f"'schema' must be a JSON Schema, got {shown(json)}. Pass an object")
    try:
        return _parsed(dumps(dict(json)))
    except RecursionError:
        raise InputError("'schema' is nested too deeply. Flatten it") from None


@lru_cache(maxsize=64)
def _parsed(text: str) -> Schema:
    import json

    document = json.loads(text)
    root = _Parser(document).node(document, "", "#", ())
    if root.kind != "object":
        raise InputError("'schema' #: the root must be an object. Put the value into a property")
    if (count := sum(1 for _ in root.leaves())) > MOST_LEAVES:
        raise InputError(
            f"'schema' #: there are {count} leaf paths, allowed are {MOST_LEAVES}. Split the schema"
        )
    schema = Schema(document, root)
    _ = schema.hash  # computed here, where a schema that is nested too deeply is refused
    return schema


@dataclass
class _Parser:
    document: Mapping[str, Any]
    n_nodes: int = 0

    def node(self, json: JsonValue, path: str, place: str, trail: tuple[str, ...]) -> Node:
        """Return the node of a schema at a `place`; `trail` holds the references that lead there."""
        self.n_nodes += 1
        if self.n_nodes > 20 * MOST_LEAVES:  # references to references may multiply
            raise InputError(
                f"'schema' {place}: there are more than {MOST_LEAVES} leaf paths. Split the schema"
            )
        json, trail = self.resolved(json, place, trail)
        if "prefixItems" in json and not json.get("items"):  # a tuple
            json |= {"items": {"anyOf": json["prefixItems"]}, "x-ordered": True}
        names = self.resolved(json.get("propertyNames", True), f"{place}/propertyNames", trail)[0]
        if "enum" in names:  # a dictionary whose keys are known
            keys = dict.fromkeys(map(str, names["enum"]), json.get("additionalProperties", True))
            json |= {"properties": keys | json.get("properties", {}), "additionalProperties": False}
            del json["propertyNames"]
        if refused := next((name for name in REFUSED if name in json), None):
            raise InputError(f"'schema' {place}: {refused!r} is not supported. Remove the keyword")
        for combined in ("anyOf", "oneOf"):
            if combined in json:
                return self._union(json, combined, path, place, trail)
        declared = json.get("type")
        types = [declared] if isinstance(declared, str) else list(declared or ())
        nullable = "null" in types or json.get("nullable") is True  # as in OpenAPI 3.0
        nullable = nullable or None in (*json.get("enum", ()), json.get("const", ""))
        kinds = [name for name in types if name != "null"]
        if not kinds:
            kinds = ["object"] if "properties" in json else ["array"] if "items" in json else []
        for name, allowed in (("x-set", ("array",)), ("x-ordered", ("array",)), ("x-tolerance", TYPES)):
            if name in json and not {*kinds} <= {*allowed}:
                raise InputError(f"'schema' {place}: {name!r} has no effect on {kinds[0]}. Remove it")
        common: dict[str, Any] = {"nullable": nullable, "description": _description(json)}
        if kinds == ["object"]:
            return self._object(json, path, place, trail, common)
        if kinds == ["array"]:
            items = json.get("items", True)
            element = self.node({} if items is True else items, f"{path}/*", f"{place}/items", trail)
            if element.kind == "list":  # a list in a list is compared as a whole
                element = replace(element, kind="leaf", ordered=True)
            kind, ordered = "leaf" if json.get("x-set") else "list", bool(json.get("x-ordered"))
            return Node(path, kind, rules=json, items=element, ordered=ordered, **common)
        if unknown := [name for name in kinds if name not in TYPES]:
            raise InputError(
                f"'schema' {place}: the type {shown(unknown[0])} does not exist, or is not supported beside "
                f"other types. Use one of {', '.join(TYPES)}, object or array"
            )
        return Node(path, "leaf", types=tuple(kinds), rules=json, **common)

    def resolved(
        self, json: JsonValue, place: str = "#", trail: tuple[str, ...] = ()
    ) -> tuple[dict[str, Any], tuple[str, ...]]:
        """Follow references and merge `allOf`."""
        if json is True:
            return {}, trail
        merged = _checked(json, place)
        while "$ref" in merged or "allOf" in merged:
            parts = list(merged.pop("allOf", ()))
            if (ref := merged.pop("$ref", None)) is not None:
                if ref != "#" and not ref.startswith("#/"):
                    raise InputError(
                        f"'schema' {place}: the reference {shown(ref)} leads out of the schema. Copy the "
                        "part into '$defs'"
                    )
                if ref in trail or ref in ("#", "#/"):
                    raise InputError(
                        f"'schema' {place}: {ref} refers to itself, so that the number of fields is not "
                        "limited. Write out the levels that you need"
                    )
                trail = (*trail, ref)
                parts.append(self._at(ref, place))
            for part in parts:
                inner = _checked(part, place)
                for key in sorted(CHECKS.keys() & inner.keys() & merged.keys()):
                    if inner[key] != merged[key]:
                        pair = f"{shown(inner[key])} and {shown(merged[key])}"
                        raise InputError(f"'schema' {place}: {key!r} is both {pair}. Write one value")
                for key in ("properties", "required"):
                    if key in inner and key in merged:
                        both = (inner[key], merged[key])
                        inner[key] = {**both[0], **both[1]} if key == "properties" else [*both[0], *both[1]]
                        merged.pop(key)
                merged = {**inner, **merged}
        return merged, trail

    def _at(self, ref: str, place: str) -> JsonValue:
        value: Any = self.document
        for part in ref.removeprefix("#").split("/")[1:]:
            name = unquote(part).replace("~1", "/").replace("~0", "~")
            if not isinstance(value, Mapping) or name not in value:
                raise InputError(f"'schema' {place}: {ref} does not exist in the schema")
            value = value[name]
        return value

    def _object(
        self,
        json: Mapping[str, Any],
        path: str,
        place: str,
        trail: tuple[str, ...],
        common: dict[str, Any],
    ) -> Node:
        properties = {
            name: self.node(part, f"{path}/{escaped(name)}", f"{place}/properties/{escaped(name)}", trail)
            for name, part in (json.get("properties") or {}).items()
        }
        further = json.get("additionalProperties", True)
        additional = None
        if further is not False:
            part = {} if further is True else further
            additional = self.node(part, f"{path}/*", f"{place}/additionalProperties", trail)
        required = frozenset(json.get("required") or ())
        for name in sorted(required - properties.keys()):
            properties[name] = replace(_ANY, path=f"{path}/{escaped(name)}")
        parts: dict[str, Any] = {"properties": properties, "required": required, "additional": additional}
        return Node(path, "object", rules=json, **parts, **common)

    def _union(
        self, json: dict[str, Any], combined: str, path: str, place: str, trail: tuple[str, ...]
    ) -> Node:
        """Return the node of alternatives: null and one other, leaves, or objects with a discriminator."""
        rest = {key: value for key, value in json.items() if key not in (combined, "discriminator")}
        discriminator = json.get("discriminator") or {}
        given, mapping = discriminator.get("propertyName", ""), discriminator.get("mapping") or {}
        if not isinstance(given, str) or not isinstance(mapping, Mapping):
            raise InputError(
                f"'schema' {place}: 'discriminator' cannot be {shown(discriminator)}. Correct it"
            )
        branches = []
        for number, part in enumerate(json[combined]):
            inner, inner_trail = self.resolved(part, f"{place}/{combined}/{number}", trail)
            ref = part.get("$ref") if isinstance(part, Mapping) else None
            own = (inner.get("properties") or {}).get(given)
            if ref and isinstance(own, Mapping) and not {"const", "enum"} & own.keys():
                names = [name for name, target in mapping.items() if target == ref]
                own = {**own, "enum": names or [ref.rpartition("/")[2]]}  # as OpenAPI maps the references
                inner = {**inner, "properties": {**inner["properties"], given: own}}
            branches.append(
                (number, {**inner, **rest} if "type" not in rest else {**rest, **inner}, inner_trail)
            )
        others = [branch for branch in branches if branch[1].get("type") != "null"]
        nullable = len(others) < len(branches)
        nodes = [
            self.node(part, path, f"{place}/{combined}/{number}", of_part) for number, part, of_part in others
        ]
        nullable = nullable or any(node.nullable for node in nodes)
        description = _description(json)
        if len(nodes) == 1:
            return replace(nodes[0], nullable=nullable, description=description or nodes[0].description)
        if nodes and all(node.kind == "leaf" and node.items is None for node in nodes):
            return Node(path, "leaf", nullable, options=tuple(nodes), description=description)
        are_objects = all(node.kind == "object" and not node.variants for node in nodes)
        if nodes and are_objects and (tag := _common_tag(nodes, given)):
            variants = {value: node for node in nodes for value in _tag_values(node, tag)}
            return Node(path, "object", nullable, tag=tag, variants=variants, description=description)
        raise InputError(
            f"'schema' {place}: {combined} has alternatives that no discriminator tells apart. Use one "
            "type, or objects that have a property with its own 'const'"
        )


def _checked(json: JsonValue, place: str) -> dict[str, Any]:
    """Return a copy of a schema; InputError if a keyword has a value of another type."""
    if not isinstance(json, Mapping):
        raise InputError(f"'schema' {place}: a schema must be an object, got {shown(json)}. Correct it")
    for name, kinds in KEYWORDS.items():
        value = json.get(name, kinds)
        names = value if isinstance(value, list) and name in ("required", "type") else ()
        is_wrong = not isinstance(value, kinds) or (isinstance(value, bool) and kinds in _NUMBERS)
        if value is not kinds and (is_wrong or not all(isinstance(one, str) for one in names)):
            raise InputError(f"'schema' {place}: {name!r} cannot be {shown(value)}. Correct it")
    if json.get("x-tolerance", 0) < 0:
        raise InputError(f"'schema' {place}: 'x-tolerance' cannot be negative. Correct it")
    try:
        re.compile(json.get("pattern", ""))
    except (re.error, OverflowError) as error:
        raise InputError(f"'schema' {place}: 'pattern' is not valid in Python: {error}. Correct it") from None
    return dict(json)


def _description(json: Mapping[str, Any]) -> str:
    return str(json.get("description") or json.get("title") or "")


def _tag_values(node: Node, tag: str) -> list[str]:
    rules = node.properties[tag].rules if tag in node.properties else {}
    return [str(value) for value in ([rules["const"]] if "const" in rules else rules.get("enum", ()))]


def _common_tag(nodes: Sequence[Node], given: str | None) -> str:
    """Return the `given` or else the first property whose constants tell all objects apart, or ""."""
    for name in [given] if given else nodes[0].properties:
        values = [_tag_values(node, name) for node in nodes]
        if all(values) and len({*chain(*values)}) == sum(map(len, values)):
            return name
    return ""


def _canonical(parser: _Parser, json: JsonValue) -> JsonValue:
    """Return a strict schema without references, and without notes that do not change values."""
    if not isinstance(json, Mapping):
        return json
    form = {key: value for key, value in parser.resolved(json)[0].items() if key not in NOTES}
    if form.get("type") == "object" or "properties" in form:
        form["required"] = [*form.get("properties", ())]
        if not isinstance(form.get("additionalProperties"), Mapping):
            form["additionalProperties"] = False
    below = partial(_canonical, parser)
    for key, value in form.items():
        if key == "properties":
            form[key] = {name: below(part) for name, part in value.items()}
        elif key in ("anyOf", "oneOf", "prefixItems"):
            form[key] = list(map(below, value))
        elif key in ("items", "additionalProperties", "propertyNames"):
            form[key] = below(value)
        elif key == "required":
            form[key] = sorted(value)
    return form


def _number(text: str) -> float | int | None:
    """Return the number that a text states, with a currency at most; None if there is none."""
    match = _NUMBER.fullmatch(normal_form(text))
    if match is None:
        return None
    digits = match[2] if match[2].startswith("-") else ("-" if _MINUS.search(text) else match[1]) + match[2]
    return float(digits) if "." in digits or len(digits) > 300 else int(digits)


def _day(text: str) -> str:
    """Return the date that a text states as YYYY-MM-DD, without a time; the text itself if there is none."""
    if _DATE.fullmatch(form := normal_form(text)):
        return form
    with suppress(ValueError):
        return datetime.fromisoformat(text.strip()).date().isoformat()
    return text


def _is_number(value: JsonValue) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and abs(value) < 1e300


def _is_whole(number: float) -> bool:
    return abs(number - round(number)) < 1e-9 * max(1.0, abs(number))


def _are_distinct(values: list[JsonValue]) -> bool:
    return len({dumps(value) for value in values}) == len(values)


def _equal(first: JsonValue, second: JsonValue) -> bool:
    """Return whether two values of JSON are equal: true is not 1."""
    return first == second and isinstance(first, bool) == isinstance(second, bool)


def escaped(name: str) -> str:
    """Return a key as a part of a JSON Pointer."""
    return name.replace("~", "~0").replace("/", "~1")


def _invalid(place: str, reason: str) -> InvalidDocument:
    return InvalidDocument(f"{place or '/'}: {reason}")
