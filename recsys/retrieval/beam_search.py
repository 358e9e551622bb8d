"""Beam search over semantic IDs in which only items of the catalogue can be generated.

At each level a model scores the next code of every beam, the trie says which codes lead to an item
that the request may show, and the best prefixes are kept. An item's score is the sum of its codes'
log-probabilities, each over all codes of its level or, where the model was trained so, over those
that lead to an item of the catalogue; either way it does not depend on what else is allowed, and
with a beam as wide as there are prefixes the result is that of scoring every item. Where a beam has
to choose among equal scores, prefixes go by their codes and items by their row, ascending: lists
do not depend on a kernel. Constrained decoding by tables: STATIC, arXiv:2602.22647.

The model is anything that decodes a step, see ``DecodeStep``. Nothing in a search has a shape that
depends on data, so a GPU is never waited for.

Axes: B requests, W beams of a request, L levels, K codes of a level, C candidates (W times K),
N item rows, k list length.
"""

from __future__ import annotations

from typing import Generic, TypeVar

import torch
from torch import Tensor
from torch.nn import functional

from recsys.data.top_k import NO_ROW, TopK, no_items
from recsys.layers.codes.decoder import Beams, Decoded, DecodeStep
from recsys.semantic_ids.trie import Restriction, Trie

__all__ = ["BeamSearch", "Beams", "DecodeStep", "Decoded", "check_scores"]

StateT = TypeVar("StateT")
ContextT = TypeVar("ContextT")
LARGEST = torch.iinfo(torch.int32).max


class BeamSearch(Generic[ContextT, StateT]):
    """Finds the items with the most probable semantic IDs; holds no state of a request."""

    def __init__(
        self, decode_step: DecodeStep[ContextT, StateT], trie: Trie, *, beam_width: int
    ) -> None:
        """Pair a model with a trie of its semantic IDs, on its device."""
        self.decode_step, self.trie, self.beam_width = decode_step, trie, beam_width
        self._first_codes = trie.mask(trie.start(1), 0)  # [1, K]

    def lists(self, context: ContextT, k: int, restriction: Restriction | None = None) -> TopK:
        """Rank the k best items of each request, never waiting for the device, NaN unchecked."""
        trie, last = self.trie, self.trie.num_levels - 1
        decoded = self.decode_step(context, None)
        batch_size = len(decoded.logits)
        scores = torch.zeros(batch_size, 1, device=trie.device)  # [B, W]
        states = trie.start(batch_size)[:, None]  # [B, W]
        for level, size in enumerate(trie.level_sizes):
            candidates = self._candidates(decoded, scores, states, level, restriction)  # [B, C]
            if level == last:
                break
            width = min(self.beam_width, candidates.shape[1], max(1, trie.num_items))
            chosen = _first_in_order(candidates, width)  # [B, W]
            parents, codes = chosen // size, chosen % size
            scores = candidates.gather(1, chosen)
            states = states.gather(1, parents).view(-1)
            states = trie.step(states, codes.view(-1), level).view_as(codes)
            decoded = self.decode_step(context, Beams(level + 1, parents, codes, decoded.state))
        return self._rank_items(candidates, states, k)

    def _candidates(
        self,
        decoded: Decoded[StateT],
        scores: Tensor,
        states: Tensor,
        level: int,
        restriction: Restriction | None,
    ) -> Tensor:
        """Score every code after every beam, -inf where no allowed item follows, [B, C]."""
        logits = decoded.logits
        live = self._live(states, level, restriction)
        known = live if restriction is None else self._live(states, level, None)
        logits = logits.float().masked_fill(~known, -torch.inf)
        # Behind a dead beam no code is live, so its NaN sums are masked.
        sums = functional.log_softmax(logits, 2).add_(scores[:, :, None])
        return sums.masked_fill_(~live, -torch.inf).flatten(1)

    def _live(self, states: Tensor, level: int, restriction: Restriction | None) -> Tensor:
        """Return which codes may follow states [B, W]: [B or 1, W or 1, K] bool."""
        if level == 0:
            return (self._first_codes if restriction is None else restriction.head[0])[:, None]
        requests = None
        if restriction is not None and len(states) > 1:
            requests = torch.arange(len(states), device=states.device)
            requests = requests.repeat_interleave(states.shape[1])
        mask = self.trie.mask(states.view(-1), level, restriction, requests)
        return mask.view(*states.shape, self.trie.level_sizes[level])

    def _rank_items(self, candidates: Tensor, states: Tensor, k: int) -> TopK:
        """Rank the items that are one code away, candidates [B, C] after states [B, W]."""
        found = no_items(len(candidates), k, candidates.device)
        taken = min(k, candidates.shape[1])
        columns = _surely_best(candidates, taken)  # [B, c]
        last, size = self.trie.num_levels - 1, self.trie.level_sizes[-1]
        before = states.gather(1, columns // size)
        leaves = self.trie.step(before.view(-1), (columns % size).view(-1), last)
        rows = self.trie.item_rows(leaves).view_as(columns)
        scores = candidates.gather(1, columns)
        best = _keys(scores, rows).topk(taken, dim=1).indices
        scores, rows = scores.gather(1, best), rows.gather(1, best)
        found.scores[:, :taken] = scores
        found.item_rows[:, :taken] = rows.masked_fill_(scores == -torch.inf, NO_ROW)
        return found


def check_scores(found: TopK) -> TopK:
    """Refuse lists with NaN, which ranks first in a beam."""
    is_nan = found.scores.isnan().any(1)
    if is_nan.any():
        raise ValueError(
            f"the model's logits for request {int(is_nan.nonzero()[0])} hold NaN; check its "
            "weights and inputs for NaN and infinity"
        )
    return found


def _keys(scores: Tensor, order: Tensor) -> Tensor:
    """Make one integer of a score and what decides among equals, the lesser first, [B, C] int64.

    Integers have a total order, so that no kernel decides. NaN is above everything.
    """
    # Adding 0 makes one zero of two. Read as integers, negative floats are in reverse.
    bits = (scores + 0.0).view(torch.int32)
    bits = torch.where(bits < 0, bits ^ LARGEST, bits).masked_fill_(scores.isnan(), LARGEST)
    return bits.long().bitwise_left_shift_(32).sub_(order)


def _first_in_order(candidates: Tensor, width: int) -> Tensor:
    """Pick the columns of the best of [B, C], equals by their column; ascending, [B, width].

    Ascending columns keep beams in the order of their codes, so columns go by prefix.
    """
    columns = _surely_best(candidates, width)
    if columns.shape[1] > width:
        columns = _keys(candidates, columns).topk(width, dim=1, sorted=False).indices
    return columns.sort(dim=1).values


def _surely_best(candidates: Tensor, taken: int) -> Tensor:
    """Narrow the columns of [B, C] to some that hold the best ``taken``, however ties are settled.

    On a CPU those are the best themselves, unless the last of them has an equal that is not;
    looking at keys of all takes four times as long. On a GPU that check needs a device sync.
    """
    batch_size, num_columns = candidates.shape
    if candidates.device.type == "cpu" and taken < num_columns:
        values, columns = candidates.topk(taken + 1, dim=1)
        last, beyond = values[:, -2], values[:, -1]
        if not bool(((last == beyond) & (last > -torch.inf)).any()):
            return columns[:, :taken]
    return torch.arange(num_columns, device=candidates.device).expand(batch_size, -1)
