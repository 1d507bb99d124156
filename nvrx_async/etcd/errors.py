"""Errors of the etcd room: what happened, the evidence for it, and what to do next.

gRPC and operating system errors are translated where they enter (`wire`, `config`, `server`); callers of this
room catch only what is named here.
"""

from __future__ import annotations


class EtcdError(Exception):
    """Base of this room's errors. `message` is `cause` and `evidence` (one fact a line); the text adds `hint`."""

    def __init__(self, cause: str, *, evidence: tuple[str, ...] = (), hint: str = "") -> None:
        message = "\n".join([cause, *(f"  {fact}" for fact in evidence)])
        super().__init__(f"{message}\nhint: {hint}" if hint else message)
        self.message = message
        self.cause = cause
        self.evidence = evidence
        self.hint = hint


class ConfigurationError(EtcdError):
    """What the user gave cannot be used, whatever etcd says."""


class InvalidEndpointError(ConfigurationError):
    """An endpoint that names no host and port."""

    def __init__(self, endpoint: str, reason: str) -> None:
        secret = "@" in endpoint  # what stands before it may be a password
        self.endpoint = "" if secret else endpoint
        told = "holds a user or a password, which other users of this machine can read"
        hint = "write host:port, [ipv6]:port, http://host:port or https://host:port"
        super().__init__(
            f"etcd endpoint {told}" if secret else f"etcd endpoint {endpoint!r} {reason}",
            hint=f"{hint}, and --etcd-user NAME; its password goes into NVRX_ETCD_PASSWORD"
            if secret
            else hint,
        )


class TlsFileError(ConfigurationError):
    """A certificate or key file that cannot be read or does not hold what it should."""


class UnavailableError(EtcdError):
    """No endpoint answered, and what was asked certainly did not take effect."""


class TlsError(UnavailableError):
    """Endpoints are reached, but every TLS handshake fails: waiting will not help."""


class OutcomeUnknownError(EtcdError):
    """The answer to a write was lost: it may have taken effect. Read again before deciding."""


class ForeignClusterError(EtcdError):
    """The endpoint answers for another cluster, or for this one with its data lost."""


class AuthenticationError(EtcdError):
    """etcd knows no such user and password, or asks for one where none was given."""


class PermissionDeniedError(EtcdError):
    """The user is known, but may not touch these keys."""


class NoSpaceError(EtcdError):
    """etcd's database is full: it refuses writes until a person makes room."""


class RequestRefusedError(EtcdError):
    """etcd refused a request for another reason; it took no effect."""


class TxnTooLargeError(EtcdError):
    """A transaction with more compares or operations than etcd takes in one step."""


class LeaseNotFoundError(EtcdError):
    """The lease is over: it ran out or was revoked, and its keys are gone."""


class DeposedError(EtcdError):
    """The candidate's own key is gone or belongs to another: it neither leads nor waits any longer."""


class ServerStartError(EtcdError):
    """The embedded etcd did not start."""


class AddressInUseError(ServerStartError):
    """Another process listens on the address of the embedded etcd."""


class BinaryNotFoundError(ServerStartError):
    """No etcd program on this machine."""

    def __init__(self, searched: tuple[str, ...]) -> None:
        super().__init__(
            "no etcd program found",
            evidence=tuple(f"not in {place}" for place in searched),
            hint="install etcd so that it is on PATH, or run: pip install 'nvrx-async[standalone]'",
        )


class UnfitVersionError(ServerStartError):
    """This version of etcd must not be a member of a cluster."""
