"""Partitions in an object store, behind a real S3 server on loopback."""

from collections.abc import Iterator
from dataclasses import replace

import pytest
from moto.server import ThreadedMotoServer

from pipelines.config.run import DataConfig, RunConfig
from pipelines.partitions.ingest import ingest
from pipelines.partitions.manifest import PartitionsManifest
from pipelines.presets.resolve import with_dataset

FIRST = 1_767_225_600
"""2026-01-01, Unix seconds."""


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Start an S3 server with an empty bucket, and point the driver at it."""
    import s3fs

    started = ThreadedMotoServer(ip_address="127.0.0.1", port=0)
    started.start()
    _, port = started.get_host_and_port()
    url = f"http://127.0.0.1:{port}"
    for name, value in {
        "AWS_ACCESS_KEY_ID": "test",
        "AWS_SECRET_ACCESS_KEY": "test",
        "AWS_DEFAULT_REGION": "us-east-1",
        "AWS_ENDPOINT_URL": url,
        "AWS_EC2_METADATA_DISABLED": "true",
    }.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(s3fs.S3FileSystem, "cachable", False)
    store = s3fs.S3FileSystem()
    store.mkdir("shop")
    try:
        yield
    finally:
        store.rm("shop", recursive=True)
        started.stop()


def put(day: int, text: str) -> None:
    import s3fs

    s3fs.S3FileSystem().pipe(f"shop/events/date=2026-01-{day:02d}/part-0.csv", text.encode())


def day_text(day: int, events: int = 5) -> str:
    begin = FIRST + (day - 1) * 86_400
    rows = [f"u{place},i{place % 3},{begin + place}" for place in range(events)]
    return "\n".join(["user_id,item_id,event_time", *rows]) + "\n"


@pytest.mark.usefixtures("server")
def test_days_in_a_bucket_arrive_once_are_corrected_and_stay_when_it_is_gone(tmp_path):
    config = RunConfig(workspace=tmp_path / "run", data=DataConfig(partitions="s3://shop/events"))
    for day in (1, 2):
        put(day, day_text(day))
    assert ingest(config).new == ["2026-01-01", "2026-01-02"]
    assert not ingest(config).changed
    put(2, day_text(2, events=9))
    put(3, day_text(3))
    report = ingest(config)
    assert (report.new, report.corrected) == (["2026-01-03"], ["2026-01-02"])
    manifest = PartitionsManifest.read(config.workspace)
    assert manifest is not None
    assert sum(one.rows for one in manifest.partitions.values()) == 5 + 9 + 5
    gone = replace(config, data=DataConfig(partitions="s3://no-such-bucket/events"))
    with pytest.raises(ValueError, match=r"cannot list s3://no-such-bucket/events"):
        ingest(gone)
    assert len(with_dataset(config).data.event_paths()) == 3
