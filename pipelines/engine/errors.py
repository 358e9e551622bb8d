"""Ways in which a run ends that are neither done nor wrong input."""

from __future__ import annotations


class WorkspaceBusyError(RuntimeError):
    """Another run holds the workspace; the command line exits with code 75 (EX_TEMPFAIL)."""


class UnstableTrainingError(RuntimeError):
    """Loss or gradients stayed non-finite; the command line exits with code 70 (EX_SOFTWARE)."""


class RefusedError(RuntimeError):
    """A check did not pass, so nothing was published; the command line exits with code 3."""


class AlarmError(RuntimeError):
    """A check of the data or of the served lists raised an alarm; the command exits with code 5."""


class RankLostError(RuntimeError):
    """A process of a training on several ended or was too slow; the command exits with code 72."""
