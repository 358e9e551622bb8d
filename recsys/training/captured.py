"""A whole training step as one CUDA graph: forward, backward, clipping and the optimizer.

The step of a small model is several hundred kernels of a few microseconds each, and starting one
from Python takes longer than most of them run (``tests/benchmarks/results/training``). A graph
starts them all at once. Its shapes are fixed, so batches are brought to one shape by examples that
count for nothing; a batch that does not fit takes an ordinary step. Steps of several ranks are not
captured; their batches are made ahead, while the device computes the step before.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any, Generic, NamedTuple, TypeVar

import torch
from torch import Tensor, nn
from torch.optim import AdamW, Optimizer

from recsys.data.batch import moved
from recsys.training.optim import Muon, clip_gradients

T = TypeVar("T")


class BadSteps(NamedTuple):
    """Steps that moved nothing, since they were last read."""

    total: int
    longest: int
    """The longest streak, which may have begun before."""


class StepGuard:
    """Steps an optimizer, or skips."""

    def __init__(self, optimizer: Optimizer, device: torch.device) -> None:
        self._optimizer = optimizer
        # Another subclass of AdamW may do more than the fused kernel, which reads the switch.
        fused = type(optimizer) in (AdamW, Muon) and all(
            group.get("fused") for group in optimizer.param_groups
        )
        self.waits = not (device.type == "cuda" and fused)
        """Whether the host sees each step."""
        self.in_a_row = 0
        """Bad steps up to the latest, as of the last reading."""
        self._total = self._longest = 0
        self._counts = torch.zeros(3, device=device)
        """On the device: in all, in a row, and the longest streak."""

    def step(self, sum_to_check: Tensor) -> None:
        """Move the weights where loss plus gradient norm, a scalar, is finite."""
        if not self.waits:
            self._step_on_device(sum_to_check)
        elif bool(torch.isfinite(sum_to_check)):
            self._optimizer.step()
            self.in_a_row = 0
        else:
            self.in_a_row += 1
            self._total += 1
            self._longest = max(self._longest, self.in_a_row)

    def _step_on_device(self, sum_to_check: Tensor) -> None:
        bad = (~torch.isfinite(sum_to_check)).float()
        self._optimizer.found_inf = bad  # type: ignore[attr-defined]
        self._optimizer.step()
        total, in_a_row, longest = self._counts.unbind()
        total.add_(bad)
        in_a_row.add_(bad).mul_(bad)
        torch.maximum(longest, in_a_row, out=longest)

    def read(self) -> BadSteps:
        """Read the counts and restart them; on a device this waits for it."""
        if not self.waits:
            self._total, self.in_a_row, self._longest = map(int, self._counts.tolist())
            self._counts[0].zero_()
            self._counts[2] = self._counts[1]
        bad = BadSteps(self._total, self._longest)
        self._total, self._longest = 0, self.in_a_row
        return bad


logger = logging.getLogger(__name__)

ORDINARY_FIRST = 3
"""Steps before the capture, in which libraries and the optimizer's state are set up."""
MIN_STEPS = 50
"""Shorter trainings are over before a capture pays."""


class FixedShapeLoss:
    """The loss of each step, which can also be computed from batches of one shape."""

    def __init__(
        self,
        loss_at: Callable[[int], Tensor],
        inputs_at: Callable[[int], Tensor | None],
        loss_of: Callable[[Tensor], Tensor],
    ) -> None:
        """Pair the two ways.

        Args:
            inputs_at: The batch of a step on the host as integers, [S] int64, always of one
                length; None where it does not fit.
            loss_of: The same loss of such a batch on the device, without waiting for it.
        """
        self._loss_at = loss_at
        self.inputs_at = inputs_at
        self.loss_of = loss_of

    def __call__(self, step: int) -> Tensor:
        return self._loss_at(step)


