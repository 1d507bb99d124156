"""What ranks are given of the telemetry."""

from __future__ import annotations

import pytest

from nvrx_launcher.tracing_ranks import names_service


@pytest.mark.parametrize(
    ("environment", "named"),
    [
        ({}, False),
        ({"OTEL_SERVICE_NAME": ""}, False),
        ({"OTEL_SERVICE_NAME": "llm"}, True),
        ({"OTEL_RESOURCE_ATTRIBUTES": "team=nlp, service.name=llm"}, True),
        ({"OTEL_RESOURCE_ATTRIBUTES": "my.service.name=llm,service.namespace=x"}, False),
    ],
)
def test_a_service_that_the_person_named_keeps_its_name(environment: dict[str, str], *, named: bool) -> None:
    assert names_service(environment) == named
