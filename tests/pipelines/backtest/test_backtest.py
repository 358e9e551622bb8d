"""``recsys backtest`` on small logs of one's own: what it says, keeps and refuses."""

import json
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

from pipelines.cli.main import app
from tests.pipelines.pages.read import blocks_in

DAY = 86_400
CONFIG = """
preset = "shop"
auto.enabled = false
workspace = "run"
[data]
events = "events.csv"
[two_tower_training]
enabled = false
[backtest]
num_steps = 3
"""


def shop(folder: Path, more: str = "") -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "shop.toml").write_text(CONFIG + more)
    return folder / "shop.toml"


def write_events(folder: Path, rows: list[tuple[str, str, int]]) -> None:
    lines = [f"{user},{item},{time}" for user, item, time in rows]
    (folder / "events.csv").write_text("\n".join(["user_id,item_id,event_time", *lines]) + "\n")


def log_of_days(num_users: int = 60, gap_days: int = 0) -> list[tuple[str, str, int]]:
    """Users take five items of their half of the catalogue on days in order."""
    rng = np.random.default_rng(0)
    rows = []
    for user in range(num_users):
        items = rng.permutation(10)[:5] * 2 + user % 2
        for place, item in enumerate(items):
            day = 5 * place + int(rng.integers(5))
            day += gap_days if day >= 12 else 0
            rows.append((f"u{user}", f"i{item}", 1_200_009_600 + day * DAY))
    return rows


def run(*arguments: object) -> tuple[int, str, str]:
    result = CliRunner().invoke(app, ["backtest", *map(str, arguments)])
    return result.exit_code, result.stdout, result.stderr


def test_the_command_ends_with_words_a_document_and_a_page(tmp_path):
    write_events(tmp_path, log_of_days())
    code, printed, said = run(shop(tmp_path), "--set", f"workspace={tmp_path / 'run'}")
    assert code == 0, said
    assert "never retrained" in printed
    assert "full" in said
    assert "incremental" in said
    folder = tmp_path / "run" / "backtest"
    document = json.loads((folder / "backtest.json").read_text())
    assert [step["number"] for step in document["steps"]] == [1, 2, 3]
    shown = {one["key"]: one for one in blocks_in(folder / "backtest.html")}
    lists = {tuple(row[:2]): row[2] for row in shown["lists"]["rows"]}
    served = {one["policy"]: one for one in document["summary"] if one["row"] == "served"}
    for policy, one in served.items():
        assert lists[policy, "served"] == one["metrics"]["ndcg@10"]
    # A second call finds everything done.
    marks = {path: path.stat().st_mtime_ns for path in folder.glob("steps/*/*.json")}
    again = (tmp_path / "shop.toml", "--set", f"workspace={tmp_path / 'run'}", "--json")
    code, printed, _ = run(*again)
    assert code == 0
    assert json.loads(printed)["summary"] == document["summary"]
    assert marks == {path: path.stat().st_mtime_ns for path in folder.glob("steps/*/*.json")}
    # Broken lists are named, with the remedy.
    broken = folder / "steps" / "2" / "lists" / "full.served.npz"
    broken.write_bytes(b"not an archive")
    code, _, said = run(*again)
    assert code == 2
    assert f"{broken} cannot be read" in said.replace("\n", "")


@pytest.mark.parametrize(
    ("column", "words"),
    [("event_time", "are of one time, so there is no past"), ("sequence_index", "no event_time")],
)
def test_a_log_without_a_past_is_refused_and_leave_one_out_offered(tmp_path, column, words):
    places = range(300) if column == "sequence_index" else [1_700_000_000] * 300
    lines = [
        f"{user},{item},{place}"
        for (user, item, _), place in zip(log_of_days(), places, strict=True)
    ]
    (tmp_path / "events.csv").write_text("\n".join([f"user_id,item_id,{column}", *lines]) + "\n")
    code, _, said = run(shop(tmp_path), "--set", f"workspace={tmp_path / 'run'}")
    assert code == 2
    assert words in " ".join(said.split())
    assert "leave_one_out" in said


def test_ten_years_of_silence_users_of_one_event_and_items_that_leave(tmp_path):
    rows = log_of_days(gap_days=3_650)
    rows += [(f"once{n}", "i1", rows[0][2] + n * DAY) for n in range(5)]
    # Nobody takes it behind the gap.
    rows += [(f"u{n}", "gone", 1_200_009_600) for n in range(4)]
    write_events(tmp_path, rows)
    settings = shop(tmp_path, "step_days = 1\n[filters]\nmin_user_events = 1\n")
    code, _, said = run(settings, "--set", f"workspace={tmp_path / 'run'}")
    assert code == 0, said
    document = json.loads((tmp_path / "run" / "backtest" / "backtest.json").read_text())
    assert len(document["steps"]) == 3
    assert all(step["num_events"] > 0 for step in document["steps"])
