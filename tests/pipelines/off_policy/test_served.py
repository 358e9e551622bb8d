"""Off-policy evaluation of lists that a real recommender drew for visitors with known rates."""

import json
import re
import shutil
import zlib

import numpy as np
import polars as pl
import pytest
from typer.testing import CliRunner

from pipelines.cli.main import app
from pipelines.inputs.exported import list_parts, scan_parts
from pipelines.inputs.online_events import export_events, export_requests
from pipelines.off_policy.evaluation import BundlePolicy, OffPolicyConfig, evaluate, query_policy
from pipelines.off_policy.served_log import EventHistories, read_served_log
from pipelines.off_policy.summary import find_row, summarize
from serving.configuration.file import check_configuration
from serving.list_record import write_record
from serving.online.events import Event
from serving.online.sqlite_store import SqliteStore
from serving.online.store import RequestRecord, read_seed
from serving.recommend import Recommender
from serving.schemas import Request
from tests.serving.synthetic_bundle import write_synthetic_bundle

START_MS = 1_760_000_000_000
EXPLORING = {"exploration": {"method": "epsilon", "epsilon": 0.5}}
DISCOUNT = 0.7
K = 4


def rate(item_id, slot=0):
    """Chance of a click on an item in a slot."""
    return (0.02 + 0.4 * (zlib.crc32(item_id.encode()) % 100 / 100) ** 2) * DISCOUNT**slot


def serve(bundle, folder, number=400, surface=None, *, users=30, seed=0):
    """Serve lists, click, and export; returns the folder of the export."""
    table = {"surfaces": {"home": surface or EXPLORING}}
    recommender = Recommender(bundle, configuration=check_configuration(table))
    store, random = SqliteStore(folder / "online"), np.random.default_rng(seed)
    now_ms = START_MS
    for place in range(number):
        now_ms += 60_000
        user_id = f"user-{random.integers(1, users + 1)}" if place % 10 else None
        request = Request(user_id=user_id, k=K)
        visitor = store.visitor(user_id, 200)
        made = recommender.make(request, now_ms=now_ms, visitor=visitor, seed=place)
        store.add_requests([_record(recommender, made, now_ms)])
        store.add_events(list(_clicks(made, user_id, now_ms, random)))
    out = folder / "exported"
    export_events(store, out)
    export_requests(store, out, now_ms + 10_000_000)
    store.close()
    return out


def _record(recommender, made, now_ms):
    reply = made.reply
    return RequestRecord(
        reply.request_id, now_ms, made.query.request.user_id, write_record(recommender, made)
    )


def _clicks(made, user_id, now_ms, random):
    for slot, item in enumerate(made.reply.items):
        for event_type in ("impression", "click"):
            if event_type == "click" and random.random() >= rate(item.item_id, slot):
                continue
            yield Event(
                event_id=f"{made.reply.request_id}-{slot}-{event_type}",
                user_id=user_id or "nobody",
                item_id=item.item_id,
                event_type=event_type,
                time_ms=now_ms + 1_000,
                received_ms=now_ms + 2_000,
                request_id=made.reply.request_id,
                slot=slot + 1,
            )


@pytest.fixture(scope="session")
def bundle_path(tmp_path_factory):
    return write_synthetic_bundle(tmp_path_factory.mktemp("bundles"), "v1")


@pytest.fixture(scope="session")
def bundle(bundle_path):
    return Recommender.load(bundle_path).bundle


@pytest.fixture(scope="session")
def exported(bundle, tmp_path_factory):
    """Lists that a surface drew with epsilon 0.5, and clicks; shared, so not to be changed."""
    return serve(bundle, tmp_path_factory.mktemp("shop"))


def policy_of(bundle, surface=None):
    table = {} if surface is None else {"surfaces": {"home": surface}}
    return BundlePolicy(Recommender(bundle, configuration=check_configuration(table)))


def oracle(served, policy):
    """Clicks that a policy's own lists earn for the log's requests, by the known rates."""
    found = []
    for one in served.lists:
        request = Request.model_validate_json(one.request)
        visitor = served.events.visitor(one.user_id, one.time_ms, 200)
        seed = read_seed(one.request_id) + 1
        made = policy.recommender.make(request, now_ms=one.time_ms, visitor=visitor, seed=seed)
        shown = made.reply.items[: len(one.item_ids)]
        found.append(sum(rate(item.item_id, slot) for slot, item in enumerate(shown)))
    return float(np.mean(found))


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
    hides = EventHistories(before.tail(1).with_columns(event_type=pl.lit("hide")))
    visitor = hides.visitor(late.user_id, late.time_ms, 200)
    assert (len(visitor.refused), visitor.events) == (1, [])


