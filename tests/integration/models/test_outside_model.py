"""The page's own model, in a package outside the repository: fitted, blended, served, refused."""

import json
import re
import runpy
import shutil
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import torch

from pipelines.config.run import OutsideModelConfig, RunConfig
from pipelines.stages.list import STAGES
from recsys import Shop
from recsys.fitting.counted import counted
from recsys.fitting.own_model import CYCLE, TensorModel, check_model
from recsys.models.names import spec_at
from serving.bundle.delta import NewItem, write_delta
from serving.bundle.load import load_bundle
from serving.bundle.manifest import MANIFEST
from serving.explanation.served_list import explain_list
from serving.list_record import write_record
from serving.online.store import RequestRecord
from serving.recommend import Recommender
from serving.schemas import Context, Request
from serving.settings import ServingOptions
from tests.integration.copies import Recsys
from tests.recsys.testing.synthetic import World, markov_world

ADDRESS = "my_package.successors:SPEC"
PAGE = Path(__file__).parents[3] / "docs" / "how-to" / "add-a-source.md"
SETTINGS = f"""
preset = "shop"
auto.enabled = false
[data]
events = "events.csv"
items = "items.csv"
[models.successors]
spec = "{ADDRESS}"
settings = {{smoothing = 0.0}}
[content]
encoder = "hash"
[ease]
enabled = false
[two_tower_training]
enabled = false
[search]
[evaluation]
ks = [5, 10]
[tracking]
enabled = false
"""


