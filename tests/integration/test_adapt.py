"""Adapters on a released world of two domains with opposite tastes."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import polars as pl
import pytest
from click.testing import Result

from recsys.layers.lora.linear import digest_of_weights
from serving.bundle.adapters import models_of, read_registered
from serving.bundle.load import load_bundle
from serving.bundle.published import served_adapters
from tests.integration.copies import Recsys
from tests.recsys.testing.world_text import DOMAINS
from tests.recsys.testing.worlds import WorldConfig, world

BOOKS, TOYS = list(DOMAINS)[:2]
SETTINGS = """
preset = "shop"
auto.enabled = false
device = "cpu"

[data]
events = "events.csv"
items = "items.csv"

[filters]
min_user_events = 3
min_item_events = 1

[features]
context_features = []

[content]
encoder = "hash"

[semantic_ids]
method = "none"

[search]

[two_tower]
embedding_dim = 32
hidden_dim = 32
max_history = 20
dropout = 0.0
backend = "torch"

[two_tower_training]
batch_size = 64
max_epochs = 2.0

[two_tower_training.schedule]
learning_rate = 0.003

[sequence]
embedding_dim = 32
hidden_dim = 32
max_length = 20
dropout = 0.0
backend = "torch"

[sequence_training]
enabled = true
batch_size = 32
max_epochs = 3.0

[sequence_training.schedule]
learning_rate = 0.003

[adapter]
rank = 4
max_epochs = 6.0
min_slice_users = 40
max_share = 0.2

[adapter.schedule]
learning_rate = 0.003

[evaluation]
ks = [5, 10]