def test_the_logging_policy_itself_has_weights_of_one_and_earns_the_mean(exported, bundle):
    served = read_served_log(exported)
    policy = policy_of(bundle, EXPLORING)
    material, refused = query_policy(served, policy)
    assert not refused
    np.testing.assert_array_equal(material.log.evaluated, material.log.propensities)
    document = evaluate(served, policy, OffPolicyConfig())
    mean = served.rewards.sum(1).mean()
    for name in ("logging", "ips", "snips"):
        assert find_row(document, name)["value"] == pytest.approx(mean, rel=1e-12)
    assert find_row(document, "dr")["value"] == pytest.approx(mean, rel=0.1)
    assert document["overlap"]["cascade"]["effective"] == pytest.approx(400)
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
    for name in ("dr", "snips", "ips"):
        row = find_row(document, name)
        assert row["low"] < truth < row["high"], name
        assert row["value"] == pytest.approx(truth, abs=0.1)
    assert find_row(document, "dr")["trust"] in ("good", "doubtful")
    assert find_row(document, "dr")["high"] - find_row(document, "dr")["low"] < 0.2


def test_a_policy_that_the_log_hardly_covers_is_not_trusted(exported, bundle):
    class Worst(BundlePolicy):
        """Always shows other items than the log, but for a few lists."""

        def answer(self, served, histories):
            if served.user_id is None:
                return "nobody"
            answer = super().answer(served, histories)
            shown = float(served.time_ms < START_MS + 600_000)
            return answer._replace(chances=[shown] * len(answer.chances))

    served = read_served_log(exported)
    document = evaluate(served, Worst(policy_of(bundle).recommender), OffPolicyConfig())
    assert document["left_out"] == {"nobody": 40}
    assert document["num_lists"] == 360
    assert find_row(document, "dr")["trust"] == "none"
    text = " ".join(summarize(document))
    assert "This log does not show what bundle v1 would have earned" in text
    assert "Low overlap" in text


def test_a_bundle_that_knows_the_logs_clicks_is_named(exported, bundle):
    served = read_served_log(exported)
    policy = policy_of(bundle, EXPLORING)
    policy.newest_ms = START_MS + 60_000 * 200
    document = evaluate(served, policy, OffPolicyConfig())
    assert document["known_share"] == 0.5
    assert "fitted on events as new as 50% of the lists" in " ".join(summarize(document))


def run(*arguments):
    return CliRunner().invoke(app, ["ope", *map(str, arguments)])


def test_the_command_prints_a_table_and_json(exported, bundle_path, tmp_path):
    given = ("--policy", bundle_path, "--log", exported / "requests", "--max-lists", 100)
    result = run(*given)
    assert result.exit_code == 0, result.output
    assert re.search(r"doubly robust \(read this one\) \D*\d\.\d{4}", result.stdout)
    assert "In 100 lists to" in result.stdout
    config = tmp_path / "serving.toml"
    config.write_text('[surfaces.home]\nexploration = {method = "epsilon", epsilon = 0.5}\n')
    result = run(*given, "--json", "--serving-config", config, "--quiet")
    assert result.exit_code == 0, result.output
    document = json.loads(result.stdout)
    assert (document["num_lists"], document["lists_in_log"]) == (100, 400)
    assert document["overlap"]["cascade"]["mean"] == pytest.approx(1)
    assert [row["estimator"] for row in document["rows"]] == ["logging", "dr", "snips", "ips"]
    assert document["words"][0].startswith("In 100 lists")


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
    "a slot missing": (lambda rows: rows.filter(~FIRST), "lacks slots"),
    "a column missing": (lambda rows: rows.drop("propensity"), "has no column propensity"),
}


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


@pytest.mark.parametrize(
    ("option", "value", "says"),
    [
        ("--reward", "purchase", "no event of type purchase .* types that do: impression, click"),
        ("--log", "nowhere", "there is no folder nowhere"),
        ("--policy", "nowhere", "nowhere"),
        ("--max-lists", "1", "max_lists must be at least 2, got 1"),
        *(("--log", *bad) for bad in BAD_LOGS.values()),
    ],
)
def test_options_and_logs_that_cannot_be_used_are_refused(
    exported, bundle_path, tmp_path, option, value, says
):
    given = {"--policy": bundle_path, "--log": exported}
    given[option] = changed(exported, tmp_path, value) if callable(value) else value
    result = run(*(one for pair in given.items() for one in pair))
    assert result.exit_code == 2
    assert re.search(says, " ".join(result.stderr.split()))
