"""Off-policy evaluation of served lists, end to end."""

import json
import re
import shutil

import numpy as np
import polars as pl
import pytest
from typer.testing import CliRunner

from pipelines.cli.main import app
from pipelines.inputs.exported import list_parts, scan_parts
from pipelines.off_policy.evaluation import OffPolicyConfig, evaluate, query_policy
from pipelines.off_policy.page import find_row, summarize
from pipelines.off_policy.policies import BundlePolicy, Refused, load_policy
from pipelines.off_policy.served_log import read_served_log
from recsys.evaluation.off_policy.logs import whole_list
from serving.configuration.file import check_configuration
from serving.recommend import Recommender
from tests.pipelines.off_policy.shop import EXPLORING, START_MS, rate, serve
from tests.pipelines.pages.read import blocks_in, document_in


def policy_of(bundle, surface=None):
    table = {} if surface is None else {"surfaces": {"home": surface}}
    return BundlePolicy(recommender=Recommender(bundle, configuration=check_configuration(table)))


def oracle(served, policy):
    """Clicks that a policy's own lists earn for the log's requests, by the known rates."""
    answers = [policy.answer(one, served.events) for one in served.lists]
    return float(
        np.mean(
            [sum(rate(one, slot) for slot, one in enumerate(answer.shown)) for answer in answers]
        )
    )


def test_a_log_has_its_lists_rewards_and_propensities(exported):
    served = read_served_log(exported / "requests")
    rows = scan_parts(list_parts(exported / "requests")).collect()
    assert len(served) == 400
    assert served.lengths.tolist() == [4] * 400
    first = rows.filter(pl.col("request_id") == served.lists[0].request_id).sort("slot")
    assert list(served.lists[0].item_ids) == first["item_id"].to_list()
    assert served.propensities[0].tolist() == first["propensity"].to_list()
    assert json.loads(served.lists[1].request) == {"user_id": served.lists[1].user_id, "k": 4}
    assert served.lists[0].time_ms == START_MS + 60_000
    clicks = scan_parts(list_parts(exported)).filter(pl.col("event_type") == "click").collect()
    assert served.rewards.sum() == clicks.height
    # A list without a user is a user of its own.
    assert len(set(served.users.tolist())) == 40 + len({one.user_id for one in served.lists}) - 1


def test_what_was_known_at_a_moment_is_given_back(exported, bundle):
    served = read_served_log(exported)
    events = scan_parts(list_parts(exported)).filter(pl.col("event_type") != "impression").collect()
    late = [one for one in served.lists if one.user_id is not None][-1]
    before = events.filter(
        pl.col("user_id").eq(late.user_id), pl.col("received_time").dt.epoch("ms") <= late.time_ms
    )
    visitor = served.events.visitor(late.user_id, late.time_ms, 200)
    assert len(visitor.events) == before.height > 0
    assert served.events.visitor(late.user_id, late.time_ms, 1).events == visitor.events[-1:]
    assert not served.events.visitor(late.user_id, START_MS, 200).events
    assert not served.events.visitor(None, late.time_ms, 200).events


def test_the_logging_policy_itself_has_weights_of_one_and_earns_the_mean(exported, bundle):
    served = read_served_log(exported)
    policy = policy_of(bundle, EXPLORING)
    material, refused = query_policy(served, policy)
    assert not refused
    np.testing.assert_array_equal(material.log.evaluated, material.log.propensities)
    document = evaluate(served, policy, OffPolicyConfig())
    mean = served.rewards.sum(1).mean()
    for name in ("logging", "ips", "snips", "whole_list_ips", "independent_ips"):
        assert find_row(document, name)["value"] == pytest.approx(mean, rel=1e-12)
    assert find_row(document, "dr")["value"] == pytest.approx(mean, rel=0.1)
    assert document["overlap"]["whole_list"]["effective"] == pytest.approx(400)
    assert document["overlap"]["cascade"]["trust"] == "good"
    text = " ".join(summarize(document))
    assert "does not differ significantly from the logging policy's" in text
    assert "Overlap is good: the 400 lists are worth 400" in text


