import math

import pytest
import torch

from tests.benchmarks.reproduction.power_law import fit_power_law


def ladder() -> tuple[torch.Tensor, torch.Tensor]:
    sizes = torch.tensor([1e4, 4e4, 1.6e5, 6.4e5], dtype=torch.float64)
    amounts = torch.tensor([2e4, 4e4, 8e4, 1.6e5], dtype=torch.float64)
    grid = torch.cartesian_prod(sizes, amounts)
    return grid[:, 0], grid[:, 1]


def planted(sizes, amounts):
    return 4.0 + 60.0 * sizes**-0.45 + 900.0 * amounts**-0.6


def test_planted_numbers_come_back():
    sizes, amounts = ladder()
    law = fit_power_law(sizes, amounts, planted(sizes, amounts))
    assert law.floor == pytest.approx(4.0, rel=0.01)
    assert law.size_power == pytest.approx(0.45, rel=0.05)
    assert law.data_power == pytest.approx(0.6, rel=0.03)
    assert law.log_error < 1e-4
    assert law.explained > 0.9999
    assert law.num_runs == 16


def test_larger_runs_are_foretold_from_smaller_ones():
    sizes, amounts = ladder()
    noise = 1 + 0.002 * torch.randn(16, generator=torch.Generator().manual_seed(1))
    law = fit_power_law(sizes, amounts, planted(sizes, amounts) * noise)
    beyond = torch.tensor([2.56e6]), torch.tensor([6.4e5])
    foretold, seen = float(law.predict(*beyond)), float(planted(*beyond))
    assert foretold == pytest.approx(seen, rel=0.02)


def test_one_odd_run_does_not_bend_the_curve():
    sizes, amounts = ladder()
    losses = planted(sizes, amounts)
    losses[5] *= 1.5
    law = fit_power_law(sizes, amounts, losses)
    kept = torch.arange(16) != 5
    error = (law.predict(sizes, amounts) / planted(sizes, amounts)).log()[kept].abs()
    assert float(error.max()) < 0.01


def test_a_size_that_changes_nothing_is_told_apart_from_data_that_does():
    sizes, amounts = ladder()
    law = fit_power_law(sizes, amounts, 4.0 + 900.0 * amounts**-0.6)
    moved = law.predict(sizes, amounts)
    by_size = moved[amounts == 2e4]
    assert float(by_size.max() / by_size.min()) < 1.005
    assert law.log_error < 1e-3


@pytest.mark.parametrize(
    ("sizes", "losses", "message"),
    [
        ([1, 2, 3], [1, 1, 1], "6 runs or more"),
        ([1, 2, 3, 4, 5, 6], [1, 1, 1, 1, 1, math.nan], "losses must be positive"),
        ([1, 2, 3, 4, 5, -6], [1] * 6, "sizes must be positive"),
        ([7] * 6, [1] * 6, "all runs have sizes 7"),
    ],
)
def test_runs_that_cannot_be_fitted_are_refused(sizes, losses, message):
    amounts = torch.arange(1.0, len(sizes) + 1)
    with pytest.raises(ValueError, match=message):
        fit_power_law(torch.tensor(sizes), amounts, torch.tensor(losses))
