"""docs/serving.md and docs/security.md list every field, code and scope."""

import re
import tomllib
from pathlib import Path
from typing import get_args

import orjson

from serving.online.events import EventsRequest
from serving.replies import ErrorCode
from serving.routes import ERRORS
from serving.schemas import DegradedCode, Request
from serving.security.keys import ClientKey, Scope

DOCS = Path(__file__).parents[2] / "docs"
PAGE = (DOCS / "serving.md").read_text(encoding="utf-8")
SECURITY = (DOCS / "security.md").read_text(encoding="utf-8")


def rows(heading, page=PAGE):
    """Cells of the first table below a heading, without its head."""
    table = page.split(f"\n## {heading}\n")[1].split("\n## ")[0]
    lines = [line for line in table.splitlines() if line.startswith("|")]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines[2:]]


def test_every_degraded_code_has_its_row_in_their_order():
    named = [code.strip("`") for code, _, _ in rows("Warnings in a reply")]
    assert named == list(get_args(DegradedCode))


def test_every_error_code_and_status_is_named():
    table = rows("Errors")
    named = {code for _, codes in table for code in re.findall(r"`(\w+)`", codes)}
    assert named - {"allow"} == set(get_args(ErrorCode))
    statuses = {int(one) for one, _ in table for one in one.split(", ")}
    assert statuses == {*ERRORS, 405, 500}


def test_scopes_and_the_key_file_are_as_they_are_read():
    assert [scope.strip("`") for scope, _ in rows("Keys", SECURITY)] == list(get_args(Scope))
    text = SECURITY.split("```toml\n")[1].split("```")[0].replace('"5e884898..."', f'"{"0" * 64}"')
    (key,) = tomllib.loads(text)["keys"]
    assert ClientKey.model_validate(key).rate == 100


def test_requests_of_the_page_are_accepted():
    for path, body in re.findall(r"(/v1/\w+) --json '([^']*)'", PAGE):
        schema = {"/v1/recommend": Request, "/v1/events": EventsRequest}[path]
        schema.model_validate(orjson.loads(body.replace("019aab51...", 32 * "0")))
    fields = {name for cells in rows("Lists") for name in re.findall(r"`([\w.]+)`", cells[0])}
    assert {name.split(".")[0] for name in fields} == Request.model_fields.keys() - {
        "user_id",
        "session",
        "item_id",
    }
