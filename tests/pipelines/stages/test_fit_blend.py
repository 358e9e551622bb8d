"""Sources whose lists are planted: one has each user's item at a known place, one is noise."""

import json
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from pipelines.candidates import blends
from pipelines.candidates.blends import FILE, load_blends, served_blends
from pipelines.stages.fit_blend import save_unjudged
from recsys.data.batch import Jagged
from recsys.data.dataset import HeldOut, Sequences
from recsys.data.top_k import TopK
from recsys.fitting import blend as fitting
from recsys.fitting.blend import (
    FUSION,
    LEARNED,
    FittedBlend,
    ProfileBlend,
    fit_blend,
    fusion_profile,
    single_profile,
    source_gains,
)
from recsys.fitting.queries import EvaluationQueries, RetrievalSettings
from recsys.fitting.source_lists import SourceLists
from recsys.retrieval.blend.config import BlendConfig
from recsys.retrieval.blend.learned import LearnedBlend
from serving.surfaces import HOME
from tests.recsys.retrieval.blend.plain_fusion import reciprocal_rank_fusion

NUM_USERS, NUM_ITEMS, LENGTH = 400, 60, 20
CONFIG = BlendConfig()


def fitted(given: SourceLists, config: BlendConfig = CONFIG) -> FittedBlend:
    return fit_blend(given, config, HOME.weights, "ndcg@10")


def ranked(rows: torch.Tensor) -> TopK:
    return TopK(torch.linspace(1, 0, rows.shape[1]).repeat(len(rows), 1), rows)


def listed(targets: torch.Tensor, hit_rate: float, seed: int) -> TopK:
    """Lists of random items, in which a share of the users finds the own item first."""
    drawn = torch.Generator().manual_seed(seed)
    rows = torch.stack([torch.randperm(NUM_ITEMS, generator=drawn)[:LENGTH] + 1 for _ in targets])
    hits = torch.rand(len(targets), generator=drawn) < hit_rate
    rows[rows == targets[:, None]] = NUM_ITEMS + 1  # nobody's item
    rows[hits, 0] = targets[hits]
    return ranked(rows)


def examples(hit_rates: dict[str, float], num_users: int = NUM_USERS) -> SourceLists:
    targets = torch.arange(num_users) % NUM_ITEMS + 1
    return SourceLists(
        {name: listed(targets, rate, seed) for seed, (name, rate) in enumerate(hit_rates.items())},
        Jagged.one_each(targets),
        torch.full((num_users,), 5),
        torch.arange(num_users) % 2,
        torch.ones(NUM_ITEMS + 2),
    )


def test_an_item_taken_twice_is_one_target():
    sequences = Sequences(
        item_rows=np.array([1, 2, 3, 2, 3, 3, 1]),
        offsets=np.array([0, 0, 7]),
        train_end=np.array([0, 2]),
        validation_end=np.array([0, 6]),
    )
    held_out = HeldOut.of(sequences, "validation")
    inputs = SimpleNamespace(sequences=sequences)
    queries = EvaluationQueries(inputs=inputs, held_out=held_out, settings=RetrievalSettings())
    lists = {"repeats": ranked(torch.tensor([[3, 2]]))}
    given = SourceLists.of_queries(lists, queries, torch.ones(4), 0)
    assert given.targets.values.tolist() == [3, 2]
    assert given.with_first_targets().targets.values.tolist() == [3]
    assert fitting.measured_source(given, "repeats", "ndcg@10").tolist() == [1]


@pytest.mark.parametrize(("seconds", "has_visits"), [(60, True), (86_400, False)])
def test_a_log_without_visits_has_no_weights_of_visits(monkeypatch, seconds, has_visits):
    sequences = Sequences(
        item_rows=np.arange(1, 7),
        offsets=np.array([0, 0, 6]),
        train_end=np.array([0, 2]),
        validation_end=np.array([0, 5]),
        times=np.arange(6) * seconds,
    )
    monkeypatch.setattr(blends, "source_lists", lambda sources, inputs, held_out, *_: held_out)
    config = SimpleNamespace(blend=CONFIG, seed=0)
    found = blends.visit_lists({}, SimpleNamespace(sequences=sequences), config)
    assert (found is not None) is has_visits
    if found is not None:
        assert found.targets.values.tolist() == [4, 5]


