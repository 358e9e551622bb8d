"""The page of releases: what it says of a folder, and what its actions change."""

import os
import shutil
from pathlib import Path

import pytest

from pipelines.dashboard.context import Context
from pipelines.dashboard.query import NotFoundError, Query, QueryError
from pipelines.dashboard.releases import ENTRY, build
from pipelines.engine.decisions import Decision, append_decision, read_decisions
from pipelines.engine.history import read_history
from pipelines.engine.workspace import publishing
from pipelines.pages.document import Action, Page, Section, Table
from pipelines.publishing.promotion import note_champion, note_release, served_version
from serving.bundle.manifest import read_manifest
from tests.pipelines.dashboard.documents import block_of, dashboard
from tests.serving.synthetic_bundle import write_synthetic_bundle
from tests.serving.writable import writable

KEY = b"0123456789abcdef-operators"
HOSTILE = "<img src=x onerror=alert(1)> \u202eright \U0001f9ea"


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A workspace with v1 served before v2, v3 waiting, v4 refused; v1's decision is altered."""
    folder = tmp_path_factory.mktemp("made")
    bundles = folder / "bundles"
    bundles.mkdir()
    (folder / "config.toml").write_text("[tracking]\nenabled = false\n")
    (folder / "lock").touch()
    about = {"verdicts": [checked("index recall")], "words": ["All 1 checks passed."]}
    with pytest.MonkeyPatch.context() as patched:
        patched.setenv("RECSYS_SIGNING_KEY", KEY.decode())
        for version in ("v1", "v2", "v3"):
            write_synthetic_bundle(bundles, version)
            note_release(bundles, version, promoted=version != "v3", **about)
    failed = checked("catalogue coverage", passed=False, reason=HOSTILE)
    verdicts = [checked("index recall"), failed]
    refused = {"outcome": "refused", "challenger": "v4", "champion": "v2", "verdicts": verdicts}
    append_decision(bundles, Decision(**refused, challenger_digest=None), KEY)
    altered = bundles / "releases.jsonl"
    altered.write_text(altered.read_text().replace("All 1 checks", "All 2 checks", 1))
    return folder


