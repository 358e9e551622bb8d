"""Query vectors of a sequence model on a GPU, each batch a replay of one CUDA graph.

Called from Python a small batch takes as long as its launches do, however few its rows. A graph has
one size, so smaller batches are filled up: sequences that nobody asked for own the events that
nobody has. All batches then run the same kernels of the same shapes, so that a query's vector has
the same bits in any company.

Axes: B queries, Q queries of a graph, E events of a graph, D width.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor
from torch.nn import functional

from recsys.data.batch import Jagged, JaggedBatch, latest
from recsys.models.adapted.model import AdaptedRetriever, _of_event
from recsys.models.sequence.model import SequenceModel


def encoded(
    adapted: AdaptedRetriever, history: Jagged, numbers: Tensor | int, *, keep_base: bool
) -> Tensor:
    """Encode histories of a sequence model without times as unit vectors, [B, D].

    Args:
        history: At most max_length events of each query, all of them items.
        numbers: Of each query's adapter, [B], or of all.
        keep_base: As ``LoraBank.choose`` takes it.
    """
    assert isinstance(adapted.model, SequenceModel)
    encoder = adapted.model.encoder
    if isinstance(numbers, int):
        inputs = adapted._inputs[adapted._set_of[numbers]][history.values]
        with adapted.bank.choose_one(numbers):
            return encoder.last(encoder(inputs, history, None), history)
    of_event = _of_event(history, numbers)
    with adapted.bank.choose(of_event, keep_base=keep_base):
        inputs = adapted._inputs_of(history, of_event)
        return encoder.last(encoder(inputs, history, None), history)


class CapturedQueries:
    """Encodes batches up to one size; it is not for two threads at once.

    The graph holds weights, adapters and item vectors as they are: capture again after a change.
    """

    def __init__(
        self,
        adapted: AdaptedRetriever,
        *,
        num_queries: int,
        num_events: int,
        domain: str | None = None,
        mixed: bool = True,
        keep_base: bool = False,
    ) -> None:
        """Capture a forward.

        Args:
            adapted: A sequence model with its adapters, on a GPU.
            num_queries: Most queries of a batch.
            num_events: Most events of a batch that are read.
            domain: Of all queries where batches are not ``mixed``: its adapter's merged weights, or
                the base's, cost less than a choice for each row.
            keep_base: As ``LoraBank.choose`` takes it.

        Raises:
            ValueError: The model is no sequence model without times on a GPU, or there is nothing
                to capture.
        """
        model = adapted.model
        if not isinstance(model, SequenceModel) or not model.all_item_inputs().is_cuda:
            raise ValueError(
                f"a sequence model on a CUDA device can be captured, got a {type(model).__name__} "
                f"on {model.all_item_inputs().device}; call AdaptedRetriever.query_vectors"
            )
        if model.config.time_buckets or model.config.calendar_days:
            raise ValueError("a model that reads times cannot be captured")
        if num_queries < 1 or num_events < 1:
            raise ValueError(
                f"num_queries and num_events must be >= 1, got {num_queries} and {num_events}"
            )
        self._adapted, self._model = adapted, model
        self._mixed, self._number = mixed, adapted.numbers([domain])[0]
        self._num_queries, self._keep_base = num_queries, keep_base
        length, device = model.config.max_length, model.all_item_inputs().device
        # Sequences that own what is left over end where, counted from the end on, they have to.
        spare = torch.arange(-(-num_events // length) - 1, -1, -1)
        self._ends = functional.pad(num_events - length * spare, (num_queries + 1, 0))
        sizes = [num_events, len(self._ends), len(self._ends) - 1]
        # Laid out alike on host and device: one copy brings all of a batch.
        self._host = torch.zeros(sum(sizes), dtype=torch.int64, pin_memory=True)
        self._given = torch.zeros_like(self._host, device=device)
        self._host_parts = torch.split(self._host, sizes)
        self._parts = torch.split(self._given, sizes)
        self._copied = torch.cuda.Event()  # type: ignore[no-untyped-call]
        self._fill(Jagged.from_lists([[]]), [0])
        self._capture(device)

    def _fill(self, history: Jagged, numbers: list[int]) -> None:
        """Copy a batch to where the graph reads it."""
        values, offsets, adapters = self._host_parts
        size, events = history.batch_size, len(history.values)
        # The copy before may still read what is written here.
        self._copied.synchronize()
        values[:events] = history.values
        offsets[: size + 1] = history.offsets
        torch.clamp(self._ends[size + 1 :], min=events, out=offsets[size + 1 :])
        adapters[:size] = torch.tensor(numbers)
        self._given.copy_(self._host, non_blocking=True)
        self._copied.record()

    def _capture(self, device: torch.device) -> None:
        here = torch.cuda.current_stream(device)
        beside: torch.cuda.Stream = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
        with torch.no_grad(), torch.cuda.device(device):
            # Libraries set themselves up in the first runs, which a capture does not allow.
            beside.wait_stream(here)
            with torch.cuda.stream(beside):
                for _ in range(2):
                    self._forward()
            here.wait_stream(beside)
            self._graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(self._graph):
                self._vectors = self._forward()

    def _forward(self) -> Tensor:
        values, offsets, adapters = self._parts
        inside = (values >= 0) & (values < self._model.num_item_rows)
        history = Jagged(torch.where(inside, values, 0), offsets)
        numbers = adapters if self._mixed else self._number
        return encoded(self._adapted, history, numbers, keep_base=self._keep_base)

    @torch.no_grad()
    def query_vectors(
        self, queries: JaggedBatch, domains: Sequence[str | None] | None = None
    ) -> Tensor:
        """Encode queries as unit vectors, [B, D].

        Args:
            queries: On the host, best; one copy takes them to the device.
            domains: Of each query, where batches are mixed.

        Raises:
            ValueError: If there are more queries or events than were captured, or domains do not
                fit.
        """
        history = queries["history"]
        history = Jagged(history.values.cpu(), history.offsets.cpu())
        history = latest(history, self._model.config.max_length)
        size, events = history.batch_size, len(history.values)
        if size > self._num_queries or events > len(self._parts[0]):
            raise ValueError(
                f"a batch of {size} queries and {events} events is larger than the captured "
                f"{self._num_queries} and {len(self._parts[0])}; part it or capture a larger one"
            )
        if self._mixed != (domains is not None) or len(domains or ()) not in (0, size):
            raise ValueError(
                f"{size} queries need {size if self._mixed else 'no'} domains, got "
                f"{None if domains is None else len(domains)}"
            )
        self._fill(history, self._adapted.numbers(domains) if domains else [0] * size)
        self._graph.replay()
        return self._vectors[:size].clone()
