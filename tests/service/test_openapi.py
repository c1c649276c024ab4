"""The OpenAPI document is true: schemathesis asks what it allows and what it forbids, and looks at the answers."""

import json

import pytest
import schemathesis
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from schemathesis import GenerationMode
from schemathesis.checks import not_a_server_error
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    negative_data_rejection,
    response_headers_conformance,
    response_schema_conformance,
    status_code_conformance,
    unsupported_method,
)

CHECKS = (
    not_a_server_error,
    status_code_conformance,
    content_type_conformance,
    response_headers_conformance,
    response_schema_conformance,
    negative_data_rejection,
    unsupported_method,
)


WORK = [("POST", "/v1/search"), ("POST", "/v1/encode")]
READS = [("GET", path) for path in ("/v1/indexes", "/openapi.json", "/metrics", "/healthz", "/readyz")]


@pytest.fixture(scope="module")
def document(service):
    return schemathesis.openapi.from_url(f"{service.address}/openapi.json")


@pytest.mark.parametrize(
    ("operation", "mode"),
    [(operation, mode) for operation in WORK for mode in GenerationMode],
    ids=lambda value: value[1] if isinstance(value, tuple) else value.value,
)
@settings(max_examples=20, phases=[Phase.generate], suppress_health_check=list(HealthCheck))
@given(data=st.data())
def test_answers_are_as_the_document_says(document, operation, mode, data):
    method, path = operation
    described = document[path][method]
    case = data.draw(described.as_strategy(generation_mode=mode))
    case.call_and_validate(checks=CHECKS)


@pytest.mark.parametrize("operation", READS, ids=lambda operation: operation[1])
def test_endpoints_without_parameters_answer_as_the_document_says(document, operation):
    method, path = operation
    document[path][method].Case().call_and_validate(checks=CHECKS)


def test_every_operation_of_the_document_is_requested(service):
    paths = json.loads(service.ask("GET", "/openapi.json")[2])["paths"]
    assert {(method.upper(), path) for path, methods in paths.items() for method in methods} == {*WORK, *READS}


def test_the_document_names_the_limits_and_the_indexes(service):
    described = json.loads(service.ask("GET", "/openapi.json")[2])
    asked = described["components"]["schemas"]["SearchRequest"]
    limited = {name: field.get("anyOf", [field])[0] for name, field in asked["properties"].items()}
    assert limited["k"]["maximum"] == 50
    assert limited["index"]["enum"] == ["points", "bare"]
    assert asked["oneOf"] == [{"required": [name]} for name in ("vectors", "codes", "id", "ids")]
    row = limited["vectors"]["items"]
    assert (row["minItems"], row["maxItems"]) == (5, 8)
