"""Lists that were served are computed to the last bit; what was planted is found and named."""

import json
import shutil
from dataclasses import replace

import numpy as np
import pytest
import torch
from typer.testing import CliRunner

import features.point_in_time
import serving.retrieval
from features.forget_list import ForgetList, UserKeys
from pipelines.cli.main import app
from pipelines.engine.history import read_history
from pipelines.parity.log import log_of_store
from pipelines.parity.recompute import check_parity
from serving.bundle.delta import NewItem, write_delta
from serving.bundle.manifest import publish
from serving.list_record import write_record
from serving.online.events import Event
from serving.online.records import record_of
from serving.online.sqlite_store import SqliteStore
from serving.recommend import Recommender
from serving.schemas import Request
from serving.settings import ServingOptions
from tests.pipelines.parity.conftest import SIZE, serve
from tests.serving.synthetic_bundle import write_synthetic_bundle
from tests.serving.writable import writable


def named(report):
    return {one.what: one for one in report.differences}


def causes(report):
    return {one.what for one in report.differences if one.first}


@pytest.fixture(scope="module")
def log(served):
    return served.log()


def test_what_http_served_while_events_arrived_is_computed_bit_equal(served, log):
    report = served.parity(log)
    assert report.differences == []
    assert report.logged == report.requests == served.num_lists
    assert report.equal == report.recomputed == served.num_lists - sum(report.skipped.values())
    assert report.skipped == {}
    assert 40 < sum("features" in document for document in log.documents) < 140
    assert any(len(document.get("live", ())) > 3 for document in log.documents)
    assert any(document.get("hidden") == ["item-3"] for document in log.documents)
    assert any(document.get("refused") for document in log.documents)
    assert any(document.get("shown") for document in log.documents)
    assert {document["experiment"]["arm"] for document in log.documents if "experiment" in document}
    drawn = [document for document in log.documents if "seed" in document]
    assert drawn
    assert all("propensity" in item for document in drawn for item in document["items"])


def test_a_sample_is_the_same_each_time_and_of_those_with_features_first(served):
    some = served.log(sample=40)
    assert some.num_requests == served.num_lists
    assert some.documents == served.log(sample=40).documents
    assert all("features" in document for document in some.documents)


def changed_definition(monkeypatch, **parts):
    before = features.point_in_time.FEATURES["hour_of_day"]
    table = features.point_in_time.FEATURES
    monkeypatch.setitem(table, "hour_of_day", replace(before, **parts))


