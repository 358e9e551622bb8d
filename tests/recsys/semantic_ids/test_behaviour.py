from __future__ import annotations

import pytest
import torch
from torch import Tensor

from recsys.semantic_ids.behaviour import behaviour_ids
from recsys.semantic_ids.kmeans import KMeansConfig
from recsys.semantic_ids.lifecycle import align, append
from recsys.semantic_ids.rq_kmeans import ResidualKMeansConfig

NUM_GROUPS, OF_EACH = 4, 10
CONFIG = ResidualKMeansConfig(level_sizes=(4, 4, 4))


def two_views() -> tuple[Tensor, Tensor, Tensor]:
    """Make items of four groups, their behaviour, and content of another width that tells them."""
    generator = torch.Generator().manual_seed(0)
    groups = torch.cat([torch.tensor([0]), torch.arange(NUM_GROUPS).repeat(OF_EACH)])
    centres = torch.eye(NUM_GROUPS)[groups]
    behaviour = 5 * centres + 0.1 * torch.randn(len(groups), NUM_GROUPS, generator=generator)
    content = torch.cat([3 * centres, torch.randn(len(groups), 2, generator=generator)], dim=1)
    behaviour[0], content[0] = 0, 0
    return groups, behaviour, content


def test_items_that_are_taken_alike_share_their_first_code() -> None:
    groups, behaviour, content = two_views()
    ids, _ = behaviour_ids(behaviour, content, CONFIG)
    first = [ids.codes[1:, 0][groups[1:] == group].unique().tolist() for group in range(NUM_GROUPS)]
    assert sorted(first) == [[0], [1], [2], [3]]
    assert ids.num_item_rows == len(groups)
    assert ids.codes[0].tolist() == [-1, -1, -1]


def test_a_new_item_gets_the_first_code_of_items_with_content_like_its_own() -> None:
    groups, behaviour, content = two_views()
    made = behaviour_ids(behaviour, content, CONFIG)
    new = torch.zeros(NUM_GROUPS, 6)
    new[:, :NUM_GROUPS] = 3 * torch.eye(NUM_GROUPS)
    rows = len(groups) + torch.arange(NUM_GROUPS)
    grown = append(made.ids, made.quantizer, new, item_rows=rows)
    assert torch.equal(grown.codes[: len(groups)], made.ids.codes)
    for group in range(NUM_GROUPS):
        expected = made.ids.codes[1:, 0][groups[1:] == group][0]
        assert grown.codes[rows[group], 0] == expected


@pytest.mark.parametrize("balanced", [False, True])
def test_a_refit_starts_from_published_codes_whatever_axes_behaviour_has(balanced: bool) -> None:
    generator = torch.Generator().manual_seed(0)
    behaviour = torch.randn(301, 8, generator=generator)
    content = torch.randn(301, 5, generator=generator)
    turn = torch.linalg.qr(torch.randn(8, 8, generator=generator)).Q
    later = behaviour @ turn + 0.05 * torch.randn(301, 8, generator=generator)
    kmeans = KMeansConfig(balanced=balanced)
    config = ResidualKMeansConfig(level_sizes=(16, 16, 16), kmeans=kmeans)
    published = behaviour_ids(behaviour, content, config).ids
    again = ResidualKMeansConfig(level_sizes=(16, 16, 16), kmeans=kmeans, seed=9)
    warm = behaviour_ids(later, content, again, start=published)
    cold = behaviour_ids(later, content, again)
    kept = {
        name: align(made.ids, made.quantizer, published).kept.full
        for name, made in (("warm", warm), ("cold", cold))
    }
    assert kept["warm"] > 0.6 > 0.3 > kept["cold"]
