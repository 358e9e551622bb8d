import json
import shutil

import httpx
import pytest
import torch

from recsys.layers.lora.file import WEIGHTS
from recsys.layers.lora.linear import LoraAdapter, LoraConfig, digest_of_weights
from recsys.models.adapted import adapted_layers, copy_layers
from serving.bundle.adapters import (
    domain_directory,
    models_of,
    publish_adapter,
    read_registered,
    withdraw_adapter,
    write_adapter,
)
from serving.bundle.load import load_bundle
from serving.bundle.manifest import publish
from serving.bundle.published import ADAPTER_MANIFEST
from serving.bundle.write import write_bundle
from serving.recommend import Recommender
from serving.schemas import Context, Request
from serving.settings import ServingOptions
from tests.serving.server.running import running, wait_for
from tests.serving.synthetic_bundle import SyntheticSize, without, write_synthetic_bundle
from tests.serving.writable import writable

USERS = [f"user-{number}" for number in range(1, 13)]
DOMAINS = ["books", "films/& more", None, "unheard of"]


def register(bundles_dir, domain, seed=1, *, base="two_tower", reading_only=False):
    """Write and publish an adapter that changes much."""
    model = copy_layers(models_of(load_bundle(bundles_dir / "current"))[base])
    targets = adapted_layers(model)[: 1 if reading_only else None]
    torch.manual_seed(seed)
    adapter = LoraAdapter(model, LoraConfig(targets=targets, rank=2, max_share=1.0))
    with torch.no_grad():
        for parameter in adapter.parameters():
            parameter.normal_(std=1.0)
    directory = write_adapter(bundles_dir, adapter, domain=domain, base=base, base_version="v1")
    publish_adapter(directory)
    return directory


def loaded(bundles_dir):
    return Recommender.load(bundles_dir / "current", ServingOptions()).warm()


def answers(recommender, domain):
    """Each user's list and scores in a domain."""
    context = Context(domain=domain, unix_time=1_800_000_000)
    replies = [recommender.answer(Request(user_id=user, context=context)) for user in USERS]
    return [[(item.item_id, item.score) for item in reply.items] for reply in replies]


def served_by(recommender, domain, **fields):
    request = Request(context=Context(domain=domain), **(fields or {"user_id": "user-1"}))
    return recommender.answer(request).served_by.adapter


@pytest.mark.parametrize("reading_only", [False, True])
def test_only_the_answers_of_the_domain_change(bundles_dir, reading_only):
    before = Recommender.load(bundles_dir / "current")
    alone = answers(before, None)
    assert {domain: answers(before, domain) for domain in DOMAINS} == dict.fromkeys(DOMAINS, alone)
    directory = register(bundles_dir, "books", reading_only=reading_only)
    after = Recommender.load(bundles_dir / "current")
    assert answers(after, "books") != alone
    for domain in DOMAINS[1:]:
        assert answers(after, domain) == alone
        assert served_by(after, domain) is None
    assert served_by(after, "books") == f"books/{directory.name.removeprefix('adapter-')}"
    # What no adapter reads is reported as such.
    assert served_by(after, "books", user_id="nobody") is None
    assert served_by(after, "books", surface="related", item_id="item-3") is None


@pytest.fixture
def client(bundles_dir, tmp_path):
    """Of a server that looks for new adapters all the time."""
    with running(bundles_dir, tmp_path / "log") as server, httpx.Client(base_url=server.url) as one:
        yield one


def ask(client, domain):
    """Every user's items in a domain, and what adapter answered."""
    context = {"unix_time": 1_800_000_000} | ({} if domain is None else {"domain": domain})
    requests = [{"user_id": user, "context": context} for user in USERS]
    replies = client.post("/v1/recommend:batch", json={"requests": requests}).json()["replies"]
    (adapter,) = {reply["served_by"].get("adapter") for reply in replies}
    return [reply["items"] for reply in replies], adapter


