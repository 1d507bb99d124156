"""Readers of option values: text in, value out, BadValueError with the reason when it cannot be one.

Imports nothing heavy, since `--help` passes here.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Final, NamedTuple

from nvrx_launcher.errors import BadValueError

if TYPE_CHECKING:
    from collections.abc import Callable

DEFAULT_ETCD_PORT: Final = 2379
MAX_PORT: Final = 65535
_TRUE = frozenset({"1", "true", "yes", "on"})
_FALSE = frozenset({"0", "false", "no", "off"})


class NodeRange(NamedTuple):
    """So many nodes suffice to start, and so many are taken at most."""

    minimum: int
    maximum: int


class Endpoint(NamedTuple):
    """One address of etcd; IPv6 hosts stand without brackets. `secure` when written with `https://`."""

    host: str
    port: int
    secure: bool = False

    def __str__(self) -> str:
        """`host:port`, with brackets around IPv6."""
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


def text(value: str) -> str:
    """Any text, without blanks around it."""
    return value.strip()


def whole_number(minimum: int, maximum: int | None = None, unit: str = "") -> Callable[[str], int]:
    """A reader of whole numbers between the two, both included."""

    def read(value: str) -> int:
        try:
            number = int(value)
        except ValueError:
            raise BadValueError("not a whole number") from None
        if number < minimum:
            raise BadValueError(f"the smallest value is {minimum}{unit}")
        if maximum is not None and number > maximum:
            raise BadValueError(f"the largest value is {maximum}{unit}")
        return number

    return read


def seconds(minimum: float = 0.0) -> Callable[[str], float]:
    """A reader of a number of seconds, at least `minimum`."""

    def read(value: str) -> float:
        try:
            number = float(value)
        except ValueError:
            raise BadValueError("not a number of seconds", "write 90 for a minute and a half") from None
        if not math.isfinite(number) or number < minimum:
            raise BadValueError(f"must be a number of seconds, {minimum:g} or more")
        return number

    return read


def seconds_or_off(minimum: float) -> Callable[[str], float | None]:
    """A reader of a number of seconds, or `off` for None."""
    read_seconds = seconds(minimum)

    def read(value: str) -> float | None:
        return None if value.strip().lower() == "off" else read_seconds(value)

    return read


def choice(*allowed: str) -> Callable[[str], str]:
    """A reader that takes these words only."""

    def read(value: str) -> str:
        if value not in allowed:
            raise BadValueError("no such choice", f"one of: {', '.join(allowed)}")
        return value

    return read


def switch(value: str) -> bool:
    """A flag as an environment variable writes it."""
    lowered = value.strip().lower()
    if lowered in _TRUE:
        return True
    if lowered in _FALSE:
        return False
    raise BadValueError("neither 1 nor 0")


def node_range(value: str) -> NodeRange:
    """`N` or `MIN:MAX`."""
    try:
        numbers = [int(part) for part in value.split(":")]
    except ValueError:
        numbers = []
    if len(numbers) not in (1, 2):
        raise BadValueError("neither a number of nodes N nor a range MIN:MAX", "such as --nnodes 2:4")
    minimum, maximum = numbers[0], numbers[-1]
    if minimum < 1:
        raise BadValueError("a job needs at least one node")
    if minimum > maximum:
        raise BadValueError("the minimum is larger than the maximum", f"--nnodes {maximum}:{minimum}")
    return NodeRange(minimum, maximum)


def slots(value: str) -> int | str:
    """A number of ranks, or the word that says how to count them."""
    word = value.strip().lower()
    if word in ("cpu", "gpu", "auto"):
        return word
    if word == "xpu":
        raise BadValueError("only CPUs and NVIDIA GPUs are counted", "give the number of ranks")
    try:
        number = int(word)
    except ValueError:
        raise BadValueError("neither a number nor cpu, gpu or auto") from None
    if number < 1:
        raise BadValueError("a node needs at least one rank")
    return number


def host_name(value: str) -> str:
    """A host, of which nothing is known but that no user and password stand before it."""
    if "@" in value:
        raise BadValueError(
            "holds a user or a password (what stands before an @), which other users of this machine can read",
            "write only host:port there, and --etcd-user NAME; its password goes into NVRX_ETCD_PASSWORD or a file: "
            "--etcd-password-file FILE",
            secret=True,
        )
    return value


def endpoints(value: str) -> tuple[Endpoint, ...]:
    """One `host[:port]` or several with commas between; port 2379 when none is written."""
    host_name(value)
    found = tuple(_endpoint(part.strip()) for part in value.split(",") if part.strip())
    if len({endpoint.secure for endpoint in found}) > 1:
        raise BadValueError(
            "mixes http and https", "all members of one etcd cluster are reached the same way"
        )
    return found


def _endpoint(part: str) -> Endpoint:
    scheme, separator, rest = part.rpartition("://")
    if separator and scheme not in ("http", "https"):
        raise BadValueError(f"{scheme}:// is not spoken by etcd", "write host:port, or https://host:port")
    rest = rest.rstrip("/")
    if rest.startswith("["):
        host, closed, port = rest[1:].partition("]")
        if not closed or (port and not port.startswith(":")):
            raise BadValueError(f"{part} is not [address]:port")
        port = port[1:]
    elif rest.count(":") > 1:
        raise BadValueError(
            f"{part} is an IPv6 address without brackets", f"write [{rest}]:{DEFAULT_ETCD_PORT}"
        )
    else:
        host, _, port = rest.partition(":")
    if not host or any(sign in host for sign in "/@ \t?#"):
        raise BadValueError(f"{part!r} is not host:port")
    if not port:
        return Endpoint(host, DEFAULT_ETCD_PORT, scheme == "https")
    if not port.isascii() or not port.isdigit() or int(port) > MAX_PORT:
        raise BadValueError(f"{port} is not a port", f"a number from 1 to {MAX_PORT}")
    return Endpoint(host, int(port), scheme == "https")


def pairs(value: str) -> dict[str, str]:
    """`key=value,key=value`."""
    found: dict[str, str] = {}
    for part in value.split(","):
        if not part.strip():
            continue
        key, separator, text_of_key = (piece.strip() for piece in part.partition("="))
        if not separator or not key or not text_of_key:
            raise BadValueError(
                f"{part.strip()!r} is not key=value", "such as join_timeout=300,last_call_timeout=10"
            )
        if key in found:
            raise BadValueError(f"{key} is given twice")
        found[key] = text_of_key
    return found


def section_limits(value: str) -> dict[str, float | None]:
    """`section=seconds,section=off`; None for a section without a limit."""
    read = seconds_or_off(1)
    found: dict[str, float | None] = {}
    for name, text_of_name in pairs(value).items():
        try:
            found[name] = read(text_of_name)
        except BadValueError as error:
            raise BadValueError(f"{name}={text_of_name}: {error.reason}", error.hint) from None
    return found


def local_ranks(value: str) -> frozenset[int]:
    """Local ranks with commas between."""
    try:
        found = frozenset(int(part) for part in value.split(",") if part.strip())
    except ValueError:
        found = frozenset()
    if not found:
        raise BadValueError("not a list of local ranks", "such as 0,1,2")
    return found


def words(value: str) -> tuple[str, ...]:
    """Words with commas between."""
    return tuple(part for part in value.split(",") if part)


def warm_workers(value: str) -> str | int:
    """`auto`, `off`, or a number of processes."""
    if value in ("auto", "off"):
        return value
    if not value.isdigit():
        raise BadValueError("neither auto, off nor a number of processes")
    return int(value)


def modules(value: str) -> tuple[str, ...]:
    """Names of modules with commas between."""
    names = tuple(part.strip() for part in value.split(",") if part.strip())
    for name in names:
        if not all(part.isidentifier() for part in name.split(".")):
            raise BadValueError(f"{name} is no name of a module", "such as torch,my_package.model")
    return names