@pytest.mark.slow
def test_another_policys_value_is_found(bundle, tmp_path):
    out = serve(bundle, tmp_path, 2_000)
    served = read_served_log(out)
    policy = policy_of(bundle, {"exploration": {"method": "epsilon", "epsilon": 0.2}})
    truth = oracle(served, policy)
    document = evaluate(served, policy, OffPolicyConfig())
    for name in ("dr", "snips", "ips", "whole_list_ips"):
        row = find_row(document, name)
        assert row["low"] < truth < row["high"], name
        assert row["value"] == pytest.approx(truth, abs=0.1)
    always = find_row(document, "ips")
    assert always["always_low"] < truth < always["always_high"]
    assert find_row(document, "dr")["trust"] in ("good", "doubtful")
    assert find_row(document, "dr")["high"] - find_row(document, "dr")["low"] < 0.2


def test_a_policy_that_the_log_hardly_covers_is_not_trusted(exported, bundle, tmp_path):
    served = read_served_log(exported)
    # Lists of items that no model ranks high.
    lists = tmp_path / "worst"
    lists.mkdir()
    rows = [
        {"request_id": one.request_id, "item_id": f"item-{40 - slot}", "slot": slot}
        for one in served.lists
        for slot in range(4)
    ]
    pl.DataFrame(rows).write_parquet(lists / "part-0.parquet")
    document = evaluate(served, load_policy(lists), OffPolicyConfig())
    assert find_row(document, "dr")["trust"] == "none"
    assert find_row(document, "dm")["low"] is None
    text = " ".join(summarize(document))
    assert "This log does not show what lists worst would have earned" in text
    assert "Low overlap" in text


def test_lists_by_user_are_shown_for_certain(exported, tmp_path):
    served = read_served_log(exported)
    by_user = {one.user_id: one for one in served.lists if one.user_id is not None}
    folder = tmp_path / "made" / "lists"
    folder.mkdir(parents=True)
    rows = [
        {"user_id": user_id, "rank": slot + 1, "item_id": item_id}
        for user_id, one in by_user.items()
        for slot, item_id in enumerate(one.item_ids)
    ]
    pl.DataFrame(rows).write_parquet(folder / "part-0.parquet")
    policy = load_policy(tmp_path / "made")
    one = by_user["user-1"]
    assert policy.answer(one, served.events).chances == [1, 1, 1, 1]
    nobody = next(one for one in served.lists if one.user_id is None)
    assert isinstance(policy.answer(nobody, served.events), Refused)
    document = evaluate(served, policy, OffPolicyConfig())
    assert document["left_out"] == {"the policy has no list for its user_id": 40}
    assert document["num_lists"] == 360


def test_a_bundle_that_knows_the_logs_clicks_is_named(exported, bundle):
    class Newer(BundlePolicy):
        newest_ms = START_MS + 60_000 * 200

    served = read_served_log(exported)
    policy = Newer(recommender=policy_of(bundle, EXPLORING).recommender)
    document = evaluate(served, policy, OffPolicyConfig())
    assert document["known_share"] == 0.5
    assert "fitted on events as new as 50% of the lists" in " ".join(summarize(document))


def test_of_a_long_log_some_lists_are_drawn(exported, bundle):
    served = read_served_log(exported)
    document = evaluate(served, policy_of(bundle, EXPLORING), OffPolicyConfig(max_lists=100))
    assert (document["num_lists"], document["lists_in_log"]) == (100, 400)


def test_clipping_takes_the_confidence_sequence_away(exported, bundle):
    served = read_served_log(exported)
    document = evaluate(served, policy_of(bundle), OffPolicyConfig(clip=2.0))
    assert "always_low" not in find_row(document, "ips")


def run(*arguments):
    return CliRunner().invoke(app, ["ope", *map(str, arguments)])


def test_the_command_prints_a_table_and_writes_a_page(exported, bundle_path, tmp_path):
    page = tmp_path / "pages" / "ope.html"
    log = exported / "requests"
    result = run("--policy", bundle_path, "--log", log, "--out", page, "--reward", "click")
    assert result.exit_code == 0, result.output
    assert re.search(r"cascade DR \D*\d\.\d{4} +-?\d\.\d{4} +-?\d\.\d{4}", result.stdout)
    assert "In 400 lists to" in result.stdout
    assert document_in(page)["title"] == "bundle v1 on the log of bundle v1"
    shown = {one["key"] for one in blocks_in(page) if one["kind"] == "chart"}
    assert shown == {"chart-estimates"}


def test_the_command_prints_json(exported, bundle_path, tmp_path):
    config = tmp_path / "serving.toml"
    config.write_text('[surfaces.home]\nexploration = {method = "epsilon", epsilon = 0.5}\n')
    result = run(
        "--policy", bundle_path, "--log", exported, "--json", "--config", config, "--quiet"
    )
    assert result.exit_code == 0, result.output
    document = json.loads(result.stdout)
    assert document["overlap"]["cascade"]["mean"] == pytest.approx(1)
    assert document["rows"][0]["estimator"] == "logging"
    assert document["words"][0].startswith("In 400 lists")