[tracking]
enabled = false
"""


def write_world(folder: Path) -> Path:
    """Write the clicks of a world of two domains, the catalogue with its domains, and the TOML."""
    made = world(
        WorldConfig(seed=5, num_users=240, num_items=60, num_requests=9_000, num_domains=2)
    )
    clicks = made.events.event_types == "click"
    pl.DataFrame(
        {
            "user_id": made.events.user_ids[clicks],
            "item_id": made.events.item_ids[clicks],
            "event_time": made.events.times[clicks],
            "event_type": made.events.event_types[clicks],
        }
    ).write_csv(folder / "events.csv")
    names = np.array([BOOKS, TOYS])
    pl.DataFrame(
        {
            "item_id": made.catalogue.item_ids,
            "title": made.catalogue.titles,
            "domain": names[made.domain_of_item],
        }
    ).write_csv(folder / "items.csv")
    (folder / "shop.toml").write_text(SETTINGS)
    return folder / "shop.toml"


@pytest.fixture(scope="module")
def domains(built_once: Callable[[str, Callable[[Path], None]], Path], recsys: Recsys) -> Path:
    """A workspace in which the whole run is done, and its TOML beside it."""

    def build(folder: Path) -> None:
        result = recsys(
            "run", write_world(folder), "--set", f"workspace={folder / 'run'}", "--quiet"
        )
        assert result.exit_code == 0, result.output

    return built_once("domains", build)


@pytest.fixture
def workspace(domains: Path, tmp_path: Path) -> Path:
    """A copy of it, to adapt in."""
    return Path(shutil.copytree(domains / "run", tmp_path / "run", symlinks=True))


def adapt(recsys: Recsys, domains: Path, workspace: Path, *more: str) -> Result:
    return recsys(
        "release", "adapt", domains / "shop.toml", "--set", f"workspace={workspace}", "-q", *more
    )


@pytest.mark.parametrize(
    ("base", "tables", "softmax_over"),
    [("two_tower", "[]", "catalogue"), ("sequence", "['item']", "domain")],
)
def test_an_adapter_is_judged_registered_with_its_base_and_withdrawn(
    recsys: Recsys, domains: Path, workspace: Path, base: str, tables: str, softmax_over: str
) -> None:
    wanted = {"model": base, "tables": tables, "softmax_over": softmax_over}
    settings = [part for name in wanted for part in ("--set", f"adapter.{name}={wanted[name]}")]
    asked = ("--domain", BOOKS, *settings)
    result = adapt(recsys, domains, workspace, *asked)
    assert result.exit_code == 0, result.output
    (directory,) = served_adapters(workspace / "bundles").values()
    manifest = read_registered(directory)
    assert (manifest.domain, manifest.base) == (BOOKS, base)
    assert manifest.metrics["adapter"]["ndcg@10"] > manifest.metrics["base"]["ndcg@10"]
    assert all(verdict.passed for verdict in manifest.verdicts)
    bundle = (workspace / "bundles/current").resolve()
    assert manifest.base_version == json.loads((bundle / "manifest.json").read_text())["version"]
    model = models_of(load_bundle(bundle))[base]
    assert manifest.base_digest == digest_of_weights(model)
    # The same again is the same adapter.
    assert adapt(recsys, domains, workspace, *asked).exit_code == 0
    assert list(served_adapters(workspace / "bundles").values()) == [directory]
    withdrawn = adapt(recsys, domains, workspace, "--domain", BOOKS, "--withdraw")
    assert withdrawn.exit_code == 0, withdrawn.output
    assert served_adapters(workspace / "bundles") == {}
    assert directory.is_dir()


def test_an_adapter_that_the_gate_refuses_is_not_registered(
    recsys: Recsys, domains: Path, workspace: Path
) -> None:
    result = adapt(recsys, domains, workspace, "--domain", BOOKS, "--set", "adapter.min_gain=9.0")
    assert result.exit_code == 3, result.output
    assert f"ndcg@10 of domain {BOOKS}" in result.output
    assert not (workspace / "bundles/adapters").exists()
    told = json.loads((workspace / "refused-adapter.json").read_text())
    failed = [one for one in told["verdicts"] if not one["passed"]]
    assert failed
    assert all(one["value"] < one["bound"] for one in failed)


def test_a_run_adapts_to_the_domains_that_are_named_and_skips_them_the_next_time(
    recsys: Recsys, domains: Path, workspace: Path
) -> None:
    config = domains / "shop.toml"
    first = ("run", config, "--set", f"workspace={workspace}", "-q", "--stage", "adapt_domains")
    first += ("--set", "adapter.model=two_tower")
    run = (*first, "--set", f'adapter.domains=["{TOYS}"]')
    # A domain whose items are not in the log is skipped, and the next is adapted.
    both = recsys(*first, "--set", f'adapter.domains=["zines", "{TOYS}"]')
    assert both.exit_code == 0, both.output
    assert f"no adapter of 'zines': no item is of domain 'zines'; there are {BOOKS}" in both.output
    none, told = json.loads((workspace / "adapt_domains/adapters.json").read_text())
    assert (none["adapter"], told["domain"]) == (None, TOYS)
    assert recsys(*run).exit_code == 0
    (told,) = json.loads((workspace / "adapt_domains/adapters.json").read_text())
    (directory,) = served_adapters(workspace / "bundles").values()
    assert (told["domain"], told["adapter"]) == (TOYS, directory.name)
    assert "1 skipped" in recsys(*run).output
    # What somebody deleted is made again; what the gate refuses leaves the release alone.
    shutil.rmtree(directory)
    assert "0 skipped" in recsys(*run).output
    assert directory.is_dir()
    refused = recsys(*run, "--set", "adapter.min_gain=9.0")
    assert refused.exit_code == 0, refused.output
    assert f"{TOYS!r} is refused, the base serves the domain: ndcg@10 of" in refused.output
    (told,) = json.loads((workspace / "adapt_domains/adapters.json").read_text())
    assert told["adapter"] is None
    assert f"ndcg@10 of domain {TOYS}" in told["refused"]
    assert not all(one["passed"] for one in told["verdicts"])
    whole = told["changes"][0]
    assert whole["name"] == f"domain {TOYS}"
    assert whole["low"] <= whole["difference"] <= whole["high"]

    # A domain of a few items has hardly a held-out user.
    small = recsys(*run, "--set", "adapter.validation_users=1")
    assert small.exit_code == 0, small.output
    assert f"{TOYS!r} is refused, the base serves the domain: held-out users of" in small.output


@pytest.mark.parametrize(
    ("more", "said"),
    [
        (("--domain", "nowhere"), f"no item is of domain 'nowhere'; there are {BOOKS}, {TOYS}"),
        (("--domain", BOOKS, "--set", "adapter.rank=33"), "rank 33 is larger than layer"),
        (("--domain", BOOKS, "--set", 'adapter.targets=["decoder.*"]'), "names no linear layer"),
        (("--domain", BOOKS, "--set", "adapter.model=ranker"), "adapter.model"),
        (("--domain", BOOKS, "--withdraw"), "no adapter is served for domain"),
    ],
)
def test_what_cannot_be_adapted_is_refused_in_words(
    recsys: Recsys, domains: Path, more: tuple[str, ...], said: str
) -> None:
    result = adapt(recsys, domains, domains / "run", *more)
    assert result.exit_code == 2, result.output
    assert said in " ".join(result.output.split())
    assert not (domains / "run/bundles/adapters").exists()
