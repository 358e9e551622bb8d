"""How a loss falls with the size of a model and of its data: L(N, D) = E + A N^-alpha + B D^-beta.

The form and the way to fit it are of Hoffmann et al. 2022 (arXiv:2203.15556, approach 3): the
squared error of the logarithm, softened by Huber so that one odd run does not bend the curve, from
many starts. All five numbers stay positive, because they are fitted as logarithms.

Axes: R runs, S starts.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass

import torch
from torch import Tensor

MIN_RUNS = 6
"""One more than there are numbers to fit."""
HUBER_DELTA = 1e-3
"""Of the logarithm: errors beyond a tenth of a percent count by size, not by square."""
NUM_STEPS = 300


@dataclass(frozen=True, kw_only=True)
class PowerLaw:
    """What was fitted, and how well."""

    floor: float
    """E: what no size and no data take away."""
    size_factor: float
    size_power: float
    """alpha."""
    data_factor: float
    data_power: float
    """beta."""
    log_error: float
    """Root mean square of log(predicted / seen) over the runs."""
    explained: float
    """Share of the variance of log losses that the law explains."""
    num_runs: int

    def predict(self, sizes: Tensor, amounts: Tensor) -> Tensor:
        """Predict losses, [R] float64, of models of ``sizes`` on ``amounts`` of data."""
        size_part = self.size_factor * sizes.double() ** -self.size_power
        return self.floor + size_part + self.data_factor * amounts.double() ** -self.data_power


def fit_power_law(sizes: Tensor, amounts: Tensor, losses: Tensor) -> PowerLaw:
    """Fit the law to runs.

    Args:
        sizes: N of each run, [R] > 0, such as weights outside the tables.
        amounts: D of each run, [R] > 0, such as training events.
        losses: L of each run, [R] > 0; what is better when higher goes in as 1 - value.

    Raises:
        ValueError: Too few runs, a number that is not positive, or only one size or amount.
    """
    sizes, amounts, losses = (part.double() for part in (sizes, amounts, losses))
    _check(sizes, amounts, losses)
    # Measured against the middle of the runs: factors far outside the runs would be huge.
    middle = [part.log().mean() for part in (sizes, amounts)]
    logs = [part.log() - centre for part, centre in zip((sizes, amounts), middle, strict=True)]
    target = losses.log()
    guesses = itertools.product(
        (-3.0, -1.0, 0.0), (-3.0, -1.0), (-3.0, -1.0), (0.2, 0.6), (0.2, 0.6)
    )
    starts = torch.tensor(list(guesses), dtype=torch.float64)
    starts[:, :3] += target.mean()
    starts[:, 3:] = starts[:, 3:].log()
    fitted, values = _descend(starts, logs[0], logs[1], target)
    best = fitted[values.argmin()]
    error = _log_predictions(best[None], logs[0], logs[1])[0] - target
    powers = best[3:].exp()
    spread = (target - target.mean()).square().sum().clamp(min=1e-30)
    return PowerLaw(
        floor=float(best[0].exp()),
        size_factor=float((best[1] + powers[0] * middle[0]).exp()),
        size_power=float(powers[0]),
        data_factor=float((best[2] + powers[1] * middle[1]).exp()),
        data_power=float(powers[1]),
        log_error=float(error.square().mean().sqrt()),
        explained=float(1 - error.square().sum() / spread),
        num_runs=len(losses),
    )


def _log_predictions(numbers: Tensor, log_sizes: Tensor, log_amounts: Tensor) -> Tensor:
    """Predict log losses, numbers [S, 5] -> [S, R]: log of E, A, B, alpha, beta."""
    floor, size, data, alpha, beta = numbers[:, :, None].unbind(1)
    parts = torch.stack(
        [
            floor.expand(-1, len(log_sizes)),
            size - alpha.exp() * log_sizes,
            data - beta.exp() * log_amounts,
        ]
    )
    return parts.logsumexp(0)


def _descend(
    starts: Tensor, log_sizes: Tensor, log_amounts: Tensor, target: Tensor
) -> tuple[Tensor, Tensor]:
    """Walk from every start to its minimum; return where each ended and the loss there."""
    numbers = starts.clone().requires_grad_(True)

    def losses() -> Tensor:
        error = _log_predictions(numbers, log_sizes, log_amounts) - target
        huber = torch.nn.functional.huber_loss(
            error, torch.zeros_like(error), reduction="none", delta=HUBER_DELTA
        )
        # Powers of thousands or thousandths explain nothing; this keeps flat starts in reach.
        return huber.sum(1) / HUBER_DELTA + 1e-6 * numbers[:, 3:].square().sum(1)

    optimizer = torch.optim.LBFGS(
        [numbers], max_iter=NUM_STEPS, history_size=20, line_search_fn="strong_wolfe"
    )

    def closure() -> Tensor:
        optimizer.zero_grad()
        total = losses().sum()
        total.backward()  # type: ignore[no-untyped-call]
        return total

    for _ in range(4):
        optimizer.step(closure)  # type: ignore[no-untyped-call]
    with torch.no_grad():
        return numbers.detach(), losses().nan_to_num(nan=torch.inf)


def _check(sizes: Tensor, amounts: Tensor, losses: Tensor) -> None:
    if not len(sizes) == len(amounts) == len(losses) >= MIN_RUNS:
        raise ValueError(
            f"the law has 5 numbers, so it needs {MIN_RUNS} runs or more, each with size, amount "
            f"and loss; got {len(sizes)}, {len(amounts)} and {len(losses)}"
        )
    for name, values in (("sizes", sizes), ("amounts", amounts), ("losses", losses)):
        if not (torch.isfinite(values) & (values > 0)).all():
            raise ValueError(f"{name} must be positive and finite, got {values.tolist()}")
    for name, values in (("sizes", sizes), ("amounts", amounts)):
        if len(torch.unique(values)) < 2:
            raise ValueError(
                f"all runs have {name} {float(values[0]):g}; vary them to see what they do"
            )
