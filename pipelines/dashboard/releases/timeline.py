"""The chart of champions: which version an alias named when, with rollbacks and refusals."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import datetime, timedelta

from pipelines.dashboard.releases.record import Record
from pipelines.dashboard.workspaces.files import time_of
from pipelines.pages.charts.style import color_of
from pipelines.pages.charts.timelines import Mark, Span, spans_chart
from pipelines.pages.document import Chart, Origin
from pipelines.tracking.entries import CHALLENGER, CHAMPION

SHOWN_VERSIONS = 24
"""Rows that still can be read; older versions are in the table of decisions."""
REFUSED, ROLLED_BACK = "refused", "rolled back"
COLORS = {
    CHAMPION: color_of(0),
    CHALLENGER: color_of(1),
    ROLLED_BACK: color_of(3),
    REFUSED: color_of(5),
}


def timeline(record: Record, origins: Sequence[Origin]) -> Chart | None:
    """Draw the versions that were named or refused lately; None where nothing was."""
    marks = list(_marks(record))
    changes = [(time, one) for one in record.changes if (time := time_of(one.time))]
    times = [time for time, _ in changes] + [_time(mark.at) for mark in marks]
    if not times:
        return None
    end = max(times) + max(timedelta(hours=1), (max(times) - min(times)) * 0.05)
    spans = [*_spans(record, CHAMPION, end), *_spans(record, CHALLENGER, end)]
    latest: dict[str, str] = {}
    for label, at in [(one.label, one.at) for one in spans] + [
        (one.label, one.at) for one in marks
    ]:
        latest[label] = max(at, latest.get(label, ""))
    labels = sorted(latest, key=lambda label: (latest[label], label), reverse=True)
    labels = labels[:SHOWN_VERSIONS]
    shown = [span for span in spans if span.label in labels]
    shown_marks = [mark for mark in marks if mark.label in labels]
    used = {span.series for span in shown} | {mark.series for mark in shown_marks}
    champions = sum(span.series == CHAMPION for span in spans)
    return Chart(
        key="timeline",
        title="Which version was served when",
        note="A row is a version, the newest at the top. Its bar lasts while it was champion or "
        "challenger; a cross is a refusal or a rollback to it. What is served now goes on "
        "beyond the right edge.",
        description=f"{champions} times a version became champion; "
        f"{sum(mark.series == REFUSED for mark in marks)} were refused and "
        f"{sum(mark.series == ROLLED_BACK for mark in marks)} rolled back to.",
        spec=spans_chart(shown, COLORS, labels=labels, marks=shown_marks),
        columns=("version", "what", "from", "until"),
        rows=[
            *((span.label, span.series, _written(span.at), _written(span.until)) for span in spans),
            *((mark.label, mark.series, _written(mark.at), None) for mark in marks),
        ],
        legend={name: color for name, color in COLORS.items() if name in used},
        origins=origins,
    )


def _spans(record: Record, alias: str, end: datetime) -> Iterator[Span]:
    """List how long an alias named each version; a challenger until it is promoted or replaced."""
    version, begin = "", end
    for change in record.changes:
        time = time_of(change.time)
        named = change.alias == alias
        # Who becomes champion waits no more.
        taken = alias == CHALLENGER and change.alias == CHAMPION and change.version == version
        if time is None or not (named or taken):
            continue
        if version:
            yield _span(version, alias, begin, time)
        version, begin = (change.version, time) if named else ("", end)
    if version:
        yield _span(version, alias, begin, end)


def _span(version: str, alias: str, begin: datetime, until: datetime) -> Span:
    note = f"{version}: {alias} from {begin:%Y-%m-%d %H:%M} until {until:%Y-%m-%d %H:%M}"
    return Span(
        label=version, series=alias, at=begin.isoformat(), until=until.isoformat(), note=note
    )


def _marks(record: Record) -> Iterator[Mark]:
    for change in record.changes:
        time = time_of(change.time)
        if change.action == "rollback" and time is not None:
            words = f"rolled back to {change.version} from {change.previous} at {_written(time)}"
            yield Mark(at=time.isoformat(), label=change.version, series=ROLLED_BACK, note=words)
    for one in record.decisions:
        if one.decision.outcome == "refused" and one.time is not None:
            version = one.decision.challenger
            words = f"{version} was refused at {_written(one.time)}"
            yield Mark(at=one.time.isoformat(), label=version, series=REFUSED, note=words)


def _time(text: str) -> datetime:
    return datetime.fromisoformat(text)


def _written(time: datetime | str) -> str:
    found = _time(time) if isinstance(time, str) else time
    return f"{found:%Y-%m-%d %H:%M:%S}"
