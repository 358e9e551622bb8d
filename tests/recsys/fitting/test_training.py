from dataclasses import replace

import pytest
import torch

from recsys.fitting.queries import ModelInputs
from recsys.fitting.spec import Refit, TrainingRun, load_trained
from recsys.fitting.two_tower import fit_two_tower, untrained_two_tower
from recsys.models.configs import TwoTowerConfig
from recsys.models.item_tower import FeatureSizes, ItemCatalogue
from recsys.training.optim import ScheduleConfig
from recsys.training.passes import TrainingConfig
from tests.recsys.testing.synthetic import markov_world, sequences

CONFIG = TwoTowerConfig(embedding_dim=8, hidden_dim=8, max_history=4, backend="torch")
TRAINING = TrainingConfig(
    batch_size=32, refit_epochs=1.0, schedule=ScheduleConfig(learning_rate=1e-2)
)


@pytest.fixture(scope="module")
def inputs() -> ModelInputs:
    world = markov_world(num_users=20, num_items=12, events_per_user=8)
    num_rows = len(world.catalogue.item_ids) + 1
    return ModelInputs(
        sequences=sequences(world),
        catalogue=ItemCatalogue.empty(num_rows),
        sizes=FeatureSizes(num_item_rows=num_rows),
    )


def test_a_continued_refit_starts_at_the_trained_weights_and_counts_all_events(
    inputs: ModelInputs,
) -> None:
    trained = untrained_two_tower(inputs, CONFIG, TrainingRun(seed=3)).state_dict()
    # So small a rate moves nothing that could be told from rounding.
    still = replace(TRAINING, refit_rate=1e-12)
    refit = Refit(best_step=10, num_examples=100, weights=trained)
    model, result, num_examples = fit_two_tower(
        inputs, CONFIG, still, TrainingRun(seed=0), refit, split="all"
    )
    assert result.num_steps == num_examples // 32
    for name, value in model.state_dict().items():
        if name.endswith("item_counts"):
            assert value.sum() > trained[name].sum()
        else:
            torch.testing.assert_close(value, trained[name], rtol=0, atol=1e-9)


def test_a_refit_takes_its_share_of_the_chosen_passes(inputs: ModelInputs) -> None:
    refit = Refit(best_step=40, num_examples=100)
    whole, half = (
        fit_two_tower(inputs, CONFIG, TRAINING, TrainingRun(seed=0), one, split="all").result
        for one in (refit, replace(refit, share=0.5))
    )
    assert whole.num_steps == pytest.approx(2 * half.num_steps, abs=1)


def test_weights_of_another_model_are_refused(inputs: ModelInputs) -> None:
    model = untrained_two_tower(inputs, CONFIG, TrainingRun(seed=0))
    with pytest.raises(ValueError, match=r"the trained weights lack .*output_norm"):
        load_trained(model, {"other": torch.zeros(1)})
