"""A defective challenger is refused by `recsys run`; nothing is published, the reason is kept."""

import json
from pathlib import Path

import polars as pl
import pytest

from pipelines.stages import release as stage
from tests.integration.copies import Recsys
from tests.pipelines.publishing.gate.planted import exploding_rows

QUICK = ("-q", "--set", "generative_training.enabled=false")


def decisions(workspace: Path) -> list[dict[str, object]]:
    lines = (workspace / "bundles/releases.jsonl").read_text().splitlines()
    return [json.loads(line) for line in lines]


def served(workspace: Path) -> tuple[str, list[str]]:
    bundles = workspace / "bundles"
    return (bundles / "current").readlink().name, sorted(
        path.name for path in bundles.glob("bundle-*")
    )


def test_a_defective_bundle_is_refused_and_the_champion_stays(
    released: tuple[Path, Path], recsys: Recsys, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    check = "length of vectors"
    config, workspace = released
    before = served(workspace)
    (tmp_path / "scratch").mkdir()
    sound = stage.make_parts
    monkeypatch.setattr(
        stage, "make_parts", lambda *parts: exploding_rows(sound(*parts), tmp_path / "scratch")
    )
    result = recsys("run", config, "--set", f"workspace={workspace}", "-q", "--force", "release")
    assert result.exit_code == 3, result.output
    assert served(workspace) == before
    assert not list((workspace / "bundles").glob(".partial-*"))
    decision = decisions(workspace)[-1]
    assert decision["outcome"] == "refused"
    assert any(one["name"].startswith(check) for one in decision["verdicts"] if not one["passed"])
    assert any(line.startswith(check) for line in decision["words"])


def test_wrong_input_is_refused_and_explained_and_a_sound_run_is_released(
    released: tuple[Path, Path], recsys: Recsys, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RECSYS_SIGNING_KEY", "a-key-of-the-operators")
    config, workspace = released
    before, events = served(workspace), config.parent / "events.csv"
    original = events.read_text()
    table = pl.read_csv(events)
    late = pl.col("event_time").str.to_datetime(time_zone="UTC").dt.offset_by("8h")
    table.with_columns(late.dt.strftime("%Y-%m-%dT%H:%M:%SZ")).write_csv(events)
    result = recsys("run", config, "--set", f"workspace={workspace}", *QUICK)
    assert result.exit_code == 3, result.output
    assert served(workspace) == before
    words = " ".join(result.output.split())
    assert "times of known events" in words
    assert "by +8.0 hours in the middle; check their time zone" in words

    refused = decisions(workspace)[-1]
    version = refused["challenger"]
    explained = recsys("release", "explain", workspace, version)
    assert explained.exit_code == 0, explained.output
    output = " ".join(explained.output.split())
    assert f"{version}: refused" in output
    assert "(signed)" in output
    assert "check their time zone" in output
    assert f"{version} --force" in output
    assert "a-key-of-the-operators" not in explained.output

    events.write_text(original)
    result = recsys("run", config, "--set", f"workspace={workspace}", *QUICK)
    assert result.exit_code == 0, result.output
    history = recsys("release", "history", workspace)
    assert history.exit_code == 0, history.output
    assert [one["outcome"] for one in decisions(workspace)][-2:] == ["refused", "released"]

    # The refused one can still be forced, and that is written down.
    assert recsys("release", "promote", workspace, version).exit_code == 3
    forced = recsys("release", "promote", workspace, version, "--force")
    assert forced.exit_code == 0, forced.output
    assert served(workspace)[0] == f"bundle-{version}"
    assert decisions(workspace)[-1]["forced"] is True
    assert recsys("release", "rollback", workspace / "bundles").exit_code == 0

    path = workspace / "bundles/releases.jsonl"
    path.write_text(path.read_text().replace('"refused"', '"released"'))
    altered = recsys("release", "history", workspace)
    assert altered.exit_code == 3
    assert f"{path.name}, line 2 was altered after it was signed" in " ".join(
        altered.output.split()
    )
