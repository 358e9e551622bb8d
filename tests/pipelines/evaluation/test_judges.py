"""`recsys judge` on a small run, and the judges that a gate takes."""

import json

import numpy as np
import polars as pl
import pytest
from typer.testing import CliRunner

from pipelines.cli.main import app
from pipelines.config.release import GateConfig
from pipelines.engine.history import JUDGES
from pipelines.evaluation.judges import judge_lists
from pipelines.publishing.gate.lists import check_judges, judged_verdicts
from pipelines.publishing.gate.subject import Subject
from serving.bundle.load import load_bundle
from tests.serving.synthetic_bundle import SyntheticSize, write_synthetic_bundle

U, N, K, TOPICS = 160, 120, 10, 4


def save_ragged(folder, rows):
    folder.mkdir(parents=True)
    np.save(folder / "values.npy", np.array([one for row in rows for one in row], np.int64))
    np.save(folder / "offsets.npy", np.cumsum([0, *map(len, rows)]).astype(np.int64))


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """Users of one topic each; one model lists it, the other lists random items."""
    workspace, rng = tmp_path_factory.mktemp("run"), np.random.default_rng(0)
    features, content = workspace / "build_features", workspace / "embed_items"
    topic = np.concatenate([[0], 1 + np.arange(N) % TOPICS])
    own = [np.flatnonzero(topic == 1 + user % TOPICS) for user in range(U)]
    drawn = [rng.permutation(items)[:22] for items in own]
    histories = [[], *(one[:12].tolist() for one in drawn)]
    good = [one[12:22].tolist() for one in drawn]
    random = [rng.choice(np.arange(1, N + 1), K, replace=False).tolist() for _ in range(U)]
    targets = [good[user][int(rng.integers(0, K))] for user in range(U)]
    order = features / "sequences" / "given"
    save_ragged(order, histories)
    ends = np.load(order / "offsets.npy")[1:]
    (order / "values.npy").rename(order / "item_rows.npy")
    np.save(order / "train_end.npy", ends)
    np.save(order / "validation_end.npy", ends)
    np.save(order / "times.npy", np.arange(ends[-1]))
    save_ragged(features / "item_categories", [[], *([int(one)] for one in topic[1:])])
    described = {"num_item_rows": N + 1, "num_categories": TOPICS + 1}
    described |= {"user_features": [], "context_features": []}
    (features / "features.json").write_text(json.dumps(described))
    content.mkdir()
    vectors = rng.normal(size=(N + 1, 8)) + 2 * np.eye(TOPICS + 1, 8)[topic]
    np.save(content / "content.npy", vectors.astype(np.float32))
    (workspace / "evaluate").mkdir()
    table = {"user_row": range(1, U + 1), "item_row": targets}
    table |= {"top_k_blend": good, "top_k_popularity": random}
    pl.DataFrame(table).write_parquet(workspace / "evaluate/per_user_given_validation.parquet")
    return workspace


@pytest.fixture(scope="module")
def document(run):
    return judge_lists(run, num_users=100)


def test_rubrics_separate_planted_lists_and_agree_with_clicks_where_they_do(document):
    judges = document["judges"]
    assert document["num_users"] == 100
    assert judges["relevance"]["separates"]["off_taste"] >= 0.9
    assert judges["distinct"]["separates"]["duplicates"] >= 0.9
    clicks = judges["relevance"]["clicks"]
    assert clicks["mean"] > 0.95
    assert judges["relevance"]["shown"]
    assert not judges["diversity"]["shown"]
    assert judges["diversity"]["clicks"]["mean"] < 0.1
    assert document["correlation"]["relevance"]["diversity"] < 0
    assert judges["relevance"]["mean"]["blend"] > judges["relevance"]["mean"]["popularity"]


def test_the_command_prints_the_judges_and_writes_what_a_gate_reads(run):
    found = CliRunner().invoke(app, ["judge", str(run), "--json"])
    assert found.exit_code == 0, found.output
    assert json.loads(found.output) == json.loads((run / JUDGES).read_text())
    table = CliRunner().invoke(app, ["judge", str(run), "--users", "50"])
    assert "halved" in table.output
    assert "50 users" in table.output


def test_a_folder_without_a_run_is_said(tmp_path):
    with pytest.raises(ValueError, match="no build_features; run recsys run"):
        judge_lists(tmp_path)


def test_a_gate_takes_only_judges_whose_agreement_is_shown(run, tmp_path):
    judge_lists(run, num_users=100)
    check_judges(GateConfig(judges=("relevance",)), run)
    check_judges(GateConfig(), tmp_path)
    with pytest.raises(ValueError, match=r"'diversity', whose agreement is not shown: it prefers"):
        check_judges(GateConfig(judges=("diversity",)), run)
    with pytest.raises(ValueError, match=r"run recsys judge .*which measures"):
        check_judges(GateConfig(judges=("relevance",)), tmp_path)
    with pytest.raises(ValueError, match="names 'taste'; it may name relevance, distinct"):
        GateConfig(judges=("taste",))


def test_a_run_with_a_judge_that_is_not_shown_ends_at_once(tmp_path):
    chosen = ["--set", 'release.gate.judges=["relevance"]', "--workspace", str(tmp_path / "w")]
    found = CliRunner().invoke(app, ["run", "--preset", "movielens_100k", *chosen])
    assert found.exit_code == 2
    assert "which measures whether they agree" in " ".join(found.output.split())
    assert not list((tmp_path / "w").glob("*/manifest.json"))


def test_a_gate_holds_the_challengers_lists_against_the_champions(run, tmp_path):
    judge_lists(run, num_users=100)
    bundle = load_bundle(write_synthetic_bundle(tmp_path, "v1", SyntheticSize(num_users=30)))
    config = GateConfig(judges=("relevance",), list_length=5)
    subject = Subject(challenger=bundle, champion=bundle, config=config, workspace=run)
    users = [f"user-{row}" for row in range(1, 31)]
    own, other = (
        [[f"item-{2 * n - (row + more) % 2}" for n in range(1, 6)] for row in range(1, 31)]
        for more in (0, 1)
    )
    (same,) = judged_verdicts(subject, users, own, own)
    assert same.passed
    assert same.value == 1
    (worse,) = judged_verdicts(subject, users, other, own)
    assert not worse.passed
    assert worse.name == "judged: relevance"
    unknown = Subject(challenger=bundle, champion=bundle, config=GateConfig(judges=("freshness",)))
    (said,) = judged_verdicts(unknown, users, own, own)
    assert said.passed
    assert said.reason.startswith("warning: the bundle has no data")
    off = Subject(challenger=bundle, champion=bundle, config=GateConfig())
    assert list(judged_verdicts(off, users, other, own)) == []
