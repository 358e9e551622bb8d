"""What the steps of a training are made of: time by kernel, and where the host waits for a GPU."""

from __future__ import annotations

import time
import traceback
import warnings
from collections import Counter
from collections.abc import Callable
from typing import Any, NamedTuple

import torch

EVERY = 50
"""Steps between two calls of a training's tracker."""
NUM_STEPS = 3 * EVERY + 6


class ProfiledSteps(NamedTuple):
    """Times of one training's steps."""

    step_ms: float
    """Of the clock."""
    busy_ms: float
    """Of kernels on the device."""
    launches: float
    shares: dict[str, float]
    """By kernel, of the device's time; the largest first."""
    waits: dict[str, float]
    """By place in the code, how often a step waits there for the device."""


class StepProfiler:
    """A tracker that profiles 50 steps, times 50 more, and then looks for waits."""

    def __init__(self, device: torch.device) -> None:
        self._device, self._wait = device, torch.get_device_module(device).synchronize
        activities = [torch.profiler.ProfilerActivity.CPU]
        activities += [torch.profiler.ProfilerActivity.CUDA] * (device.type == "cuda")
        self._profiler = torch.profiler.profile(activities=activities)
        self._waits: Counter[str] = Counter()
        self._begun = self._seconds = 0.0
        self._shown = warnings.showwarning

    def log(self, step: int, **values: float) -> None:
        if "loss" not in values:
            return
        self._wait(self._device)
        if step == EVERY:
            self._begun = time.perf_counter()
        elif step == 2 * EVERY:
            self._seconds = time.perf_counter() - self._begun
            self._profiler.start()
        elif step == 3 * EVERY:
            self._profiler.stop()
            self._look_for_waits()
        elif self._device.type == "cuda":
            torch.cuda.set_sync_debug_mode("default")
            warnings.showwarning = self._shown

    def _look_for_waits(self) -> None:
        def note(message: Any, *_: Any) -> None:
            if "synchroniz" not in str(message):
                return
            frames = [one for one in traceback.extract_stack() if "/recsys/" in one.filename]
            if frames:
                last = frames[-1]
                place = f"{last.filename.rpartition('/recsys/')[2]}:{last.lineno}"
                self._waits[f"{place} {last.line}"] += 1

        if self._device.type != "cuda":
            return
        warnings.showwarning = note
        warnings.simplefilter("always")
        torch.cuda.set_sync_debug_mode("warn")

    def result(self) -> ProfiledSteps:
        """Sum up."""
        kernels = Counter[str]()
        launches = 0
        for event in self._profiler.events() or []:
            on_device = event.device_type == torch.autograd.DeviceType.CUDA
            # Annotations of the host's calls stand among the kernels.
            if on_device and not event.name.startswith("Optimizer."):
                kernels[event.name] += event.device_time_total
                launches += 1
        total = sum(kernels.values()) or 1.0
        return ProfiledSteps(
            step_ms=self._seconds / EVERY * 1e3,
            busy_ms=total / EVERY / 1e3,
            launches=launches / EVERY,
            shares={name: value / total for name, value in kernels.most_common()},
            waits={place: count / 6 for place, count in self._waits.most_common()},
        )


def profiled(fit: Callable[[StepProfiler], object], device: torch.device) -> ProfiledSteps:
    """Profile a training of ``NUM_STEPS`` steps without validation."""
    profiler = StepProfiler(device)
    fit(profiler)
    return profiler.result()
