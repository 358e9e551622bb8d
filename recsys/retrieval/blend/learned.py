"""Merge the scored lists of several sources with weights learned from what users chose.

An item scores the weighted sum of its features in each source (source_features.py); weights are
fitted by a listwise softmax on queries whose next item is known (choice_model.py), which must be
none that the sources were trained on. Kinds of items have weights of their own, shrunk towards
those of all by a number of imagined queries: items that the user has had, if a source of repeats
lists them, and new and old items by bounds. What is known of the items themselves, how much they
are wanted lately or that they are new, can add to that (demand.py).

Axes: B queries, S sources, F features of a source, P = S * F, L items of all lists of a query
together, C candidates kept to fit on, I kinds of items, N item rows, D features of an item's
demand, k list length.
"""

from __future__ import annotations

import copy
import hashlib
import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load, save
from torch import Tensor

from recsys.data.batch import Jagged
from recsys.data.durable import write_durably
from recsys.data.top_k import TopK, no_items
from recsys.models.names import REPEATS
from recsys.retrieval.blend.choices import (
    Choices,
    FittedWeights,
    draw_choices,
    fit_weights,
    kinds_of,
    kinds_of_rows,
    negative_log_likelihood,
    queries_found,
)
from recsys.retrieval.blend.config import FILL, BlendConfig
from recsys.retrieval.blend.demand import (
    DAY,
    DEMAND,
    OWN,
    DemandOfChoices,
    fit_with_demand,
    history_parts,
    with_new_item_odds,
)
from recsys.retrieval.blend.source_features import (
    ABSENT,
    FEATURES,
    Blended,
    MergedCandidates,
    check_lists,
    lead_scales,
    merge_lists,
)

TENSORS = "learned_blend.safetensors"
DESCRIPTION = "learned_blend.json"
FORMAT = 1


def write_blend(directory: Path, tensors: Mapping[str, Tensor], about: dict[str, Any]) -> str:
    """Write both files and return the digest that covers them."""
    payload = save({name: tensor.contiguous() for name, tensor in tensors.items()})
    document = {**about, "format": FORMAT, "tensors_sha256": hashlib.sha256(payload).hexdigest()}
    digest = _digest(document)
    text = json.dumps({**document, "sha256": digest}, indent=2, sort_keys=True) + "\n"
    directory.mkdir(parents=True, exist_ok=True)
    for name, content in ((TENSORS, payload), (DESCRIPTION, text.encode())):
        write_durably(directory / name, content)
    return digest


def read_blend(directory: Path) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """Read what `write_blend` wrote."""
    try:
        document = json.loads((directory / DESCRIPTION).read_bytes())
        payload = (directory / TENSORS).read_bytes()
    except (OSError, UnicodeDecodeError, json.JSONDecodeError, RecursionError) as error:
        raise _refusal(directory, f"a part cannot be read ({error})") from error
    named = document.pop("sha256", None) if isinstance(document, dict) else None
    if named is None or _digest(document) != named:
        raise _refusal(directory, f"{DESCRIPTION} does not match its digest {named}")
    if document.get("format") != FORMAT:
        raise _refusal(
            directory,
            f"its format is {document.get('format')}, this version of the package reads {FORMAT}",
        )
    if hashlib.sha256(payload).hexdigest() != document["tensors_sha256"]:
        raise _refusal(directory, f"{TENSORS} does not match its digest")
    return load(payload), document


def _digest(document: dict[str, Any]) -> str:
    return hashlib.sha256(json.dumps(document, sort_keys=True).encode()).hexdigest()


def _refusal(directory: Path, why: str) -> ValueError:
    return ValueError(f"refused the blend in {directory}: {why}; fetch it again or fit it again")


