"""One codec between records (frozen dataclasses) and the JSON that etcd and history files hold.

Every value carries `"schema"`. Fields this version does not know are kept in `extra` and written back, so
that agents of neighbouring versions do not strip each other's records; an unknown schema is refused.
"""

from __future__ import annotations

import dataclasses
import functools
import types
import typing
from collections.abc import Mapping
from enum import Enum
from typing import Any, TypeVar

import orjson

from nvrx_async.job.errors import RecordError, UnknownSchemaError

SCHEMA = 1

T = TypeVar("T")


def encode(record: Any) -> bytes:
    """Serialize a record, its unknown fields included."""
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
        return typing.cast("T", _record(cls, raw))
    except (KeyError, TypeError, ValueError) as error:
        raise RecordError(f"{key} is no {cls.__name__}: {error}") from error


def _plain(value: Any) -> Any:
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        plain = {field.name: _plain(getattr(value, field.name)) for field in dataclasses.fields(value)}
        extra = plain.pop("extra", None)
        return {**(extra or {}), **plain}
    if isinstance(value, Enum):
        return value.value
    if isinstance(value, str):
        # Bytes of a path or message that are no UTF-8 come as lone surrogates, which JSON cannot hold.
        return value.encode("utf-8", "backslashreplace").decode()
    if isinstance(value, tuple | list | frozenset):
        return [_plain(item) for item in value]
    if isinstance(value, Mapping):
        return {_plain(str(key)): _plain(item) for key, item in value.items()}
    return value


@functools.cache
def _hints(cls: type) -> dict[str, Any]:
    return typing.get_type_hints(cls)


def _record(cls: type, raw: Mapping[str, Any]) -> Any:
    hints = _hints(cls)
    known: dict[str, Any] = {}
    for field in dataclasses.fields(cls):
        if field.name == "extra":
            continue
        if field.name in raw:
            known[field.name] = _typed(hints[field.name], raw[field.name], field.name)
        elif field.default is dataclasses.MISSING and field.default_factory is dataclasses.MISSING:
            raise KeyError(f"field {field.name} is missing")
    if "extra" in hints:
        known["extra"] = {name: item for name, item in raw.items() if name not in hints}
    return cls(**known)


def _typed(hint: Any, raw: Any, name: str) -> Any:
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if origin in (typing.Union, types.UnionType):
        if raw is None and type(None) in arguments:
            return None
        (hint,) = (item for item in arguments if item is not type(None))
        return _typed(hint, raw, name)
    if origin is tuple:
        _expect(raw, list, name)
        return tuple(_typed(arguments[0], item, name) for item in raw)
    if origin is not None and issubclass(origin, Mapping):
        _expect(raw, dict, name)
        return {key: _typed(arguments[1], item, name) for key, item in raw.items()}
    if hint is Any:
        return raw
    if dataclasses.is_dataclass(hint):
        _expect(raw, dict, name)
        return _record(typing.cast("type", hint), raw)
    if isinstance(hint, type) and issubclass(hint, Enum):
        return _member(hint, raw, name)
    if hint is float:
        _expect(raw, (int, float), name)
        return float(raw)
    _expect(raw, hint, name)
    return raw


def _member(enum: type[Enum], raw: Any, name: str) -> Enum:
    known = {member.value: member for member in enum}
    if not isinstance(raw, str) or raw not in known:
        raise ValueError(f"field {name} holds {raw!r}, which is none of {', '.join(known)}")
    return known[raw]


def _expect(raw: Any, kind: Any, name: str) -> None:
    if not isinstance(raw, kind) or (isinstance(raw, bool) and kind is not bool):
        raise TypeError(f"field {name} holds {type(raw).__name__} {raw!r}")
