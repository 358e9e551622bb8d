"""Candidates with known feedback: labels, tasks, what a step draws, and what a number says."""

from pathlib import Path

import numpy as np
import polars as pl
import pytest
import torch

from pipelines.blends import weighted
from pipelines.fit_ranker import listwise_loss
from pipelines.model_inputs import HeldOut, ModelInputs
from pipelines.ranker_config import RankerTrainingConfig
from pipelines.rankers import reordered, served_ranker
from pipelines.ranking_data import (
    LIKE,
    NEXT,
    Drawn,
    draw_places,
    labels_of,
    tasks_of,
    values_of_targets,
)
from recsys.data.batch import Jagged
from recsys.data.dataset import Sequences
from recsys.data.top_k import TopK
from recsys.models.item_tower import ItemCatalogue, TwoTowerInputs
from recsys.retrieval.candidate_numbers import number_names, ranking_candidates

NAN = float("nan")
CONFIG = RankerTrainingConfig(num_hard=2, num_random=3, num_candidates=6)


def test_labels_say_taken_liked_and_unknown() -> None:
    rows = torch.tensor([[5, 7, 9], [5, 7, -1], [1, 2, 3]])
    targets = Jagged.from_lists([[7], [5, 7], [8]])
    values = torch.tensor([5.0, 2.0, NAN, 4.0])
    labels = labels_of(rows, targets, values, (NEXT, LIKE), 4.0)
    assert labels[:, :, 0].nan_to_num(-1).tolist() == [[0, 1, 0], [1, 1, -1], [0, 0, 0]]
    # A low value is no like, one that is not known is not observed.
    assert labels[:, :, 1].nan_to_num(-1).tolist() == [[0, 1, 0], [0, -1, -1], [0, 0, 0]]


@pytest.mark.parametrize(
    ("values", "names", "why"),
    [
        ([NAN, NAN], (NEXT,), "no values"),
        ([5.0, 4.0, NAN], (NEXT,), "2 of 2 .* one class"),
        ([1.0, 3.5], (NEXT,), "0 of 2 .* one class"),
        ([5.0, 1.0, 2.0, 3.0], (NEXT, LIKE), "25%"),
    ],
)
def test_a_task_of_one_class_is_left_out_and_said(
    values: list[float], names: tuple[str, ...], why: str
) -> None:
    found, said = tasks_of(torch.tensor(values), CONFIG)
    assert found == names
    assert torch.tensor([bool(part in said) for part in why.split(" .* ")]).all()


def test_a_step_draws_what_was_taken_the_hard_and_some_of_the_rest_again() -> None:
    labels = torch.zeros(2, 6, 1)
    labels[0, 1] = labels[1, 4] = 1
    labels[1, 5] = NAN
    drawn = [draw_places(labels, CONFIG, torch.Generator().manual_seed(3)) for _ in range(2)]
    assert torch.equal(drawn[0].places, drawn[1].places)
    places, own, log_weights = drawn[0]
    assert places[:, :3].tolist() == [[1, 0, 1], [4, 0, 1]]
    assert int(places[0, 3:].min()) >= 2
    assert int(places[1, 3:].max()) <= 4
    # The taken one stands first; where it is drawn again it counts no second time.
    assert own[:, 0, 0].tolist() == [1, 1]
    again = places[:, 1:] == places[:, :1]
    assert torch.equal(own[:, 1:, 0].isnan(), again)
    # Four and three places behind the hard ones are drawn from.
    torch.testing.assert_close(log_weights[:, 3:].exp()[:, 0], torch.tensor([4 / 3, 1.0]))
    assert log_weights[:, :3].eq(0).all()


def test_the_listwise_loss_is_the_cross_entropy_of_known_candidates() -> None:
    logits = torch.tensor([[1.0, 2.0, 50.0]])
    labels = torch.tensor([[[1.0], [0.0], [NAN]]])
    drawn = Drawn(torch.zeros(1, 3, dtype=torch.int64), labels, torch.zeros(1, 3))
    scores = torch.tensor([[0.0, 0.0, -torch.inf]])
    alone = listwise_loss(logits, drawn, scores, 0.0)
    assert float(alone) == pytest.approx(np.log(1 + np.e), abs=1e-6)
    # The blend holds both equally probable.
    half = listwise_loss(logits, drawn, scores, 0.5)
    believed = (np.log(1 + np.e) + np.log(1 + np.exp(-1))) / 2
    assert float(half) == pytest.approx((np.log(1 + np.e) + believed) / 2, abs=1e-6)