def test_a_changed_definition_is_named(served, log, monkeypatch):
    changed_definition(monkeypatch, value=lambda _, now: (now // 3600 + 1) % 24 + 1)
    report = served.parity(log)
    found = named(report)["feature context.hour_of_day"]
    assert found.largest in (1, 23)
    assert found.example in {document["request_id"] for document in log.documents}
    assert found.count == found.first
    # Of a record without features only the consequence can be seen.
    assert causes(report) <= {"feature context.hour_of_day", "score", "items", "order"}
    assert not any(what.startswith("history") for what in named(report))


def altered(log, change):
    return {user: [change(one) for one in own] for user, own in log.events.items()}


def shifted(one):
    return one._replace(event=one.event._replace(time_ms=one.event.time_ms + 3_600_000))


def swapped(one):
    event = one.event
    return one._replace(event=event._replace(item_id=event.event_type, event_type=event.item_id))


@pytest.mark.parametrize(
    ("change", "cause"),
    [
        (lambda log: altered(log, shifted), "history: times of events"),
        (lambda log: altered(log, swapped), "history: events that the list was made without"),
        (
            lambda log: {user: own[1:] for user, own in log.events.items()},
            "history: events that the event log lacks",
        ),
    ],
)
def test_a_wrong_event_log_is_the_first_difference(served, log, change, cause):
    found = named(served.parity(log, events=change(log)))[cause]
    # A list that was also made of an event on its way names that one first.
    assert found.first > 0.5 * found.count
    if cause.endswith("times of events"):
        assert found.largest == 3_600


def test_an_event_may_be_on_its_way_for_a_moment_only(served, log):
    def late(by_ms):
        moved = altered(log, lambda one: one._replace(received_ms=one.received_ms + by_ms))
        return served.parity(log, events=moved)

    assert late(1_000).equal == served.num_lists
    assert "history: events that the event log lacks" in causes(late(600_000))


def test_a_changed_order_of_ties_is_named(tmp_path, monkeypatch):
    merge = serving.retrieval.by_reciprocal_rank

    def tied(reverse):
        def merged(*arguments):
            found = merge(*arguments)
            order = np.arange(len(found.scores))
            order[:2] = order[:2][::-1] if reverse else order[:2]
            names = ("item_rows", "ranks", "contributions")
            parts = {name: getattr(found, name)[order] for name in names}
            scores = found.scores.copy()
            scores[:2] = scores[:1]
            return found._replace(scores=scores, **parts)

        return merged

    monkeypatch.setattr("serving.retrieval.by_reciprocal_rank", tied(reverse=False))
    served = serve(tmp_path, 60, size=replace(SIZE, history_models=False, ranker=False))
    assert served.parity().equal == 60
    monkeypatch.setattr("serving.retrieval.by_reciprocal_rank", tied(reverse=True))
    report = served.parity()
    assert "order of equal scores" in causes(report)
    assert "score" not in named(report)


def copied(served, folder):
    bundles = folder / "bundles"
    return writable(shutil.copytree(served.bundles, bundles, symlinks=True))


def test_lists_of_another_bundle_differ_and_those_that_cannot_be_computed_are_counted(
    served, log, tmp_path
):
    bundles = copied(served, tmp_path)
    shutil.rmtree(bundles / "bundle-v1")
    gone = served._replace(bundles=bundles).parity(log)
    assert gone.skipped == {"bundle_gone": served.num_lists}
    assert (gone.recomputed, gone.equal, gone.differences) == (0, 0, [])
    write_synthetic_bundle(bundles, "v1", replace(SIZE, seed=1))
    report = served._replace(bundles=bundles).parity(log)
    assert {one.what: one.count for one in report.differences} == {
        "bundle of this name": served.num_lists
    }
    other = tmp_path / "other.toml"
    other.write_text("[surfaces.home]\nk = 3\n")
    assert served._replace(config=other).parity(log).skipped == {"rules_changed": served.num_lists}
    first, second, third, *rest = log.documents
    documents = [
        {**first, "degraded": ["late_source"]},
        {**second, "degraded": ["failed_store"]},
        {**third, "request": {"user_id": "user-1"}},
        {**rest[0], "items_version": 77},
    ]
    assert served.parity(log, documents=documents).skipped == {
        "failed_store": 1,
        "items_changed": 1,
        "late_source": 1,
        "old_record": 1,
    }


def test_lists_of_forgotten_users_and_of_many_hidden_items_are_computed_as_they_were(served, log):
    documents = []
    for document in log.documents:
        hidden = {name: value for name, value in document.items() if name != "hidden"}
        known = {"items_version": log.items_version} if "hidden" in document else {}
        documents.append({**hidden, **known})
    assert served.parity(log, documents=documents).equal == served.num_lists
    assert "items" in causes(served.parity(log, documents=documents, hidden=["item-4"]))
    user = next(one["user_id"] for one in log.documents if one.get("user_id"))
    own = sum(document.get("user_id") == user for document in log.documents)
    at = ForgetList.of([user], log.documents[-1]["unix_ms"] + 1, UserKeys((b"k" * 16,)))
    report = served.parity(log, forgotten=at)
    assert report.skipped == {"forgotten": own}
    assert report.equal == served.num_lists - own


def command(served, folder, *more):
    call = ["parity", str(copied(served, folder)), "--store", served.store]
    return CliRunner().invoke(app, [*call, *more])


def test_the_shops_settings_are_not_taken_for_the_servers(served, tmp_path, monkeypatch):
    """The environment of the DAGs: RECSYS_CONFIG names the shop's file there."""
    (tmp_path / "shop.toml").write_text("preset = 'shop'\n[data]\nevents = 'events.csv'\n")
    monkeypatch.setenv("RECSYS_CONFIG", str(tmp_path / "shop.toml"))
    monkeypatch.setenv("RECSYS_SERVING_CONFIG", str(served.config))
    result = command(served, tmp_path, "--sample", "50")
    assert result.exit_code == 0, result.output
    assert "50 of 50 recomputed lists are equal to the last bit (100%)" in result.stdout
    report = json.loads((tmp_path / "parity" / "parity.json").read_text())
    assert report["bundle"] == "v1"
    assert (report["requests"], report["recomputed"], report["equal"]) == (50, 50, 50)
    assert (report["differences"], report["skipped"]) == ([], {})
    line = read_history(tmp_path)[-1]
    assert (line.command, line.exit_code, line.details["equal"]) == ("parity", 0, 50)


def test_the_command_exits_with_3_where_lists_differ(served, tmp_path, monkeypatch):
    changed_definition(monkeypatch, value=lambda _, now: (now // 3600 + 1) % 24 + 1)
    options = ("--json", "--sample", "50", "--serving-config", str(served.config))
    assert command(served, tmp_path, *options).exit_code == 3
    report = json.loads((tmp_path / "parity" / "parity.json").read_text())
    found = {one["what"]: one for one in report["differences"]}["feature context.hour_of_day"]
    assert set(found) == {"what", "count", "first", "largest", "example"}
    assert read_history(tmp_path)[-1].exit_code == 3


def test_bad_input_says_what_to_do(served, tmp_path):
    def output(*call):
        result = CliRunner().invoke(app, ["parity", *call])
        assert result.exit_code == 2
        return " ".join(result.output.split())

    assert "there is no online store" in output(str(tmp_path), "--store", "sqlite:/nowhere")
    assert "a duration is" in output(str(tmp_path), "--store", served.store, "--since", "x")


def test_lists_of_a_release_and_of_its_deltas_come_each_from_its_own(tmp_path):
    """Events arrived and items were appended while a server went on."""
    bundles = tmp_path / "bundles"
    write_synthetic_bundle(bundles, "v1", SIZE)
    publish(bundles, "v1")
    store = SqliteStore(tmp_path / "online")
    clock = 1_790_000_000_000
    for number in range(3):
        recommender = Recommender.load(bundles / "current", ServingOptions(log_features_share=1))
        recommender.connect(lambda: store, keeps_lists=True)
        for place in range(30):
            clock += 10_000
            user = f"user-{1 + place % 45}"
            made = recommender.make(Request(user_id=user, k=10 + place), now_ms=clock)
            store.add_requests([record_of(write_record(recommender, made))])
            item = "fresh" if number and place % 3 == 0 else f"item-{1 + place}"
            event = Event(
                event_id=f"{number}-{place}",
                user_id=user,
                item_id=item,
                event_type="click",
                time_ms=clock + 5,
                received_ms=clock + 5,
            )
            store.add_events([event])
        if number == 0:
            content = recommender.bundle.items.content[[2]].numpy()
            near = recommender.bundle.retriever.index.vectors(torch.tensor([2])).numpy()
            fresh = [NewItem(item_id="fresh", display_text="Fresh", categories=["even"])]
            write_delta(bundles, "v1", fresh, content=content, item_vectors=near)
            publish(bundles, "v1+1")
        else:
            publish(bundles, "v1")
    log = log_of_store(store, 1_000)
    versions = [document["bundle"] for document in log.documents]
    assert versions == ["v1"] * 30 + ["v1+1"] * 30 + ["v1"] * 30
    report = check_parity(log, bundles)
    assert (report.equal, report.skipped, report.differences) == (90, {}, [])
    # As of a bundle that does not know the fresh item its clicks are no history.
    wrong = [{**document, "digest": log.documents[0]["digest"]} for document in log.documents]
    renamed = [{**document, "bundle": "v1"} for document in wrong]
    assert check_parity(replace(log, documents=renamed), bundles).equal < 90
    shutil.rmtree(bundles / "bundle-v1+1")
    assert check_parity(log, bundles).skipped == {"bundle_gone": 30}
