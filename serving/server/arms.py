"""The other bundles that arms of experiments name, loaded into the process of the served one."""

from __future__ import annotations

from pathlib import Path
from resource import getpagesize

from serving.bundle.manifest import bundle_directory
from serving.configuration.check import missing_bundles
from serving.log import log
from serving.recommend import Recommender
from serving.settings import ServingOptions

STATM = Path("/proc/self/statm")


def load_arms(recommender: Recommender, options: ServingOptions) -> None:
    """Load the bundles that arms name beside the recommender's own, and log their memory.

    Raises:
        ValueError: One is not there, or not whole.
    """
    own = recommender.bundle
    if missing := list(missing_bundles(recommender.configuration, own)):
        raise ValueError("; ".join(missing))
    for version in sorted(recommender.configuration.bundles - {own.version}):
        before = _resident_bytes()
        path = bundle_directory(own.directory.parent, version)
        recommender.others[version] = Recommender.load(path, options).warm()
        megabytes = (_resident_bytes() - before) / 1e6
        log("arm_bundle_loaded", {"bundle": version, "megabytes": round(megabytes, 1)})


def _resident_bytes() -> int:
    """Return the memory that this process holds; 0 where the system does not say."""
    return int(STATM.read_text().split()[1]) * getpagesize() if STATM.exists() else 0
