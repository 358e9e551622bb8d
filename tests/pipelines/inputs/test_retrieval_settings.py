"""Lists are measured as they are served."""

from __future__ import annotations

from recsys.fitting.queries import RetrievalSettings
from serving.surfaces import HOME


def test_measured_lists_are_requested_like_those_of_the_home_page() -> None:
    settings = RetrievalSettings()
    for name in ("num_candidates", "max_history"):
        assert getattr(settings, name) == getattr(HOME, name)
