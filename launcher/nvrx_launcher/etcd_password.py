"""User and password of an etcd that agents start: they follow from the job token, so that all know the same."""

from __future__ import annotations

import hashlib

from nvrx_async.etcd.config import Credentials

_PASSWORD_CHARS = 48


def credentials_of(job_token: str) -> Credentials:
    """What an etcd that agents started with this token asks for."""
    password = hashlib.sha256(f"nvrx-etcd:{job_token}".encode()).hexdigest()[:_PASSWORD_CHARS]
    return Credentials("root", password)