def test_learned_weights_trust_the_source_that_finds_and_say_what_they_gain():
    given = examples({"sequence": 0.5, "two_tower": 0.02})
    made, document, values = found = fitted(given)
    assert values is not None
    assert float(values.mean()) == pytest.approx(document["validation"][LEARNED])
    gains = source_gains(given, ["sequence", "two_tower"], found, CONFIG)
    assert gains["sequence"]["difference"] > 0.3
    assert abs(gains["two_tower"]["difference"]) < 0.03
    assert document["served"] == LEARNED
    assert document["shares"]["sequence"] > 0.75
    assert document["validation"][LEARNED] == pytest.approx(
        document["validation"]["sequence"], abs=0.02
    )
    assert document["validation"][LEARNED] > document["validation"][FUSION] + 0.1
    assert 0.45 * NUM_USERS < document["num_found"] < 0.6 * NUM_USERS
    assert set(document["weights"]) == set(made.served.sources)


def with_new_items(share: float) -> SourceLists:
    """Queries of which a share wants an item without events, that only content ranks high."""
    num_new, number = 20, 1_200
    drawn = torch.Generator().manual_seed(5)
    wants_new = torch.rand(number, generator=drawn) < share
    new = torch.randint(NUM_ITEMS - num_new + 1, NUM_ITEMS + 1, (number,), generator=drawn)
    old = torch.randint(1, NUM_ITEMS - num_new + 1, (number,), generator=drawn)
    # A third of the lists of content have the new item first, and those of sequence the old one.
    given = {"sequence": listed(old, 0.33, 1), "content_similarity": listed(new, 0.33, 2)}
    counts = torch.ones(NUM_ITEMS + 2)
    counts[NUM_ITEMS - num_new + 1 : NUM_ITEMS + 1] = 0
    return SourceLists(
        given,
        Jagged.one_each(new.where(wants_new, old)),
        torch.full((number,), 5),
        torch.arange(number) % 2,
        counts,
    )


def test_odds_of_new_items_are_fitted_if_validation_wants_any_and_kept_if_set():
    _, document, _ = fitted(with_new_items(0.4))
    new = document["new_items"]
    assert (new["odds"], new["set"]) == (new["tried"], False)
    assert new["odds"] > 1.2
    assert new["after"]["new items"] > new["before"]["new items"]
    assert new["difference"] > -new["standard_error"]
    _, document, _ = fitted(with_new_items(0.0))
    assert document["new_items"] == {"odds": 1.0, "set": False}
    made, document, _ = fitted(with_new_items(0.4), BlendConfig(new_item_odds=3.0))
    assert made.served.config.new_item_odds == made.folds[0].config.new_item_odds == 3.0
    assert (document["new_items"]["odds"], document["new_items"]["set"]) == (3.0, True)


def test_what_is_better_on_validation_is_served_and_said(monkeypatch, tmp_path):
    names = ("sequence", "two_tower")
    poor = single_profile(names, "two_tower")
    spoilt = ProfileBlend(served=poor, folds=(poor, poor))
    monkeypatch.setattr(fitting, "learned_profile", lambda *_: spoilt)
    made, document, _ = fitted(examples({"sequence": 0.5, "two_tower": 0.02}))
    assert document["served"] == "sequence"
    assert "sequence" in document["reason"]
    assert document["best_alternative"]["ahead"] > 0.3
    made.save(tmp_path, "fast")
    (tmp_path / FILE).write_text(json.dumps({"profiles": {"fast": document}}))
    # Both profiles are one without a generative model.
    assert served_blends(tmp_path) == {
        "fast": tmp_path / "blend_fast",
        "full": tmp_path / "blend_fast",
    }
    assert load_blends(tmp_path)["fast"].served.weights.equal(made.served.weights)


