"""What a bundle's lists know of items' demand is as of its own events."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import torch

from recsys.data.batch import JaggedBatch
from recsys.data.dataset import Sequences
from recsys.data.top_k import ItemMask
from recsys.retrieval.blend.demand import item_demand
from serving.bundle.load import load_bundle
from serving.bundle.write import write_bundle
from serving.query import hydrate
from serving.recommend import Recommender
from serving.schemas import Request
from serving.settings import ServingOptions
from serving.sources import sources_of
from serving.surfaces import HOME
from tests.serving.synthetic_bundle import SyntheticSize, synthetic_parts


def test_events_at_other_times_change_what_is_served_without_a_fit(tmp_path: Path) -> None:
    size = SyntheticSize(history_models=True, ranker=True)
    parts = synthetic_parts(tmp_path / "parts", size)
    assert parts.users.times is not None
    times = np.asarray(parts.users.times)
    stretched = times.min() + 5_000 * (times - times.min())
    found, scores = [], []
    for version, own in (("v1", times), ("v2", stretched), ("v3", None)):
        users = replace(parts.users, times=own)
        path = write_bundle(tmp_path / "bundles", replace(parts, users=users), version=version)
        bundle = load_bundle(path)
        found.append(bundle.blends["fast"])
        assert bundle.ranker is not None
        if own is None:
            assert found[-1].odds is bundle.ranker.builder.blend.odds is None
            continue
        demand = item_demand(np.asarray(users.item_rows), own, bundle.num_item_rows)
        for blend in (found[-1], bundle.ranker.builder.blend):
            assert blend.odds is not None
            assert blend.demand is not None
            expected = (blend.demand.double() @ demand.double().T).float()
            torch.testing.assert_close(blend.odds, expected, rtol=0, atol=0)
        reply = Recommender(replace(bundle, ranker=None)).answer(Request(user_id="user-3"))
        scores.append([item.score for item in reply.items])
    assert found[0].odds is not None
    assert found[1].odds is not None
    assert not torch.equal(found[0].odds, found[1].odds)
    assert scores[0] != scores[1]


def test_events_that_say_no_are_read_from_disk_and_counted_for_no_item(parts, tmp_path) -> None:
    users = parts.users
    negative = np.arange(len(users.item_rows)) % 3 == 0
    said_no = replace(parts, users=replace(users, negative=negative.astype(np.int64)))
    bundle = load_bundle(write_bundle(tmp_path / "bundles", said_no, version="v1"))
    rows, times = np.asarray(users.item_rows)[~negative], np.asarray(users.times)[~negative]
    counts = np.bincount(rows, minlength=bundle.num_item_rows)
    assert bundle.item_counts.tolist() == counts.tolist()
    demand = bundle.users.measure_demand(bundle.num_item_rows)
    assert torch.equal(demand, item_demand(rows, times, bundle.num_item_rows))
    # Histories keep them, so that lists leave their items out.
    assert np.array_equal(bundle.users.item_rows, users.item_rows)


def test_models_that_read_no_types_rank_as_if_events_that_say_no_were_not_there(tmp_path) -> None:
    size = SyntheticSize(history_models=True, event_types=("view", "hide"))
    parts = synthetic_parts(tmp_path / "parts", size)
    users = parts.users
    events = Sequences(
        users.item_rows,
        users.offsets,
        users.offsets[1:],
        users.offsets[1:],
        times=users.times,
        event_types=users.types,
        negative=np.asarray(users.types) == 2,
    )
    found = []
    for version, own in (("v1", events), ("v2", events.positive)):
        negative = None if own.negative is None else own.negative.astype(np.int64)
        arrays = {"item_rows": own.item_rows, "offsets": own.offsets, "negative": negative}
        known = replace(users, times=own.times, types=own.event_types, **arrays)
        path = write_bundle(tmp_path / "bundles", replace(parts, users=known), version=version)
        bundle = load_bundle(path)
        sources = sources_of(bundle, ServingOptions(profile="full"), learned_content=True)
        allowed = np.arange(bundle.num_item_rows) > 0
        query = hydrate(Request(user_id="user-3"), bundle, HOME)
        lists = {name: one.one(query, ItemMask(allowed), 9) for name, one in sources.items()}
        found.append({name: one.item_rows.tolist() for name, one in lists.items() if one})
        # A batch, as in evaluation, has the same lists.
        end = own.offsets[4:5]
        history = own.events_at(
            np.arange(own.offsets[3], end[0]), torch.tensor([0, len(query.seen)])
        )
        batch = JaggedBatch({**query.features.features, **history})
        mask = torch.from_numpy(allowed)[None]
        for name in ("item_to_item", "ease", "content_similarity", "generative", "sequence"):
            ranking = sources[name](batch, mask, 9)
            assert ranking.lists.item_rows[0].tolist() == found[-1][name]
    read, without = found
    differ = {name for name in read if read[name] != without[name]}
    assert differ <= {"sequence", "two_tower"}
    assert "sequence" in differ
