"""Recompute the lists of a log from their bundles, and write what differs.

<workspace>/parity/parity.json   the report
"""

from __future__ import annotations

import time
import traceback
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, NamedTuple, cast

import orjson
import torch

from pipelines.engine.artifacts import write_json
from pipelines.engine.workspace import DailyState
from pipelines.parity.log import Document, Log, NamedDifference, PastStore, compare_records
from serving.bundle.load import Bundle
from serving.bundle.manifest import read_manifest
from serving.configuration.file import ServingConfiguration, read_configuration
from serving.list_record import write_record
from serving.online.store import OnlineStore
from serving.recommend import Recommender
from serving.schemas import Request
from serving.settings import ServingOptions

SKIPPED = {
    "bundle_gone": "their bundle is not in the folder any more",
    "bundle_refused": "their bundle cannot be loaded",
    "rules_changed": "their surfaces and rules are in no file that was given (--serving-config)",
    "items_changed": "many items were hidden, and others are now",
    "adapter_changed": "their domain has another adapter now",
    "forgotten": "their user was forgotten",
    "old_record": "their record is of an earlier version, and says too little",
    "late_source": "a source was late",
    "late_stage": "the ranker was late",
    "failed_source": "a source failed",
    "failed_stage": "the ranker failed",
    "failed_store": "the online store failed",
}
DEGRADED = ("failed_store", "late_source", "failed_source", "late_stage", "failed_stage")
Say = Callable[[str], None]


@dataclass
class Difference:
    """A kind of difference of many requests."""

    what: str
    count: int = 0
    """Requests that have it."""
    first: int = 0
    """Requests in which nothing before it differs: it is the cause."""
    largest: float = 0.0
    example: str = ""
    """Id of a request, if possible of one in which it is the first."""


@dataclass(frozen=True, kw_only=True)
class ParityReport:
    """Result of a check."""

    time: str
    bundle: str
    """Bundle of most of the lists."""
    logged: int
    """Lists in the log."""
    requests: int
    recomputed: int
    equal: int
    skipped: Mapping[str, int] = field(default_factory=dict)
    """Lists that cannot be computed once more, by reason: they count as neither."""
    differences: Sequence[Difference] = ()
    seconds: float = 0.0

    def write(self, workspace: Path) -> Path:
        """Write it into the workspace."""
        path = DailyState(workspace).parity
        path.parent.mkdir(parents=True, exist_ok=True)
        write_json(path, asdict(self))
        return path


class RecommenderKey(NamedTuple):
    """Key of lists that the same recommender computes; fields of their records."""

    bundle: Any
    digest: Any
    profile: Any
    configuration: Any
    exclude_history: Any


def check_parity(
    log: Log, bundles: Path, *, configurations: Sequence[Path] = (), say: Say = lambda line: None
) -> ParityReport:
    """Compute every list of a log once more, and compare it to the last bit."""
    begin = time.perf_counter()
    # Sums have the bits of a server's, which uses one thread for a request.
    torch.set_num_threads(1)
    known = [ServingConfiguration(), *map(read_configuration, configurations)]
    run = _Run(log, _Bundles(bundles), {one.version: one for one in known})
    groups: dict[RecommenderKey, list[Document]] = {}
    for document in log.documents:
        key = RecommenderKey(*map(document.get, RecommenderKey._fields))
        groups.setdefault(key, []).append(document)
    for key, documents in sorted(groups.items(), key=lambda pair: str(pair[0])):
        run.recompute_group(key, documents)
        say(f"{key.bundle}, profile {key.profile}: {len(documents):,} lists")
    most = Counter(str(document["bundle"]) for document in log.documents).most_common(1)
    return ParityReport(
        time=datetime.now(UTC).isoformat(timespec="seconds"),
        bundle=most[0][0] if most else "",
        logged=log.num_requests,
        requests=len(log.documents),
        recomputed=run.recomputed,
        equal=run.equal,
        skipped=dict(sorted(run.skipped.items())),
        differences=sorted(
            run.differences.values(), key=lambda one: (-one.first, -one.count, one.what)
        ),
        seconds=round(time.perf_counter() - begin, 1),
    )


