"""Arms of an experiment that name bundles: both serve from one server, and one analysis follows."""

import json
import shutil
from collections import Counter

import pytest
from typer.testing import CliRunner

from pipelines.cli.main import app
from serving.bundle.load import load_bundle
from serving.bundle.manifest import publish
from serving.configuration.check import unfit
from serving.configuration.file import read_configuration
from serving.recommend import Recommender
from serving.schemas import Request
from serving.settings import ServingOptions
from tests.serving.server.running import running, wait_for
from tests.serving.synthetic_bundle import SyntheticSize, write_synthetic_bundle

CONFIGURATION = """
[[experiments]]
name = "models"
surfaces = ["home"]
arms = [{name = "control"}, {name = "new", bundle = "v2"}]
"""
USERS = [f"user-{number}" for number in range(80)]


@pytest.fixture
def bundles(tmp_path):
    folder = tmp_path / "bundles"
    for version, seed in (("v1", 0), ("v2", 1), ("v3", 2)):
        write_synthetic_bundle(folder, version, SyntheticSize(num_items=30 + seed, seed=seed))
    publish(folder, "v1")
    (tmp_path / "serving.toml").write_text(CONFIGURATION)
    return folder


def test_arms_are_served_by_their_bundles_and_compared(bundles, tmp_path, monkeypatch):
    store, config = f"sqlite:{tmp_path / 'online'}", tmp_path / "serving.toml"
    with running(bundles, tmp_path / "log", config=config, store=store) as server:
        assert set(server.state()["arm_bundles"]) == {"v2"}
        (loaded,) = server.events("arm_bundle_loaded")
        assert loaded["bundle"] == "v2"
        assert loaded["megabytes"] > 0
        arms = {}
        for user in USERS:
            # Alone and in a batch.
            _, reply = server.get("/v1/recommend", {"user_id": user, "k": 3})
            _, batch = server.get("/v1/recommend:batch", {"requests": [{"user_id": user, "k": 3}]})
            for one in (reply, *batch["replies"]):
                arms[user] = one["experiment"]["arm"]
                assert one["served_by"]["bundle"] == {"control": "v1", "new": "v2"}[arms[user]]
            alone = Recommender(load_bundle(bundles / f"bundle-{one['served_by']['bundle']}"))
            expected = alone.answer(Request(user_id=user, k=3)).items
            assert [item["item_id"] for item in reply["items"]] == [one.item_id for one in expected]
            if arms[user] == "new":
                slot = {"request_id": reply["request_id"], "slot": 1}
                about = {"event_id": user, "user_id": user, "item_id": expected[0].item_id}
                event = {**about, "event_type": "click", **slot}
                assert server.get("/v1/events", {"events": [event]})[0] == 200
        assert server.get("/v1/recommend", {"k": 3})[1]["served_by"]["bundle"] == "v1"
        explain = f"/v1/explain/{reply['request_id']}"
        wait_for(lambda: server.get(explain)[0] == 200)
        assert server.get(explain)[1]["still_served"]
        # Another release leaves the arm where it is; one without the arm's bundle is refused.
        publish(bundles, "v3")
        wait_for(lambda: server.state()["bundle"] == "v3")
        user = next(user for user in USERS if arms[user] == "new")
        assert server.get("/v1/recommend", {"user_id": user})[1]["served_by"]["bundle"] == "v2"
        shutil.move(bundles / "bundle-v2", tmp_path / "kept")
        publish(bundles, "v1")
        refused = wait_for(lambda: server.state()["refused"])
        assert "an arm names bundle v2" in json.dumps(refused)
        assert server.state()["bundle"] == "v3"
    # Rows of the last minute wait for the next export.
    monkeypatch.setattr("pipelines.inputs.online_events.SETTLED_MS", -60_000)
    folder, runner = tmp_path / "exported", CliRunner()
    done = runner.invoke(app, ["data", "export", "--store", store, "--out", str(folder)])
    assert done.exit_code == 0, done.output
    command = ["experiments", "--exported", str(folder), "--serving-config", str(config), "--json"]
    (found,) = json.loads(runner.invoke(app, command).stdout)
    assert {arm["name"]: arm["users"] for arm in found["arms"]} == Counter(arms.values())
    assert found["ratio_p_value"] > 0.01


def test_a_list_of_another_bundle_is_no_list_of_the_arm(bundles, tmp_path):
    configuration = read_configuration(tmp_path / "serving.toml")
    options = ServingOptions(config=tmp_path / "serving.toml")
    recommender = Recommender.load(bundles / "current", options)
    found = [recommender.answer(Request(user_id=user)) for user in USERS]
    assert Counter(one.experiment and one.experiment.arm for one in found).keys() == {
        None,
        "control",
    }
    assert {one.served_by.bundle for one in found} == {"v1"}
    shutil.rmtree(bundles / "bundle-v2")
    (fault,) = unfit(configuration, recommender.bundle, ["popularity"])
    assert "it has v1, v3" in fault
