"""The OpenAPI document against itself, the routes, and what the routes answer."""

import os
from urllib.parse import unquote

import jsonschema
import pytest
import schemathesis
from hypothesis import HealthCheck, Phase, given, settings
from referencing import Registry, Resource
from referencing.jsonschema import DRAFT202012
from schemathesis import GenerationMode
from schemathesis.checks import not_a_server_error
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    response_schema_conformance,
    status_code_conformance,
)

from serving.routes import ROUTES
from serving.settings import Settings
from serving.web.descriptions import document
from tests.serving.application import create_app

NUM_CASES = int(os.environ.get("RECSYS_API_CASES", "300"))
"""Requests of all operations together; `make test-api` sends 10,000."""
DOCUMENT = "urn:document"
CHECKS = [
    not_a_server_error,
    status_code_conformance,
    content_type_conformance,
    response_schema_conformance,
]
OPERATIONS = {(one.method.lower(), one.path): one for one in ROUTES if one.reply is not None}
HEALTH = {("get", "/healthz"), ("get", "/readyz")}
REGISTRY = Registry().with_resource(
    DOCUMENT, Resource.from_contents(document(), default_specification=DRAFT202012)
)


def parts(value, key):
    """Every value under a key, anywhere in the document."""
    if isinstance(value, dict):
        for name, inner in value.items():
            if name == key:
                yield inner
            yield from parts(inner, key)
    elif isinstance(value, list):
        for inner in value:
            yield from parts(inner, key)


def resolved(reference):
    found = document()
    for name in reference.removeprefix("#/").split("/"):
        found = found[unquote(name).replace("~1", "/").replace("~0", "~")]
    return found


@pytest.fixture(scope="module")
def app(released):
    return create_app(Settings(bundles=released, expose_users=True, log_requests=False))


def test_every_reference_resolves():
    references = set(parts(document(), "$ref"))
    assert len(references) > 20
    for reference in references:
        assert reference.startswith("#/components/")
        assert resolved(reference)


def test_every_operation_documents_its_refusals():
    for path, methods in document()["paths"].items():
        for method, operation in methods.items():
            statuses = set(operation["responses"])
            assert "200" in statuses
            if path.startswith("/v1/"):
                assert statuses >= {"401", "403", "429", "431", "503"}, path
            if method == "post":
                assert statuses >= {"400", "408", "413", "415", "422"}, path


def test_every_example_is_as_its_schema_says():
    checked = 0
    contents = [
        one
        for one in (*parts(document(), "application/json"),)
        if isinstance(one, dict) and "example" in one
    ]
    for content in contents:
        reference = content["schema"]["$ref"]
        validator = jsonschema.Draft202012Validator(
            {"$ref": DOCUMENT + reference}, registry=REGISTRY
        )
        validator.validate(content["example"])
        checked += 1
    assert checked == sum(one.body is not None for one in ROUTES)
    for schema in document()["components"]["schemas"].values():
        jsonschema.Draft202012Validator.check_schema(schema)


TAKES_INPUT = [
    # Any text is the id of a user, so nothing is wrong about one.
    key
    for key, one in OPERATIONS.items()
    if one.body or one.parameters
]
CASES = [
    *((key, GenerationMode.POSITIVE) for key in OPERATIONS if key not in HEALTH),
    *((key, GenerationMode.NEGATIVE) for key in TAKES_INPUT),
]


@pytest.mark.parametrize(
    ("method_and_path", "mode"), CASES, ids=lambda one: getattr(one, "value", None) or one[1]
)
def test_generated_requests_get_documented_replies_and_no_5xx(app, method_and_path, mode):
    schema = schemathesis.openapi.from_asgi("/openapi.json", app)
    method, path = method_and_path
    operation = schema[path][method.upper()]

    @settings(
        max_examples=max(5, NUM_CASES // len(CASES)),
        deadline=None,
        derandomize=NUM_CASES <= 1_000,
        database=None,
        phases=[Phase.explicit, Phase.generate, Phase.shrink],
        suppress_health_check=list(HealthCheck),
    )
    @given(case=operation.as_strategy(generation_mode=mode))
    def check(case):
        case.call_and_validate(checks=CHECKS)

    check()