@pytest.mark.parametrize("hit_rates", [(0.5, 0.02, 0.02), (0.3, 0.28, 0.05), (0.12, 0.1, 0.1)])
@pytest.mark.parametrize("num_users", [36, 60, 200])
@pytest.mark.parametrize("by_halves", [True, False])
def test_no_source_is_better_than_what_is_served_by_more_than_a_standard_error(
    hit_rates, num_users, by_halves
):
    """With too few users found in a half nothing is learned, and fusion is what serves."""
    given = examples(
        dict(zip(("sequence", "two_tower", "ease"), hit_rates, strict=True)), num_users
    )
    made = fitted(given, BlendConfig(min_found=1 if by_halves else num_users))
    assert made.values is not None
    assert float(made.values.mean()) == pytest.approx(
        made.document["validation"][made.document["served"]]
    )
    for name in given.lists:
        source = fitting.measured_source(given, name, "ndcg@10")
        ahead, error, _ = fitting.paired_difference(source, made.values)
        assert ahead <= error


@pytest.mark.parametrize(
    ("blend", "num_users", "reason"),
    [
        (BlendConfig(enabled=False), NUM_USERS, "blend.enabled is false"),
        (BlendConfig(min_found=20), 10, "fewer than 20"),
    ],
)
def test_without_learned_weights_the_surface_fuses(tmp_path, blend, num_users, reason):
    given = examples({"sequence": 0.5, "two_tower": 0.02}, num_users)
    made, document, _ = fitted(given, blend)
    assert document["served"] == FUSION
    assert reason in document["reason"]
    made.save(tmp_path, "fast")
    (tmp_path / FILE).write_text(json.dumps({"profiles": {"fast": document}}))
    assert served_blends(tmp_path) == {}


def test_fusion_as_weights_orders_as_reciprocal_rank_fusion():
    given = examples(
        {"sequence": 0.4, "two_tower": 0.2, "content_similarity": 0.3, "popularity": 0.1}
    )
    merged = single(fusion_profile(tuple(given.lists), HOME.weights)).lists(
        given.lists, given.history_lengths, given.item_counts
    )
    names = ("sequence", "two_tower", "popularity")  # content ranks appended items only
    fused = reciprocal_rank_fusion(
        {name: given.lists[name].item_rows for name in names},
        merged.item_rows.shape[1],
        {name: HOME.weights[name] for name in names},
    )
    assert merged.item_rows.equal(fused.item_rows)


def single(blend: LearnedBlend) -> ProfileBlend:
    return ProfileBlend(served=blend, folds=())


def test_each_half_is_measured_by_the_weights_of_the_other():
    given = examples({"sequence": 0.4, "two_tower": 0.2}, num_users=6)
    names = tuple(given.lists)
    made = ProfileBlend(
        served=fusion_profile(names, HOME.weights),
        folds=(single_profile(names, "sequence"), single_profile(names, "two_tower")),
    )
    merged = made.lists(given.lists, given.history_lengths, given.item_counts, given.folds)
    for user, fold in enumerate(given.folds.tolist()):
        expected = given.lists[names[fold]].item_rows[user]
        assert merged.item_rows[user, :LENGTH].equal(expected)


def test_weights_of_a_half_never_saw_it(monkeypatch):
    seen: list[list[int]] = []
    fit = fitting.learned_blend

    def noted(part: SourceLists, *settings: object) -> LearnedBlend:
        seen.append(part.folds.unique().tolist())
        return fit(part, *settings)  # type: ignore[arg-type]

    monkeypatch.setattr(fitting, "learned_blend", noted)
    fitted(examples({"sequence": 0.5, "two_tower": 0.1}))
    assert seen == [[0, 1], [1], [0]]


def test_without_validation_the_surfaces_weights_serve_and_say_why(tmp_path):
    save_unjudged(tmp_path, {"popularity": None, "item_to_item": None, "content_similarity": None})
    assert served_blends(tmp_path) == {}
    profiles = json.loads((tmp_path / FILE).read_text())["profiles"]
    assert profiles["fast"]["served"] == FUSION
    assert "no user has a held-out event" in profiles["fast"]["reason"]
    loaded = load_blends(tmp_path)["fast"].served
    assert loaded.sources == ("popularity", "item_to_item")


def test_measured_lists_are_requested_like_those_of_the_home_page():
    settings = RetrievalSettings()
    for name in ("num_candidates", "max_history"):
        assert getattr(settings, name) == getattr(HOME, name)