@pytest.fixture
def shop(made: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A copy of it."""
    monkeypatch.setenv("RECSYS_SIGNING_KEY", KEY.decode())
    return Path(shutil.copytree(made, tmp_path / "shop", symlinks=True))


def checked(name: str, *, passed: bool = True, reason: str = "share of items") -> dict:
    return {"name": name, "value": 0.5, "bound": 0.25, "passed": passed, "reason": reason}


def context_of(root: Path, key: str | None = "k") -> Context:
    return dashboard(root, key=key)


def page_of(shop: Path, **values: str) -> Page:
    return build(context_of(shop.parent), Query.of(**values))


def actions_of(page: Page) -> dict[str, Action]:
    section = block_of(page, Section, "actions")
    return {one.key: one for one in section.blocks if isinstance(one, Action)}


def sent(action: Action, **changes: str) -> dict[str, str]:
    return {**action.values, "reason": "better", "confirm": action.values["version"], **changes}


def test_it_says_what_is_served_and_what_waits(shop):
    for served, rest in (("v2", "; v3 waits as challenger."), ("v3", "; there is no challenger.")):
        lead = page_of(shop).lead
        assert lead.startswith(f"{served} is served since 20")
        assert lead.endswith(rest)
        note_champion(shop / "bundles", "v3", "promote")


def test_a_decision_that_was_altered_is_named_and_not_believed(shop):
    page = page_of(shop)
    assert any("line 1 was altered after it was signed" in one for one in page.notices)
    table = block_of(page, Table, "decisions")
    rows = {row[1].text: row for row in table.rows}
    assert [row[1].text for row in table.rows] == ["v4", "v3", "v2", "v1"]
    assert [rows[name][4] for name in ("v1", "v2", "v4")] == ["NOT VALID", "valid", "valid"]
    assert rows["v4"][2:4] == ["refused", "the gate of a run"]
    assert rows["v4"][5:] == ["v2", "failed: catalogue coverage"]
    section = block_of(page_of(shop, version="v1"), Section, "decision")
    assert [one.kind for one in section.blocks] == ["words"]
    assert section.blocks[0].tone == "bad"
    assert "cannot be trusted" in section.blocks[0].lines[2]


def test_a_refusal_is_shown_whole_with_what_to_do(shop):
    section = block_of(page_of(shop, version="v4"), Section, "decision")
    (verdicts,) = (one for one in section.blocks if isinstance(one, Table))
    assert [row[:4] for row in verdicts.rows] == [
        ["catalogue coverage", "FAILED", 0.5, 0.25],
        ["index recall", "passed", 0.5, 0.25],
    ]
    assert verdicts.rows[0][4] == "0.5000 is above 0.2500"
    assert verdicts.rows[0][5] == HOSTILE
    with pytest.raises(NotFoundError, match="no bundle and no decision of 'v9'"):
        page_of(shop, version="v9")


def test_a_promotion_changes_what_servers_load_and_is_written_down(shop):
    context, bundles = context_of(shop.parent), shop / "bundles"
    offered = actions_of(page_of(shop, version="v3"))
    assert list(offered) == ["promote", "rollback"]
    done = ENTRY.actions["promote"](context, sent(offered["promote"], reason=HOSTILE))
    assert done.startswith("champion is v3, before it was v2.")
    assert read_manifest((bundles / "current").resolve())[0].version == "v3"
    found, _ = read_decisions(bundles, KEY)
    assert (found[-1].decision.outcome, found[-1].state) == ("promoted", "signed")
    assert found[-1].decision.words[-1] == f"Reason given: {HOSTILE} (from the dashboard)"
    last = read_history(shop)[-1]
    assert (last.command, last.outcome, last.details) == ("promote", "done", {"champion": "v3"})
    promoted = block_of(page_of(shop), Section, "decision")
    assert promoted.title == "Decision on v3: promoted"
    (verdicts,) = (one for one in promoted.blocks if isinstance(one, Table))
    assert [row[0] for row in verdicts.rows] == ["index recall"]
    back = actions_of(page_of(shop))["rollback"]
    assert back.title == "Roll back to v2"
    assert "champion is v2" in ENTRY.actions["rollback"](context, sent(back))
    assert served_version(bundles) == "v2"


def test_what_is_not_confirmed_explained_or_allowed_changes_nothing(shop):
    bundles = shop / "bundles"
    action = actions_of(page_of(shop, version="v3"))["promote"]
    before = (bundles / "releases.jsonl").read_text()
    promote = ENTRY.actions["promote"]
    for key, changes, message in (
        (None, {}, "started without a key"),
        ("k", {"confirm": ""}, "to confirm, write v3"),
        ("k", {"confirm": "v2"}, "to confirm, write v3"),
        ("k", {"reason": " \n"}, "give a reason"),
        ("k", {"reason": "x" * 501}, "500 are allowed"),
        ("k", {"version": "v4", "confirm": "v4"}, "nothing was changed: no bundle 'v4'"),
        ("k", {"version": "../v3", "confirm": "../v3"}, "nothing was changed: no bundle"),
        ("k", {"served": "v1"}, "v2 is served by now, not v1"),
    ):
        with pytest.raises(QueryError, match=message.replace(".", r"\.")):
            promote(context_of(shop.parent, key), sent(action, **changes))
    with pytest.raises(NotFoundError, match="no folder of bundles 'x'"):
        promote(context_of(shop.parent), sent(action, bundles="x"))
    assert (bundles / "releases.jsonl").read_text() == before
    assert served_version(bundles) == "v2"
    (words,) = block_of(
        build(context_of(shop.parent, None), Query.of(version="v3")), Section, "actions"
    ).blocks
    assert "started without a key" in words.lines[0]


def test_a_corrupt_bundle_and_one_of_an_altered_decision_are_refused(shop):
    action = actions_of(page_of(shop, version="v3"))["promote"]
    path = next(writable(shop / "bundles" / "bundle-v3").rglob("*.safetensors"))
    data = path.read_bytes()
    path.write_bytes(data[:-1] + bytes([data[-1] ^ 1]))
    with pytest.raises(QueryError, match="nothing was changed"):
        ENTRY.actions["promote"](context_of(shop.parent), sent(action))
    assert served_version(shop / "bundles") == "v2"
    assert read_history(shop)[-1].outcome == "failed"
    back = actions_of(page_of(shop))["rollback"]
    with pytest.raises(QueryError, match=r"v1 is not served: .* was altered after it was signed"):
        ENTRY.actions["rollback"](context_of(shop.parent), sent(back))
    assert served_version(shop / "bundles") == "v2"


def test_of_two_at_once_one_wins_and_the_other_is_told(shop, monkeypatch):
    monkeypatch.setattr("pipelines.dashboard.releases.PATIENCE_SECONDS", 0.05)
    context = context_of(shop.parent)
    first = actions_of(page_of(shop, version="v3"))["promote"]
    ENTRY.actions["promote"](context, sent(first))
    action = actions_of(page_of(shop))["rollback"]
    with (
        publishing(shop / "bundles"),
        pytest.raises(QueryError, match=f"in use by .*{os.getpid()}"),
    ):
        ENTRY.actions["rollback"](context, sent(action))
    assert served_version(shop / "bundles") == "v3"
    ENTRY.actions["rollback"](context, sent(action))
    with pytest.raises(QueryError, match="a rollback would not serve v2 any more"):
        ENTRY.actions["rollback"](context, sent(action))
    assert served_version(shop / "bundles") == "v2"


def test_half_written_files_are_said_and_the_rest_is_shown(shop):
    bundles = shop / "bundles"
    with (bundles / "releases.jsonl").open("a") as file:
        file.write('{"challenger": "v9"}\n{"challenger": "v8"')
    page = page_of(shop)
    assert any("line 5 is not a decision" in one for one in page.notices)
    row = block_of(page, Table, "decisions").rows[0]
    assert (row[1].text, row[4]) == ("v9", "NOT VALID")
