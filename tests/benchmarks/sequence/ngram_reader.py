"""An encoder of histories that also looks its latest items up in a memory of n-grams.

It is what the generative model may read (``recsys.layers.ngram_memory``), tried in front of the
sequence model's blocks; no configuration has it.
"""

from __future__ import annotations

from torch import Tensor

from recsys.data.batch import Jagged
from recsys.layers.attention.softmax import Layout
from recsys.layers.ngram_memory import NgramMemory
from recsys.models.sequence.encoder import Encoder
from recsys.models.sequence.model import SequenceModel

ORDERS = (1, 2)
NUM_ROWS = 200_000


class EncoderWithMemory(Encoder):
    """Each event takes of what is stored under the items that end there, as its gate says."""

    def _read(self, inputs: Tensor, history: Jagged, times: Tensor | None) -> tuple[Tensor, Layout]:
        state, layout = super()._read(inputs, history, times)
        memory = self.get_submodule("memory")
        assert isinstance(memory, NgramMemory)
        rows = layout.padded(history.values.long() + 1) - 1  # -1 where there is no event
        return layout.flat(memory(layout.padded(state), memory.look_up(rows))), layout


class ModelWithMemory(SequenceModel):
    """The sequence model of one such encoder; its arguments are ``SequenceModel``'s."""

    def __init__(self, config, *arguments) -> None:  # type: ignore[no-untyped-def]
        super().__init__(config, *arguments)
        encoder = EncoderWithMemory(config)
        encoder.memory = NgramMemory(config.embedding_dim, ORDERS, NUM_ROWS, config.backend)
        self.encoder.members[0] = encoder
