"""`OTEL_EXPORTER_OTLP_*` beyond endpoint and protocol: what OpenTelemetry's exporters make of them, said beforehand.

The exporters read these variables themselves, when there is first something to send, and tell their log of what they
do not understand, which nobody reads; the one for gRPC does not start at all. The rules are those of
`opentelemetry.util.re.parse_env_headers` and of the exporters of `opentelemetry-python` 1.27 to 1.45.
"""

from __future__ import annotations

import os
import re

from nvrx_telemetry.variables import Variables

PREFIX = "OTEL_EXPORTER_OTLP_"
_TIMEOUT_S = 10.0
_LONG_S = 600.0
_LONGEST_S = 86_400.0
"""A day is without an end, and what sockets take."""
_HEADER_NAME = re.compile(r"[!#-'*+\-.0-9A-Z^-z|~]+")
_HEADER_VALUE = re.compile(r"[ !#-+\--:<-\[\]-~]*")
_COMPRESSIONS = ("gzip", "deflate", "none")
_FILES = ("CERTIFICATE", "CLIENT_KEY", "CLIENT_CERTIFICATE")


def check_otlp(variables: Variables, signal: str, *, over_grpc: bool) -> bool:
    """Say what of one signal's (TRACES, METRICS) variables is not used, and why. Returns whether it can be sent."""
    _check_headers(variables, signal)
    _check_files(variables, signal, over_grpc=over_grpc)
    compression(variables, signal)
    timeout_s(variables, signal)
    if not over_grpc:
        return True
    variables.truth(variables.first(f"{PREFIX}{signal}_INSECURE", f"{PREFIX}INSECURE")[0])
    return _grpc_exporter_starts(variables, signal)


def compression(variables: Variables, signal: str) -> str:
    """`gzip`, `deflate` or `none`."""
    name, _ = variables.first(f"{PREFIX}{signal}_COMPRESSION", f"{PREFIX}COMPRESSION")
    return variables.word(name, _COMPRESSIONS, "nothing is compressed") or "none"


def timeout_s(variables: Variables, signal: str) -> float:
    """How long one request may take. In seconds, as all exporters for Python read it; 0 is without an end."""
    name, text = variables.first(f"{PREFIX}{signal}_TIMEOUT", f"{PREFIX}TIMEOUT")
    if text in ("0", "0.0"):
        return _LONGEST_S
    seconds = variables.number(name, _TIMEOUT_S)
    if seconds > _LONG_S:
        variables.say(f"{name}={text} means {seconds:g} seconds, as in all OpenTelemetry for Python")
    return min(seconds, _LONGEST_S)


def _check_headers(variables: Variables, signal: str) -> None:
    """Neither name nor value is shown: without the = that was forgotten, a name may be the secret."""
    name, text = variables.first(f"{PREFIX}{signal}_HEADERS", f"{PREFIX}HEADERS")
    entries = [entry for entry in text.split(",") if entry.strip()]
    for place, entry in enumerate(entries, 1):
        why = _wrong_with(entry)
        if why:
            variables.say(f"{name}: entry {place} of {len(entries)} is not sent: {why}")


def _wrong_with(header: str) -> str:
    key, there, value = (part.strip() for part in header.partition("="))
    if not there:
        return "it has no =; write name=value, and a comma within a value as %2C"
    if not _HEADER_NAME.fullmatch(key):
        return "what stands before its = is no header's name; write name=value, not name: value"
    if not _HEADER_VALUE.fullmatch(value):
        return 'its value has a character that must be percent-encoded (" is %22, ; is %3B, \\ is %5C)'
    return ""


def _check_files(variables: Variables, signal: str, *, over_grpc: bool) -> None:
    found = {kind: variables.first(f"{PREFIX}{signal}_{kind}", f"{PREFIX}{kind}") for kind in _FILES}
    for name, path in found.values():
        if "-----BEGIN" in path:  # a private key, perhaps: nothing of it is repeated
            variables.say(f"{name} holds a PEM itself; write it to a file, and the file's path here")
        elif path and not os.access(path, os.R_OK):
            variables.say(f"{name}={path}: no such file that can be read, no https connection will be made")
    key, certificate = found["CLIENT_KEY"], found["CLIENT_CERTIFICATE"]
    if key[1] and not certificate[1]:
        variables.say(f"{key[0]} is not used without {PREFIX}CLIENT_CERTIFICATE")
    if over_grpc and certificate[1] and not found["CERTIFICATE"][1]:
        variables.say(f"{certificate[0]} is not used by gRPC's exporter without {PREFIX}CERTIFICATE")


def _grpc_exporter_starts(variables: Variables, signal: str) -> bool:
    """It gives up at a variable of its own that is no number, whatever it is told besides, even at an empty one."""
    name = f"{PREFIX}{signal}_TIMEOUT"
    text = variables.raw(name)
    try:
        float("1" if text is None else text)
    except ValueError:
        variables.say(
            f"no {signal.lower()} are sent: {name}={text} is no number of seconds; correct or unset it"
        )
        return False
    return True