@pytest.fixture(scope="module", autouse=True)
def package(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """The package of the page, as it would be installed."""
    text = PAGE.read_text(encoding="utf-8")
    model, test = re.findall(r"```python\n(.*?)```", text, re.S)
    assert len((model + test).splitlines()) <= 60
    folder = tmp_path_factory.mktemp("site-packages")
    (folder / "my_package").mkdir()
    (folder / "my_package" / "__init__.py").touch()
    (folder / "my_package" / "successors.py").write_text(model)
    (folder / "test_successors.py").write_text(test)
    sys.path.insert(0, str(folder))
    yield folder
    sys.path.remove(str(folder))
    for name in ("my_package", "my_package.successors"):
        sys.modules.pop(name, None)


@pytest.fixture(scope="module")
def cycle() -> World:
    return markov_world(num_users=40, num_items=24, events_per_user=8)


@pytest.fixture(scope="module")
def shop(
    cycle: World,
    recsys: Recsys,
    write_world: Callable[..., Path],
    tmp_path_factory: pytest.TempPathFactory,
) -> Path:
    folder = tmp_path_factory.mktemp("outside")
    result = recsys(
        "run", write_world(folder, cycle, SETTINGS), "--set", f"workspace={folder / 'run'}", "-q"
    )
    assert result.exit_code == 0, result.output
    return folder / "run"


def test_its_own_test_passes_and_says_which_promise_is_broken(package: Path) -> None:
    names = runpy.run_path(str(package / "test_successors.py"))
    names["test_what_came_next_is_first"]()
    spec = names["SPEC"]
    broken = type("Broken", (TensorModel,), {"score": lambda self, queries: self.scores})
    for scores, said in (
        (torch.zeros(3, CYCLE + 1), "row 0 is padding"),
        (torch.zeros(3, 5), r"scores are \[queries, item rows\]"),
        (torch.full((3, CYCLE + 1), torch.nan).index_fill(1, torch.tensor(0), -torch.inf), "NaN"),
    ):
        fit = partial(lambda scores, *_: counted(broken(scores=scores)), scores)
        with pytest.raises(ValueError, match=said):
            check_model(replace(spec, fit=fit, load=broken.load))
    with pytest.raises(ValueError, match="fit gives a model"):
        check_model(replace(spec, fit=lambda *_: None))


def test_it_is_measured_and_blended(shop: Path) -> None:
    metrics = json.loads((shop / "evaluate" / "metrics.json").read_text())["given"]["test"]
    assert metrics["successors"]["recall@5"] > 0.9
    assert metrics["successors"]["recall@5"] > metrics["popularity"]["recall@5"]
    blends = json.loads((shop / "fit_blend" / "given" / "blends.json").read_text())
    assert "successors" in blends["profiles"]["fast"]["sources"]


def test_it_is_replayed_along_time(shop: Path, recsys: Recsys) -> None:
    few = [
        f"--set=backtest.{one}"
        for one in ("num_steps=2", 'policies=["full"]', 'models=["popularity", "successors"]')
    ]
    result = recsys("backtest", str(shop), *few, "--json")
    assert result.exit_code == 0, result.output
    summary = json.loads(result.stdout)["summary"]
    values = {one["row"]: one["metrics"]["ndcg@10"] for one in summary}
    assert values["successors"] > values["popularity"]


def test_it_is_released_served_and_explained(shop: Path, cycle: World) -> None:
    recommender = Recommender.load(shop / "bundles/current")
    assert recommender.bundle.manifest.specs == {"successors": ADDRESS}
    user = cycle.users[0]
    request = Request(user_id=user, k=3, explain=True, context=Context())
    made = recommender.make(request)
    first = made.reply.items[0]
    assert {first.item_id} == cycle.answers[user]
    assert "successors" in made.listed.candidates.lists
    record = RequestRecord(made.reply.request_id, 0, user, write_record(recommender, made))
    explained = explain_list(recommender, record, None, names_history=True).items[0]
    assert explained.contributions["successors"] > 0
    if max(explained.contributions, key=lambda one: explained.contributions[one]) == "successors":
        assert first.source == "successors"
        assert first.reason == "came next before"
        assert "came next after the last item of others" in (explained.sentence or "")


def test_a_surface_weighs_it_alone(shop: Path, cycle: World, tmp_path: Path) -> None:
    file = tmp_path / "serving.toml"
    file.write_text("[surfaces.home]\nsources = {successors = 1}")
    bundle, user = shop / "bundles/current", cycle.users[0]
    reply = Recommender.load(bundle, ServingOptions(config=file)).answer(Request(user_id=user, k=3))
    assert {reply.items[0].item_id} == cycle.answers[user]
    assert reply.items[0].source == "successors"
    events, settings = shop.parent / "events.csv", {"models": {"successors": {"spec": ADDRESS}}}
    alone = Shop.fit(events, model="successors", settings=settings, progress=False)
    assert alone.recommend([user], k=3)["source"].to_list() == ["successors"]


@pytest.mark.parametrize(
    ("name", "address", "said"),
    [
        ("successors", "no_such_package.module:SPEC", "cannot be imported .* install its package"),
        ("successors", ADDRESS.replace("SPEC", "MISSING"), "cannot be imported"),
        ("successors", ADDRESS.replace("SPEC", "Successors"), "is no ModelSpec but a type"),
        ("mine", ADDRESS, "is the model 'successors', not 'mine'"),
        ("ease", ADDRESS, "the name 'ease' is taken"),
        ("popularity", ADDRESS, "the name 'popularity' is taken"),
        ("../mine", ADDRESS, "lower-case letters"),
        ("successors", "import os", 'write the module .* as "my_package.module:SPEC"'),
    ],
)
def test_what_is_not_the_row_of_such_a_model_is_refused(name: str, address: str, said: str) -> None:
    with pytest.raises(ValueError, match=said):
        spec_at(name, address)


def test_its_code_makes_the_stages_that_use_it_run_again(package: Path) -> None:
    outside = OutsideModelConfig(spec=ADDRESS)
    config = RunConfig(workspace=Path("unused"), models={"successors": outside})
    code = package / "my_package" / "successors.py"
    names = ("fit_baselines", "fit_blend", "train_ranker", "evaluate", "refit")
    stages = [stage for stage in STAGES if stage.name in names]
    assert len(stages) == len(names)
    assert all(code in stage.raw_files(config).values() for stage in stages)
    off = replace(config, models={"successors": replace(outside, enabled=False)})
    assert not any(stage.raw_files(off) for stage in stages)


def test_items_appended_to_its_bundle_have_no_score_of_it(shop: Path, cycle: World) -> None:
    bundle = load_bundle(shop / "bundles/current")
    content = np.zeros((1, bundle.items.content.shape[1]), np.float32)
    new = [NewItem(item_id="new-1", display_text="A new item")]
    delta = write_delta(shop / "bundles", bundle.version, new, content=content, item_vectors=None)
    recommender = Recommender(load_bundle(delta))
    user = cycle.users[0]
    made = recommender.make(Request(user_id=user, k=3))
    scores, rows = made.listed.candidates.lists["successors"]
    assert bundle.num_item_rows not in np.asarray(rows)[np.isfinite(np.asarray(scores))]
    assert {made.reply.items[0].item_id} == cycle.answers[user]


def test_a_bundle_without_its_package_or_of_an_unknown_model_is_refused(
    shop: Path, tmp_path: Path
) -> None:
    directory = tmp_path / (shop / "bundles/current").resolve().name
    shutil.copytree(shop / "bundles/current", directory)
    path = directory / MANIFEST
    path.chmod(0o644)
    text = path.read_text()
    path.write_text(text.replace(ADDRESS, "no_such_package.module:SPEC"))
    with pytest.raises(ValueError, match=r"'successors' is no_such_package.* install its package"):
        load_bundle(directory)
    document = json.loads(text) | {"specs": {}}
    path.write_text(json.dumps(document))
    with pytest.raises(ValueError, match=r"not know the model 'successors'.* serve the bundle"):
        load_bundle(directory)