def changed(exported, folder, change):
    """Copy an export with its served lists changed."""
    copy = folder / "copy"
    for path in list_parts(exported):
        target = copy / path.relative_to(exported)
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(path, target)
    rows = change(scan_parts(list_parts(exported / "requests")).collect())
    (copy / "requests").mkdir()
    rows.write_parquet(copy / "requests" / "part-0.parquet")
    return copy


FIRST = pl.int_range(pl.len()) == 0
BAD_LOGS = {
    "never drawn": (
        lambda rows: rows.with_columns(pl.lit(None, pl.Float64).alias("propensity")),
        "nothing in its 400 lists was drawn",
    ),
    "zero": (
        lambda rows: rows.with_columns(
            pl.when(FIRST).then(0.0).otherwise("propensity").alias("propensity")
        ),
        r"is 0\.0 \(1 such\); propensities must be in \(0, 1\]",
    ),
    "above one": (
        lambda rows: rows.with_columns((3 * pl.col("propensity")).alias("propensity")),
        r"propensities must be in \(0, 1\]",
    ),
    "nan": (
        lambda rows: rows.with_columns(pl.lit(float("nan")).alias("propensity")),
        "is nan",
    ),
    "a slot missing": (lambda rows: rows.filter(~FIRST), "lacks slots"),
    "a column missing": (lambda rows: rows.drop("propensity"), "has no column propensity"),
    "empty": (lambda rows: rows.clear(), "has no list with propensities"),
}


@pytest.mark.parametrize("name", BAD_LOGS)
def test_a_log_that_cannot_be_used_is_refused(exported, bundle_path, tmp_path, name):
    change, says = BAD_LOGS[name]
    result = run("--policy", bundle_path, "--log", changed(exported, tmp_path, change))
    assert result.exit_code == 2
    assert re.search(says, " ".join(result.stderr.split()))


def test_lists_of_which_nothing_was_drawn_are_left_out(exported, bundle, tmp_path):
    def half(rows):
        first = pl.col("request_id").rank("dense") <= 200
        return rows.with_columns(
            pl.when(first).then("propensity").otherwise(None).alias("propensity")
        )

    served = read_served_log(changed(exported, tmp_path, half))
    document = evaluate(served, policy_of(bundle, EXPLORING), OffPolicyConfig())
    assert document["num_lists"] == 200
    assert document["left_out"] == {"nothing in the list was drawn": 200}


def test_an_export_without_the_column_request_is_read(exported, bundle, tmp_path):
    served = read_served_log(changed(exported, tmp_path, lambda rows: rows.drop("request")))
    material, _ = query_policy(served, policy_of(bundle, EXPLORING))
    np.testing.assert_array_equal(whole_list(material.log), np.ones((400, 4)))


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["--reward", "purchase"], "no event of type purchase .* types that do: impression, click"),
        (["--surface", "cart"], "has no list of surface cart; it has home"),
        (["--log", "nowhere"], "there is no folder nowhere"),
        (["--policy", "nowhere"], "there is no folder nowhere; name a bundle"),
        (["--events", "nowhere"], "there is no folder nowhere; name the export"),
        (["--clip", "0"], "clip must be above 0, got 0"),
        (["--switch-at", "-1"], "switch_at must be above 0"),
        (["--max-lists", "1"], "max_lists must be at least 2, got 1"),
    ],
)
def test_bad_options_are_refused(exported, bundle_path, arguments, says):
    given = {"--policy": bundle_path, "--log": exported}
    given |= dict(zip(arguments[::2], arguments[1::2], strict=True))
    result = run(*(one for pair in given.items() for one in pair))
    assert result.exit_code == 2
    assert re.search(says, " ".join(result.stderr.split()))


def test_what_is_no_policy_is_refused(exported, tmp_path):
    with pytest.raises(ValueError, match="neither a bundle nor a folder of Parquet files"):
        load_policy(tmp_path)
    pl.DataFrame({"user_id": ["a"], "item_id": ["b"]}).write_parquet(tmp_path / "lists.parquet")
    with pytest.raises(ValueError, match="and rank or slot; they have user_id, item_id"):
        load_policy(tmp_path)
    with pytest.raises(ValueError, match="is for a bundle"):
        load_policy(tmp_path, tmp_path / "serving.toml")
