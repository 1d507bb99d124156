"""One codec between records (frozen dataclasses) and the JSON that etcd and history files hold.

Every value carries `"schema"`. Fields this version does not know are kept in `extra` and written back, so
that agents of neighbouring versions do not strip each other's records; an unknown schema is refused.
"""

from __future__ import annotations

import dataclasses
import functools
import operator
import types
import typing
from collections.abc import Callable, Hashable, Mapping
from enum import Enum
from typing import Any, TypeAlias, TypeVar

import orjson

from nvrx_async.job.errors import RecordError, UnknownSchemaError

SCHEMA = 1

T = TypeVar("T")
_LEAVES = frozenset({int, float, bool})


def encode(record: Any) -> bytes:
    """Serialize a record, its unknown fields included."""
    try:
        plain = {"schema": SCHEMA, **_fields_of(record)}
        return orjson.dumps(plain, _fields_of, orjson.OPT_PASSTHROUGH_DATACLASS)
    except TypeError:
        # Something that orjson does not take as it is, such as a path that is no UTF-8.
        return orjson.dumps({"schema": SCHEMA, **_plain(record)})


def decode(cls: type[T], key: str, value: bytes) -> T:
    """Read a record of class `cls`; `key` is named in errors.

    Raises:
        UnknownSchemaError: written by a version whose records this one cannot read.
        RecordError: not JSON, not an object, or a field is missing or of another type.
    """
    try:
        raw = orjson.loads(value)
    except orjson.JSONDecodeError as error:
        raise RecordError(f"{key} does not hold JSON: {error}") from error
    if not isinstance(raw, dict):
        raise RecordError(f"{key} holds {type(raw).__name__}, not an object")
    schema = raw.pop("schema", None)
    if schema != SCHEMA:
        raise UnknownSchemaError(key, schema, SCHEMA)
    try:
        return typing.cast("T", _reader(typing.cast("Hashable", cls))(raw, cls.__name__))
    except (KeyError, TypeError, ValueError) as error:
        raise RecordError(f"{key} is no {cls.__name__}: {error}") from error


def _plain(value: Any) -> Any:
    if value is None or type(value) in _LEAVES:
        return value
    if isinstance(value, str) and not isinstance(value, Enum):
        # Bytes of a path or message that are no UTF-8 come as lone surrogates, which JSON cannot hold.
        return value if value.isascii() else value.encode("utf-8", "backslashreplace").decode()
    names = _field_names(typing.cast("Hashable", type(value)))
    if names is not None:
        plain = {name: _plain(getattr(value, name)) for name in names}
        extra = plain.pop("extra", None)
        return {**extra, **plain} if extra else plain
    if isinstance(value, Enum):
        return value.value
    if isinstance(value, tuple | list | frozenset):
        return [_plain(item) for item in value]
    if isinstance(value, Mapping):
        return {_plain(str(key)): _plain(item) for key, item in value.items()}
    return value


def _fields_of(value: Any) -> Any:
    """What orjson does not know, one level deep."""
    found = _field_reader(typing.cast("Hashable", type(value)))
    if found is not None:
        names, read, has_extra = found
        plain = dict(zip(names, read(value), strict=True))
        return {**value.extra, **plain} if has_extra and value.extra else plain
    if isinstance(value, Mapping):
        return dict(value)
    raise TypeError(f"{type(value).__name__} is no record")


@functools.cache
def _field_reader(cls: Hashable) -> tuple[tuple[str, ...], Callable[[Any], tuple[Any, ...]], bool] | None:
    """Fields of a dataclass without `extra`, what reads them all at once, and whether it has an `extra`."""
    names = _field_names(cls)
    if names is None:
        return None
    known = tuple(name for name in names if name != "extra")
    if len(known) == 1:
        return known, lambda value: (getattr(value, known[0]),), known != names
    return known, operator.attrgetter(*known), known != names


@functools.cache
def _field_names(cls: Hashable) -> tuple[str, ...] | None:
    """Names of a dataclass's fields; None for another class."""
    return tuple(field.name for field in dataclasses.fields(cls)) if dataclasses.is_dataclass(cls) else None


Reader: TypeAlias = Callable[[Any, str], Any]
"""Turns what JSON held into what a field holds; the name is for errors."""


@functools.cache
def _reader(hint: Hashable) -> Reader:
    """How to read a field of this type. Found once: a coordinator reads a thousand records at every restart."""
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if origin in (typing.Union, types.UnionType):
        (inner,) = (item for item in arguments if item is not type(None))
        read = _reader(inner)
        if type(None) not in arguments:
            return read
        return lambda raw, name: None if raw is None else read(raw, name)
    if origin is tuple:
        return _tuple_reader(_reader(arguments[0]))
    if origin is not None and issubclass(origin, Mapping):
        return _mapping_reader(_reader(arguments[1]))
    if hint is Any:
        return lambda raw, _: raw
    if dataclasses.is_dataclass(hint):
        return _record_reader(typing.cast("type", hint))
    if isinstance(hint, type) and issubclass(hint, Enum):
        return _member_reader(hint)
    if hint is float:
        return _number
    return _plain_reader(hint)


def _record_reader(cls: type) -> Reader:
    hints = typing.get_type_hints(cls)
    fields = [field for field in dataclasses.fields(cls) if field.name != "extra"]
    nothing = dataclasses.MISSING
    needed = {f.name for f in fields if f.default is nothing and f.default_factory is nothing}
    keeps_extra = "extra" in hints
    plan: list[tuple[str, Reader]] = []

    def read(raw: Any, name: str) -> Any:
        _expect(raw, dict, name)
        if not plan:  # a class may hold itself, so readers of its fields are found when the first one is read
            plan.extend([(field.name, _reader(hints[field.name])) for field in fields])
        known: dict[str, Any] = {}
        for field, read_field in plan:
            if field in raw:
                known[field] = read_field(raw[field], field)
            elif field in needed:
                raise KeyError(f"field {field} is missing")
        if keeps_extra and len(known) < len(raw):
            known["extra"] = {key: item for key, item in raw.items() if key not in hints}
        return cls(**known)

    return read


def _tuple_reader(read: Reader) -> Reader:
    def read_all(raw: Any, name: str) -> Any:
        _expect(raw, list, name)
        return tuple([read(item, name) for item in raw])

    return read_all


def _mapping_reader(read: Reader) -> Reader:
    def read_all(raw: Any, name: str) -> Any:
        _expect(raw, dict, name)
        return {key: read(item, name) for key, item in raw.items()}

    return read_all


def _member_reader(enum: type[Enum]) -> Reader:
    known = {member.value: member for member in enum}

    def read(raw: Any, name: str) -> Enum:
        if not isinstance(raw, str) or raw not in known:
            raise ValueError(f"field {name} holds {raw!r}, which is none of {', '.join(known)}")
        return known[raw]

    return read


def _plain_reader(hint: Any) -> Reader:
    def read(raw: Any, name: str) -> Any:
        if type(raw) is not hint:
            _expect(raw, hint, name)
        return raw

    return read


def _number(raw: Any, name: str) -> float:
    _expect(raw, (int, float), name)
    return float(raw)


def _expect(raw: Any, kind: Any, name: str) -> None:
    if not isinstance(raw, kind) or (isinstance(raw, bool) and kind is not bool):
        raise TypeError(f"field {name} holds {type(raw).__name__} {raw!r}")
