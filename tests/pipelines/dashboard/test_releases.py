"""The page of releases: what it says of a folder."""

import shutil
from pathlib import Path

import pytest

from pipelines.dashboard.query import NotFoundError, Query
from pipelines.dashboard.releases import build
from pipelines.engine.decisions import Decision, append_decision
from pipelines.pages.document import Page, Section, Table
from pipelines.publishing.promotion import note_champion, note_release
from tests.pipelines.dashboard.documents import block_of, dashboard
from tests.serving.synthetic_bundle import write_synthetic_bundle

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


def page_of(shop: Path, **values: str) -> Page:
    return build(dashboard(shop.parent), Query.of(**values))


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
    assert [rows[name][3] for name in ("v1", "v2", "v4")] == ["NOT VALID", "signed", "signed"]
    assert rows["v4"][2:] == ["refused", "signed", "v2", "failed: catalogue coverage"]
    section = block_of(page_of(shop, version="v1"), Section, "decision")
    assert [one.kind for one in section.blocks] == ["words"]
    assert section.blocks[0].tone == "bad"
    assert "cannot be trusted" in section.blocks[0].lines[0]


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


def test_half_written_files_are_said_and_the_rest_is_shown(shop):
    bundles = shop / "bundles"
    with (bundles / "releases.jsonl").open("a") as file:
        file.write('{"challenger": "v9"}\n{"challenger": "v8"')
    page = page_of(shop)
    assert any("line 5 is not a decision" in one for one in page.notices)
    row = block_of(page, Table, "decisions").rows[0]
    assert (row[1].text, row[3]) == ("v9", "NOT VALID")
