import json

import pytest
import torch

from recsys.semantic_ids.collisions import assign_semantic_ids
from recsys.semantic_ids.kmeans import Centres
from recsys.semantic_ids.quality import (
    code_counts,
    prefix_counts,
    quality_report,
)
from recsys.semantic_ids.rq_kmeans import ResidualKMeans

pytestmark = pytest.mark.numerics


def square_world() -> tuple[ResidualKMeans, torch.Tensor]:
    """Return 2 x 2 codes and items: two in each of three cells, row 0 padding."""
    quantizer = ResidualKMeans(
        [
            Centres(torch.tensor([[10.0, 0.0], [0.0, 10.0]]), torch.zeros(2)),
            Centres(torch.tensor([[0.0, 1.0], [0.0, -1.0]]), torch.zeros(2)),
        ]
    )
    items = quantizer.decode(torch.tensor([[0, 0], [0, 0], [0, 1], [1, 0]]))
    return quantizer, torch.cat([torch.zeros(1, 2), items])


def test_the_report_of_four_items_worked_out_by_hand() -> None:
    quantizer, vectors = square_world()
    ids = assign_semantic_ids(quantizer, vectors)
    categories = torch.tensor([0, 1, 1, 2, 3])
    report = quality_report(quantizer, vectors, ids, categories=categories)
    first, second = report.levels
    assert (report.num_items, report.collisions_before, report.largest_group) == (4, 1, 2)
    assert report.groups_before == ((1, 2), (2, 1))
    assert report.collisions_after == 0
    # One of the two items of the full ID gave way.
    assert report.moved == (0.25, 0.25)
    assert report.reconstruction_error == pytest.approx(0, abs=1e-9)
    assert (first.num_used, first.utilisation) == (2, 1)
    assert first.entropy_bits == pytest.approx(0.8113, abs=1e-4)
    assert first.perplexity == pytest.approx(2**0.811278, abs=1e-4)
    # Of the three items of prefix 0 two have category 1; prefix 1 is pure.
    assert (first.purity, second.purity) == (0.75, 1.0)
    assert (first.num_prefixes, second.num_prefixes) == (2, 3)
    # Three of six pairs share the first code, one of six both.
    assert first.agreement_by_chance == pytest.approx(0.5)
    assert second.agreement_by_chance == pytest.approx(1 / 6)
    # All others are neighbours here: of each of three items two of three share the first code.
    assert first.neighbour_agreement == pytest.approx(0.5)
    json.dumps(report.as_json())


def test_ids_of_another_quantizer_are_refused_with_both_named() -> None:
    quantizer, vectors = square_world()
    ids = assign_semantic_ids(quantizer, vectors)
    other = quantizer.relabelled([torch.tensor([1, 0]), torch.tensor([0, 1])])
    with pytest.raises(ValueError, match=f"{quantizer.digest[:12]}, this is {other.digest[:12]}"):
        quality_report(other, vectors, ids)


def test_items_are_counted_by_code_and_by_prefix() -> None:
    codes = torch.tensor([[0, 0], [0, 1], [0, 0], [2, 1]])
    first, second = code_counts(codes, (3, 2))
    assert (first.tolist(), second.tolist()) == ([3, 0, 1], [2, 2])
    assert prefix_counts(codes, (3, 2)).tolist() == [[3, 2], [3, 1], [3, 2], [1, 1]]
