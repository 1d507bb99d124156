"""What ranks are given of the telemetry."""

from __future__ import annotations

import pytest

from nvrx_launcher.tracing_ranks import RESOURCE, names_service, rank_variables


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


def test_attributes_that_are_no_utf8_cost_no_telemetry() -> None:
    person = {RESOURCE: "team=\udcff,place=a%2Cb"}
    told = rank_variables(None, sampled=False, epoch_ns=1, resource={"rank": 3}, environment=person)
    assert told[RESOURCE] == "team=%3F,place=a%2Cb,rank=3"