class CapturedStep:
    """Runs training steps by replaying a graph of one."""

    def __init__(
        self,
        loss: FixedShapeLoss,
        model: nn.Module,
        guard: StepGuard,
        optimizer: Optimizer,
        max_grad_norm: float | None,
        precision: Callable[[], AbstractContextManager[Any]],
    ) -> None:
        self._loss, self._model, self._guard = loss, model, guard
        self._optimizer, self._max_grad_norm = optimizer, max_grad_norm
        self._precision = precision
        self._device = next(model.parameters()).device
        self._rate = torch.zeros((), device=self._device)
        self._inputs: Tensor | None = None
        self._done = 0
        self._stream: Any = torch.cuda.Stream(self._device)  # type: ignore[no-untyped-call]
        self._graph: torch.cuda.CUDAGraph | None = None
        self._numbers: tuple[Tensor, Tensor] | None = None
        self.has_failed = False

    def step(self, step: int, learning_rate: float) -> tuple[Tensor, Tensor] | None:
        """Train a step; return its loss and gradient norm, None where it does not fit.

        Both are overwritten by the next step.
        """
        given = None if self.has_failed else self._loss.inputs_at(step)
        if given is None:
            return None
        if self._inputs is None:
            self._inputs = torch.empty_like(given, device=self._device)
        self._inputs.copy_(moved(given, self._device), non_blocking=True)
        self._rate.fill_(learning_rate)
        for group in self._optimizer.param_groups:
            group["lr"], group["capturable"] = self._rate, True
        if self._graph is None and self._done == ORDINARY_FIRST and not self._capture():
            return None
        if self._graph is None:
            self._done += 1
            return self._ordinary()
        self._graph.replay()
        return self._numbers

    def _ordinary(self) -> tuple[Tensor, Tensor]:
        """Run the step on the stream that it will be captured on."""
        here = torch.cuda.current_stream(self._device)
        self._stream.wait_stream(here)
        with torch.cuda.stream(self._stream):
            numbers = self._body()
            self._optimizer.zero_grad(set_to_none=True)
        here.wait_stream(self._stream)
        return numbers

    def _capture(self) -> bool:
        """Capture the step, which does not run it; say whether that went well."""
        graph = torch.cuda.CUDAGraph()
        torch.cuda.synchronize(self._device)
        try:
            with torch.cuda.graph(graph, stream=self._stream):
                numbers = self._body()
        except RuntimeError as error:
            self.has_failed = True
            self._optimizer.zero_grad(set_to_none=True)
            logger.warning(
                "training_step_not_captured reason=%r; steps are launched kernel by kernel", error
            )
            return False
        self._graph, self._numbers = graph, numbers
        return True

    def _body(self) -> tuple[Tensor, Tensor]:
        assert self._inputs is not None
        with self._precision():
            loss = self._loss.loss_of(self._inputs)
        with torch.autograd.set_multithreading_enabled(False):
            loss.backward()  # type: ignore[no-untyped-call]
        norm = clip_gradients(self._model.parameters(), self._max_grad_norm)
        loss = loss.detach()
        self._guard.step(loss + norm)
        return loss, norm


class AheadLoss(Generic[T]):
    """The loss of each step, in two parts: its batch, and the loss of a batch.

    The sizes of what other ranks send are known to the device alone, so the host waits for them. On
    a stream of its own that wait is short; after the step's work it would last as long as the step.
    """

    def __init__(
        self, prepare: Callable[[int], T], loss_of: Callable[[T], Tensor], device: torch.device
    ) -> None:
        """Pair the two parts.

        Args:
            prepare: The batch of a step with all that the device reads for it; reads no weight
                that trains.
        """
        self._prepare, self._loss_of, self._device = prepare, loss_of, device
        # On a CPU its streams and events do nothing.
        self._streams: Any = torch.get_device_module(device)
        self._side: Any = self._streams.Stream()
        self._made: tuple[int, T] | None = None
        self._kept: list[tuple[T, Any]] = []
        """Batches with an event after their step: the side stream may not reuse their memory."""

    def __call__(self, step: int) -> Tensor:
        if self._made is None or self._made[0] != step:
            self.ahead(step)
        assert self._made is not None
        self._streams.current_stream(self._device).wait_stream(self._side)
        return self._loss_of(self._made[1])

    def ahead(self, step: int) -> None:
        """Make the batch of the step after the one whose work was just handed to the device."""
        if self._made is not None:
            done: Any = self._streams.Event()
            done.record(self._streams.current_stream(self._device))
            self._kept.append((self._made[1], done))
        while len(self._kept) > 1:
            _, done = self._kept.pop(0)
            done.synchronize()
        with self._streams.stream(self._side):
            self._made = step, self._prepare(step)