def wait_for_adapters(client, expected):
    wait_for(lambda: client.get("/readyz").json()["adapters"].keys() == expected)


def test_a_running_server_swaps_one_domain_and_no_other(client, bundles_dir):
    alone, nothing = ask(client, None)
    assert nothing is None
    register(bundles_dir, "films/& more")
    wait_for_adapters(client, {"films/& more"})
    films = ask(client, "films/& more")
    assert films[0] != alone
    seen = []
    for seed in (2, 3):
        directory = register(bundles_dir, "books", seed)
        wanted = f"books/{directory.name.removeprefix('adapter-')}"
        wait_for(lambda wanted=wanted: ask(client, "books")[1] == wanted)
        seen.append(ask(client, "books")[0])
        assert (ask(client, None), ask(client, "films/& more")) == ((alone, None), films)
    assert seen[0] != seen[1]
    withdraw_adapter(bundles_dir, "books")
    wait_for_adapters(client, {"films/& more"})
    assert ask(client, "books") == (alone, None)


def test_an_adapter_of_another_base_is_refused_with_both_digests_until_its_base_is_back(
    bundles_dir,
):
    directory = register(bundles_dir, "books")
    assert loaded(bundles_dir).adapters.versions.keys() == {"books"}
    write_synthetic_bundle(bundles_dir, "v2", SyntheticSize(seed=1))
    publish(bundles_dir, "v2")
    other = loaded(bundles_dir)
    assert not other.adapters.versions
    (reason,) = other.adapters.refused.values()
    assert read_registered(directory).base_digest in reason
    assert digest_of_weights(other.bundle.retriever.model) in reason
    assert served_by(other, "books") is None
    publish(bundles_dir, "v1")
    assert served_by(loaded(bundles_dir), "books").startswith("books/")


DAMAGES = {
    "altered": (lambda path: (path / WEIGHTS).write_bytes(b"x" * 99), "is altered"),
    "missing": (lambda path: (path / WEIGHTS).unlink(), "is missing"),
    "not described": (
        lambda path: (path / ADAPTER_MANIFEST).write_text("{}"),
        "describes no adapter",
    ),
    "gone": (shutil.rmtree, "describes no adapter"),
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_damaged_adapter_is_left_out_and_all_else_serves(bundles_dir, damage):
    alone = answers(Recommender.load(bundles_dir / "current"), None)
    directory = writable(register(bundles_dir, "books"))
    register(bundles_dir, "films/& more", 2)
    break_it, said = DAMAGES[damage]
    break_it(directory)
    recommender = Recommender.load(bundles_dir / "current")
    assert recommender.adapters.versions.keys() == {"films/& more"}
    assert said in recommender.adapters.refused["domain-books"]
    assert answers(recommender, "books") == alone
    assert served_by(recommender, "films/& more").startswith("films/& more/")
    if damage != "gone":
        with pytest.raises(ValueError, match=said):
            publish_adapter(directory)


def test_an_adapter_without_its_base_or_name_is_refused(bundles_dir, parts, tmp_path):
    with pytest.raises(ValueError, match="no adapter is served for domain 'books'"):
        withdraw_adapter(bundles_dir, "books")
    for name in ("", "x" * 81):
        with pytest.raises(ValueError, match=f"1 to 80 characters, got {len(name)}"):
            domain_directory(bundles_dir, name)
    directory = writable(register(bundles_dir, "books"))
    assert register(bundles_dir, "books") == directory
    path = directory / ADAPTER_MANIFEST
    document = json.loads(path.read_text())
    path.write_text(json.dumps({**document, "files": {}}))
    with pytest.raises(ValueError, match=r"names \[\], an adapter has"):
        read_registered(directory)
    path.write_text(json.dumps(document))
    write_bundle(bundles_dir, without(parts, "two_tower"), version="v2")
    publish(bundles_dir, "v2")
    (reason,) = loaded(bundles_dir).adapters.refused.values()
    assert "adapts a two_tower, which the bundle does not have" in reason
