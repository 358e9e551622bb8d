import pytest
import torch
from torch import Tensor

from recsys.retrieval.blend.choices import Choices, fit_weights

pytestmark = pytest.mark.numerics


def chosen_by(
    weights: Tensor, num_queries: int, num_candidates: int = 12, seed: int = 0
) -> Choices:
    """Choices of users who follow the weights, [P]."""
    generator = torch.Generator().manual_seed(seed)
    features = torch.randn(num_queries, num_candidates, len(weights), generator=generator)
    place = torch.multinomial((features @ weights).softmax(1), 1, generator=generator)
    chosen = torch.zeros(num_queries, num_candidates).scatter_(1, place, 1.0)
    return Choices(features, torch.zeros(num_queries, num_candidates), chosen)


def penalised_slowly(choices: Choices, prior: Tensor, precision: Tensor, weights: Tensor) -> Tensor:
    logits = choices.features.double() @ weights + choices.offsets.double()
    log_shares = logits.log_softmax(1).masked_fill(choices.chosen == 0, 0)
    apart = weights - prior
    return apart @ precision @ apart / 2 - (choices.chosen.double() * log_shares).sum()


@pytest.mark.parametrize("non_negative", [False, True])
def test_is_the_minimum_that_slow_descent_finds(non_negative):
    choices = chosen_by(torch.tensor([1.0, -1.0, 0.3]), 500)
    prior = torch.tensor([0.0, 0.5, 0.0], dtype=torch.float64)
    precision = 20 * torch.eye(3, dtype=torch.float64) + 5
    fitted = fit_weights(choices, prior, precision, non_negative=non_negative)
    weights = prior.clone().requires_grad_()
    for _ in range(400):
        (slope,) = torch.autograd.grad(
            penalised_slowly(choices, prior, precision, weights), weights
        )
        with torch.no_grad():
            weights -= 1e-3 * slope
            if non_negative:
                weights.clamp_(min=0)
    torch.testing.assert_close(fitted.weights.double(), weights.detach(), atol=2e-3, rtol=0)
    assert (float(fitted.weights[1]) == 0) is non_negative


def test_perfectly_predicted_choices_keep_weights_finite():
    features = torch.zeros(30, 4, 1)
    features[:, 0] = 1000
    chosen = torch.zeros(30, 4)
    chosen[:, 0] = 1
    fitted = fit_weights(
        Choices(features, torch.zeros(30, 4), chosen), torch.zeros(1), torch.eye(1)
    )
    assert 0 < float(fitted.weights) < 1
    assert fitted.loss < 1e-3