class LearnedBlend:
    """Weights by source and feature, for all and for each kind of item."""

    def __init__(
        self,
        config: BlendConfig,
        sources: Sequence[str],
        weights: Tensor,
        scales: Tensor,
        loss: float | None = None,
        demand: Tensor | None = None,
        odds: Tensor | None = None,
        own: Tensor | None = None,
    ) -> None:
        """Take ready weights.

        Args:
            weights: [I + 1, S, F] float32; the last is for items of no known kind, the one before
                it, if there are more than kinds by ``item_bounds``, for the user's own items.
            scales: What each source's leads are multiplied by, [S] float32.
            loss: Mean negative log likelihood of the targets that it was fitted on.
            demand: Weights of items' demand, [PARTS, D] float32; None reads none.
            odds: What each item's demand adds by these weights, [PARTS, N] float32; None adds
                nothing (``with_demand``).
            own: Weights and scale by source for queries that the user's own history ranks,
                [S, F + 1] float32; None takes those of all.
        """
        if not (torch.isfinite(weights).all() and torch.isfinite(scales).all()):
            raise ValueError("weights and scales must be finite; fit the blend again")
        self.config, self.sources, self.loss = config, tuple(sources), loss
        self.weights, self.scales, self.demand, self.odds = weights, scales, demand, odds
        self.own = own
        self.lapsed_before = -math.inf
        """Unix second; users whose last event is before it were away for long (``as_of``)."""

    @property
    def repeats_source(self) -> int:
        """Number of the source whose items have weights of their own; -1 if none have."""
        has_kind = len(self.weights) > len(self.config.item_bounds) + 2
        return self.sources.index(REPEATS.name) if has_kind else -1

    def as_of(self, moment: int) -> LearnedBlend:
        """Count absences up to a moment, in unix seconds."""
        moved = copy.copy(self)
        if self.config.absent_days is not None:
            moved.lapsed_before = moment - self.config.absent_days * DAY
        return moved

    def with_own(self, own: LearnedBlend) -> LearnedBlend:
        """Take another blend's weights where the user's own history ranks."""
        rows = torch.cat([own.weights[-1], own.scales[:, None]], 1)
        moved, found = copy.copy(self), dict(zip(own.sources, rows, strict=True))
        none = torch.zeros(len(FEATURES) + 1)
        moved.own = torch.stack([found.get(name, none) for name in self.sources])
        return moved

    def led_by(self, source: str) -> LearnedBlend:
        """Rank what one source lists as it does, and the rest by these weights."""
        moved, odds = copy.copy(self), self.config.new_item_odds
        moved.config = replace(self.config, new_item_odds=None if odds is None else odds**FILL)
        moved.weights = FILL * self.weights
        places = [moved.weights]
        if self.demand is not None:
            moved.demand = FILL * self.demand
        if self.odds is not None:
            moved.odds = FILL * self.odds
        if self.own is not None:
            moved.own = torch.cat([FILL * self.own[:, :-1], self.own[:, -1:]], 1)
            places.append(moved.own)
        for weights in places:
            weights[..., self.sources.index(source), FEATURES.index("reciprocal_rank")] += 1.0
        return moved

    def with_demand(self, demand: Tensor | None) -> LearnedBlend:
        """Read the demand of items as of another moment, [N, D]; None adds nothing."""
        if self.demand is None:
            return self
        moved = copy.copy(self)
        weights = self.demand.double().to("cpu" if demand is None else demand.device)
        moved.odds = None if demand is None else (weights @ demand.double().T).float()
        return moved

    def to(self, device: torch.device | str) -> LearnedBlend:
        """Copy the blend to a device."""
        moved = copy.copy(self)
        for name, value in vars(self).items():
            if isinstance(value, Tensor):
                setattr(moved, name, value.to(device))
        return moved

    @classmethod
    def fit(
        cls,
        lists: Mapping[str, TopK],
        targets: Jagged,
        config: BlendConfig | None = None,
        *,
        history_lengths: Tensor | None = None,
        item_values: Tensor | None = None,
        demand: Tensor | None = None,
    ) -> LearnedBlend:
        """Learn from queries whose next items are known.

        Args:
            lists: Best first by source, each [B, k_s]; as many places as will be requested.
            history_lengths: Events of each query's user, [B]; -1 where not known.
            item_values: What ``config.item_bounds`` cut, by item row, [N]; NaN where not known.
            demand: Of items when the queries were made, [N, D]; None reads none.
        """
        config = config or BlendConfig()
        check_lists(lists)
        found = queries_found(lists, targets)
        scales = lead_scales(
            {name: TopK(*(part[found] for part in top)) for name, top in lists.items()}
        )
        has_repeats = REPEATS.name in lists
        num_kinds = len(config.item_bounds) + 1 + has_repeats
        drawn = draw_choices(
            lists,
            targets,
            scales,
            max_queries=max(1, config.max_queries // num_kinds),
            max_candidates=config.max_candidates,
        )
        if history_lengths is None:
            history_lengths = torch.full((targets.batch_size,), -1)
        of_items = None
        if demand is not None:
            lengths = history_lengths[drawn.queries]
            of_items = DemandOfChoices.of(demand, drawn.item_rows, lengths)
        shared, choices, by_demand = fit_with_demand(
            drawn.choices, of_items, config.l2, non_negative=config.non_negative
        )
        rows = drawn.item_rows
        config, choices = with_new_item_odds(config, choices, shared.weights, rows, item_values)
        kinds = kinds_of_rows(_item_kinds(item_values, config, rows), rows)  # [Q, C]
        if has_repeats:
            place = len(FEATURES) * list(lists).index(REPEATS.name) + FEATURES.index("presence")
            kinds = kinds.masked_fill(choices.features[:, :, place] > 0, num_kinds - 1)
        table, loss = _fit_kinds(config, choices, kinds, shared, num_kinds)
        shape = (len(table), len(lists), len(FEATURES))
        learned = cls(config, tuple(lists), table.view(shape), scales, loss, by_demand)
        return learned.with_demand(demand)

    def blend(
        self,
        lists: Mapping[str, TopK],
        k: int,
        *,
        history_lengths: Tensor | None = None,
        item_values: Tensor | None = None,
        log_odds: Tensor | None = None,
    ) -> Blended:
        """Merge lists; ties by reciprocal rank, then by item_row ascending.

        Args:
            lists: Best first by source, each [B, k_s].
            history_lengths: [B], by which demand counts; None or -1 where not known.
            item_values: By item row, [N]; None, NaN or a row beyond it takes the weights of all.
            log_odds: By item row, [N], added to the score of each listed item, in equal
                parts to the sources that list it.
        """
        merged = merge_lists(lists)
        if unknown := sorted(set(lists) - set(self.sources)):
            raise ValueError(
                f"sources {unknown} have no weights, {sorted(self.sources)} have; leave them out "
                "or fit the blend with them"
            )
        chosen = [self.sources.index(name) for name in lists]
        items = _item_kinds(item_values, self.config, merged.item_rows)
        if bool((self.weights == self.weights[-1]).all()):
            weights = self.weights[None, -1:]  # [1, 1, S, F], equal for all kinds
        else:
            # Kind -1 takes the last, the weights of all.
            kinds = kinds_of_rows(items, merged.item_rows)
            if self.repeats_source in chosen:
                listed = merged.ranks[:, :, chosen.index(self.repeats_source)] != ABSENT
                kinds = kinds.masked_fill(listed, len(self.weights) - 2)
            weights = self.weights[kinds]
        features = merged.features(self.scales[chosen])  # [B, L, S, F]
        contributions = (features * weights[:, :, chosen].double()).sum(3)
        is_own = torch.tensor(False) if history_lengths is None else history_lengths == OWN
        if self.own is not None and bool(is_own.any()):
            own = self.own[chosen]
            by_own = merged.features(own[:, -1]) * own[:, :-1].double()
            contributions = torch.where(is_own[:, None, None], by_own.sum(3), contributions)
        if log_odds is not None or self.odds is not None:
            own = self._odds_of_items(merged, history_lengths, log_odds)
            contributions += merged.in_equal_parts(own)
        return _ranked(merged, contributions, k, tuple(lists))

    def _odds_of_items(
        self, merged: MergedCandidates, history_lengths: Tensor | None, log_odds: Tensor | None
    ) -> Tensor:
        """Sum the log odds of the items themselves, [B, L] float64."""
        total = torch.zeros(merged.item_rows.shape, dtype=torch.float64)
        if log_odds is not None:
            total += merged.of_items(log_odds)
        if self.odds is not None:
            if history_lengths is None:
                history_lengths = torch.full((len(total),), -1)
            by_history = history_parts(history_lengths)
            for part, values in enumerate(self.odds):
                total += by_history[:, part, None] * merged.of_items(values)
        return total

    def save(self, directory: Path) -> str:
        """Write ``learned_blend.safetensors`` and ``.json``; return a digest over both."""
        about = {
            "sources": list(self.sources),
            "features": list(FEATURES),
            "config": asdict(self.config),
            "loss": self.loss,
        }
        tensors = {"weights": self.weights, "scales": self.scales}
        if self.demand is not None:
            about["demand"] = list(DEMAND)
            tensors["demand"] = self.demand
        others = {"odds": self.odds, "own": self.own}
        tensors |= {name: tensor for name, tensor in others.items() if tensor is not None}
        return write_blend(directory, tensors, about)

    @classmethod
    def load(cls, directory: Path) -> LearnedBlend:
        """Read what `save` wrote."""
        tensors, about = read_blend(directory)
        if about["features"] != list(FEATURES):
            raise ValueError(
                f"the blend in {directory} weighs {about['features']}, this version of the "
                f"package {list(FEATURES)}; fit it again"
            )
        if about.get("demand", list(DEMAND)) != list(DEMAND):
            raise ValueError(
                f"the blend in {directory} reads {about['demand']} of items, this version of the "
                f"package {list(DEMAND)}; fit it again"
            )
        weights = tensors["weights"]
        if weights.dim() != 3:
            raise ValueError(
                f"the blend in {directory} has weights by users' kinds, which this version of the "
                "package does not read; fit it again"
            )
        kept = about["config"].items()
        settings: dict[str, Any] = {k: tuple(v) if isinstance(v, list) else v for k, v in kept}
        return cls(
            BlendConfig(**settings),
            about["sources"],
            weights,
            tensors["scales"],
            about.get("loss"),
            tensors.get("demand"),
            tensors.get("odds"),
            tensors.get("own"),
        )


def _fit_kinds(
    config: BlendConfig, choices: Choices, kinds: Tensor, shared: FittedWeights, num_kinds: int
) -> tuple[Tensor, float]:
    """Fit each kind's weights near those of all.

    How near is measured by what a choice tells on average, so it does not depend on the scale
    of a feature.
    """
    table = shared.weights.expand(num_kinds + 1, -1).clone()
    if num_kinds == 1 or math.isinf(config.shrinkage_queries):
        return table, shared.loss
    width = len(shared.weights) * num_kinds
    choices = choices.by_kind(kinds, num_kinds, shared.weights)
    prior = shared.weights.repeat(num_kinds)
    at_prior = negative_log_likelihood(choices, prior)
    precision = config.l2 * torch.eye(width, dtype=torch.float64)
    precision += config.shrinkage_queries / len(choices.features) * at_prior.curvature
    fitted = fit_weights(choices, prior, precision, non_negative=config.non_negative)
    table[:num_kinds] = fitted.weights.view(num_kinds, -1)
    return table, fitted.loss


def _item_kinds(item_values: Tensor | None, config: BlendConfig, item_rows: Tensor) -> Tensor:
    """Kind of each item row, [N]."""
    highest = int(item_rows.max()) if item_rows.numel() else 0
    num_rows = max(0, highest) + 1 if item_values is None else len(item_values)
    return kinds_of(item_values, config.item_bounds, num_rows)


def _ranked(
    merged: MergedCandidates, contributions: Tensor, k: int, sources: tuple[str, ...]
) -> Blended:
    """Order candidates by the sum of contributions [B, L, S] float64, equal ones as they are."""
    # Added smallest first: equal sets of contributions give equal sums whatever source each is of.
    scores = contributions.sort(dim=2).values.sum(2).masked_fill(merged.item_rows < 1, -torch.inf)
    scores, order = scores.sort(dim=1, descending=True, stable=True)
    kept = min(k, scores.shape[1])
    best = merged.take(order[:, :kept])
    wide = order[:, :kept, None].expand(-1, -1, len(sources))
    blended = no_items(len(scores), k, scores.device)
    ranks = torch.full((len(scores), k, len(sources)), ABSENT, device=scores.device)
    parts = torch.zeros(len(scores), k, len(sources), device=scores.device)
    blended.scores[:, :kept] = scores[:, :kept].float()
    blended.item_rows[:, :kept] = best.item_rows
    ranks[:, :kept], parts[:, :kept] = best.ranks, contributions.gather(1, wide).float()
    return Blended(*blended, ranks, sources, parts)
