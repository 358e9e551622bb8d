"""Decoding of semantic IDs code by code, between models and a beam search.

Axes: B requests, W beams of a request, L levels, K codes of a level.
"""

from __future__ import annotations

from typing import Generic, Literal, NamedTuple, Protocol, TypeVar

from torch import Tensor

StateT = TypeVar("StateT")
Context_contra = TypeVar("Context_contra", contravariant=True)


class Beams(NamedTuple, Generic[StateT]):
    """Which prefixes go on to the next level."""

    level: int
    """Codes taken so far, the level to be scored: 1 .. L - 1."""
    parents: Tensor
    """Which beam of the level before each one continues, [B, W] int64."""
    codes: Tensor
    """The code that each one took there, [B, W] int64; in range also for beams that are dead."""
    state: StateT
    """State of the step before, its beams in the order of that step."""


class Decoded(NamedTuple, Generic[StateT]):
    """Prediction of the next code."""

    logits: Tensor
    """Logits or log-probabilities, [B, W, K]; minus infinity is never chosen."""
    state: StateT
    """The model's own memory of its beams (their keys and values), handed to the next step."""
    softmax_over: Literal["level", "catalogue"] = "level"
    """Support of the softmax of a step: all codes of the level, or those that
    lead to some item of the catalogue, whatever a request may be shown."""


class DecodeStep(Protocol[Context_contra, StateT]):
    """Score the next code of every beam.

    The context is what a request's beams share, encoded before the search, once: keys and values
    of the history for a decoder that attends to it, [B, ...]. The state is what differs by beam.
    A step with ``beams`` None scores the first level: [B, 1, K] of the one empty prefix. Later
    ones pick the state of ``beams.parents``, append ``beams.codes``, and score ``beams.level``.
    """

    def __call__(
        self, context: Context_contra, beams: Beams[StateT] | None, /
    ) -> Decoded[StateT]: ...
