"""The authority that OpenTelemetry's variable names, where `requests` would take another one. Loads requests.

`requests` 2 lets REQUESTS_CA_BUNDLE and CURL_CA_BUNDLE go before the authority of a session
(`Session.merge_environment_settings`), and the exporters leave theirs to the session: where one of these is set,
`OTEL_EXPORTER_OTLP_CERTIFICATE` would be without effect.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import requests

from nvrx_telemetry.otlp_variables import PREFIX
from nvrx_telemetry.variables import Variables


class OwnAuthority(requests.Session):
    """A session whose authority is its own; proxies are the environment's."""

    def merge_environment_settings(
        self, url: Any, proxies: Any, stream: Any, verify: Any, cert: Any
    ) -> dict[str, Any]:
        """See `requests.Session`."""
        mine = self.verify if verify is None else verify
        settings: Mapping[str, Any] = super().merge_environment_settings(url, proxies, stream, mine, cert)
        return dict(settings)


def session_for(variables: Variables, signal: str) -> requests.Session | None:
    """A session, None where no authority is named, or somebody else's session is."""
    providers = [f"OTEL_PYTHON_EXPORTER_OTLP_HTTP_{of}CREDENTIAL_PROVIDER" for of in ("", f"{signal}_")]
    named = variables.first(f"{PREFIX}{signal}_CERTIFICATE", f"{PREFIX}CERTIFICATE")[1]
    return OwnAuthority() if named and not variables.first(*providers)[1] else None
