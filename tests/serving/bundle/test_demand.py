"""What a bundle's lists know of items' demand is as of its own events."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import torch

from recsys.retrieval.blend.demand import item_demand
from serving.bundle.load import load_bundle
from serving.bundle.write import write_bundle
from serving.recommend import Recommender
from serving.schemas import Request
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