def test_first_places_take_a_new_order_and_the_rest_follows() -> None:
    top = TopK(torch.tensor([[4.0, 3, 2, 1]]), torch.tensor([[10, 20, 30, 40]]))
    found = reordered(top, torch.tensor([[0.1, 0.9, 0.1]]))
    assert found.item_rows.tolist() == [[20, 10, 30, 40]]
    assert found.scores.diff().lt(0).all()
    short = TopK(torch.tensor([[4.0, 3, -torch.inf]]), torch.tensor([[10, 20, -1]]))
    found = reordered(short, torch.tensor([[0.1, 0.9, -torch.inf]]))
    assert found.item_rows.tolist() == [[20, 10, -1]]
    assert found.scores[0, 2] == -torch.inf


def test_a_candidates_numbers_are_what_each_source_says_of_it() -> None:
    blend = weighted({"a": 1.0, "b": 0.5})
    lists = {
        "a": TopK(torch.tensor([[3.0, 1.0]]), torch.tensor([[4, 2]])),
        "b": TopK(torch.tensor([[9.0, 7.0]]), torch.tensor([[2, 6]])),
    }
    counts = torch.tensor([0, 0, 7, 0, 1, 0])
    found = ranking_candidates(blend, lists, torch.tensor([3]), counts, 5)
    assert found.blended.item_rows.tolist() == [[2, 4, 6, -1, -1]]
    numbers = dict(zip(number_names(blend.sources), found.numbers[0].T.tolist(), strict=True))
    assert numbers["item.events"][:3] == pytest.approx([np.log(8), np.log(2), 0])
    assert numbers["blend.lead"][0] == 0
    assert numbers["blend.lead"][1] == pytest.approx(1 - 61 / 62 - 0.5)
    assert numbers["a.lead"] == [0, 2, 0, 0, 0]
    assert numbers["b.lead"] == [2, 0, 0, 0, 0]
    assert numbers["a.reciprocal_rank"] == pytest.approx([61 / 62, 1, 0, 0, 0])
    assert numbers["b.contribution"] == pytest.approx([0.5, 0, 0.5 * 61 / 62, 0, 0])
    # A source without a list has nothing to say.
    alone = ranking_candidates(blend, {"a": lists["a"]}, torch.tensor([3]), counts, 2)
    assert alone.numbers.shape[2] == len(number_names(blend.sources))
    assert alone.numbers[0, :, -4:].eq(0).all()


def test_values_are_those_of_each_users_held_out_events(tmp_path: Path) -> None:
    folder = tmp_path / "events"
    folder.mkdir()
    pl.DataFrame(
        {
            "user_row": [1, 1, 1, 2, 2],
            "item_row": [3, 4, 4, 4, 5],
            "sequence_index": [0, 1, 2, 0, 1],
            "value": [1.0, 2.0, 5.0, 3.0, None],
        }
    ).write_parquet(folder / "part.parquet")
    rows = np.array([3, 4, 4, 5])
    sequences = Sequences(rows, np.array([0, 0, 2, 4]), np.array([0, 1, 3]), np.array([0, 2, 4]))
    inputs = ModelInputs(
        sequences=sequences,
        catalogue=ItemCatalogue.empty(6),
        sizes=TwoTowerInputs(num_item_rows=6),
        user_features={},
    )
    held_out = HeldOut.of(sequences, "validation")
    assert values_of_targets(tmp_path, inputs, held_out).nan_to_num(-1).tolist() == [5, -1]
    assert values_of_targets(tmp_path / "none", inputs, held_out).isnan().all()


def test_a_ranker_that_lost_or_was_never_trained_is_not_released(tmp_path: Path) -> None:
    assert served_ranker(tmp_path) is None
    (tmp_path / "ranker.json").write_text('{"served": false}')
    assert served_ranker(tmp_path) is None
    (tmp_path / "ranker.json").write_text('{"served": true}')
    assert served_ranker(tmp_path) == tmp_path / "ranker"


@pytest.mark.parametrize(
    "wrong", [{"num_candidates": 30}, {"blend_share": 1.0}, {"num_random": 0}, {"like_from": NAN}]
)
def test_settings_that_cannot_work_are_refused(wrong: dict[str, float]) -> None:
    with pytest.raises(ValueError, match="must be"):
        RankerTrainingConfig(**wrong)  # type: ignore[arg-type]