class _Bundles:
    """Bundles of a folder by digest; the one that was loaded last is kept."""

    def __init__(self, folder: Path) -> None:
        if not folder.is_dir():
            raise ValueError(f"there is no folder {folder}; name the bundles' with --bundles")
        self._folder = folder
        self.versions: dict[str, str] = {}
        """Digests by version."""
        self._paths: dict[str, Path] = {}
        for path in sorted(folder.glob("bundle-*")):
            try:
                manifest, digest = read_manifest(path)
            except ValueError:
                # Lists of it are counted as those of a bundle that is not there.
                continue
            self.versions[manifest.version], self._paths[digest] = digest, path
        self._loaded: Bundle | None = None

    def recommender(
        self, key: RecommenderKey, configuration: ServingConfiguration
    ) -> Recommender | None:
        """Load what made a group of lists, as a server does but without deadlines."""
        path = self._paths.get(key.digest)
        if path is None:
            return None
        options = ServingOptions(
            profile=key.profile, exclude_history=key.exclude_history, log_features_share=1.0
        )
        loaded = Recommender.load(path, options, loaded=self._loaded)
        self._loaded = loaded.bundle
        return Recommender(
            loaded.bundle, options, adapters=loaded.adapters, configuration=configuration
        )


class _Run:
    """Goes through the groups and counts."""

    def __init__(
        self, log: Log, bundles: _Bundles, configurations: Mapping[str, ServingConfiguration]
    ) -> None:
        self._log, self._bundles, self._configurations = log, bundles, configurations
        self.skipped: Counter[str] = Counter()
        self.differences: dict[str, Difference] = {}
        self.recomputed = self.equal = 0

    def recompute_group(self, key: RecommenderKey, documents: Sequence[Document]) -> None:
        """Recompute the lists of one bundle, profile and configuration."""
        present = self._bundles.versions.get(key.bundle)
        if present is not None and present != key.digest:
            # A bundle's name is never given to another one: that is no housekeeping.
            for document in documents:
                self._count(document, [("bundle of this name", 1.0)])
            return
        configuration, reason = self._configurations.get(key.configuration), "bundle_gone"
        try:
            recommender = self._bundles.recommender(key, configuration) if configuration else None
        except ValueError:
            recommender, reason = None, "bundle_refused"
        if recommender is None:
            self.skipped[reason if configuration else "rules_changed"] += len(documents)
            return
        store = PastStore(self._log)
        recommender.connect(lambda: cast(OnlineStore, store), keeps_lists=True)
        for document in documents:
            self._recompute(recommender, store, document)

    def _recompute(self, recommender: Recommender, store: PastStore, document: Document) -> None:
        """Make a list once more and compare it, unless that is no question of equality."""
        reason = self._reason(document)
        if reason is None:
            store.at(document)
            now_ms, seed = document["unix_ms"], document.get("seed")
            try:
                request = Request.model_validate(document["request"])
                made = recommender.make(request, now_ms=now_ms, seed=seed)
            except Exception as error:
                # Whatever a list that was once served fails with now is a difference.
                self._count(document, [_failed(error)])
                return
            online = orjson.loads(write_record(recommender, made))
            if online.get("adapter") == document.get("adapter"):
                self._count(document, list(compare_records(document, online, store.history)))
                return
            reason = "adapter_changed"
        self.skipped[reason] += 1

    def _reason(self, document: Document) -> str | None:
        """Explain why a list cannot be computed once more; None if it can."""
        degraded = [code for code in DEGRADED if code in document.get("degraded", ())]
        if degraded:
            return degraded[0]
        if "k" not in document["request"]:
            return "old_record"
        forgotten_ms = self._log.forgotten_ms(document.get("user_id"))
        if forgotten_ms is not None and forgotten_ms >= document["unix_ms"]:
            return "forgotten"
        version = document.get("items_version")
        return None if version in (None, self._log.items_version) else "items_changed"

    def _count(self, document: Document, found: Sequence[NamedDifference]) -> None:
        """Count the differences of one request, in the order in which the list is made."""
        self.recomputed += 1
        self.equal += not found
        for place, (what, largest) in enumerate(found):
            kind = self.differences.setdefault(what, Difference(what))
            if not kind.example or (place == 0 and not kind.first):
                kind.example = document["request_id"]
            kind.count += 1
            kind.first += place == 0
            kind.largest = max(kind.largest, largest)


def _failed(error: Exception) -> NamedDifference:
    """Name the function in which a list that was served failed now."""
    *_, frame = traceback.extract_tb(error.__traceback__)
    path = Path(frame.filename)
    return f"no list: {type(error).__name__} in {path.parent.name}/{path.name}: {frame.name}", 1.0
