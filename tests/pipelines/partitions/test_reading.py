"""Files that end the process that reads them cost their partition, and nothing else."""

import io
import os
import resource
import signal
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path

import polars as pl
import pytest
from hypothesis import event, given, settings
from hypothesis import strategies as st

from features.partition_process import PartitionReader, ReadingFailedError, ReadRequest
from features.schema import FilterConfig, SourceConfig
from pipelines.config.run import DataConfig, RunConfig
from pipelines.partitions.ingest import ingest
from tests.features.corrupt import corrupted

START = 1_700_000_000
DEADLY_SEEDS = (7432, 11022)
"""Whose bytes abort Polars 2.1 (a size out of a damaged header). With another version look for
others: `test_whatever_the_bytes_are_the_next_file_is_read` with more examples prints them."""


def whole(name: str = "u") -> bytes:
    frame = pl.DataFrame(
        {
            "user_id": [f"{name}{n % 3}" for n in range(200)],
            "item_id": [f"i{n % 4}" for n in range(200)],
            "event_time": [START + n for n in range(200)],
        }
    )
    file = io.BytesIO()
    frame.write_parquet(file)
    return file.getvalue()


def request_of(path: Path, out: Path) -> ReadRequest:
    return ReadRequest(
        source=SourceConfig(paths=(path,)),
        filters=FilterConfig(max_bad_share=1.0),
        out=out,
        now=datetime(2024, 6, 1, tzinfo=UTC),
        end=None,
        before=None,
    )


@pytest.fixture(scope="module")
def reader() -> Iterator[PartitionReader]:
    with PartitionReader() as found:
        yield found


@pytest.fixture
def config(tmp_path: Path) -> RunConfig:
    data = DataConfig(partitions=str(tmp_path / "events"))
    filters = FilterConfig(max_bad_share=1.0)
    return RunConfig(workspace=tmp_path / "run", data=data, filters=filters)


def write_days(folder: Path, contents: dict[str, bytes]) -> None:
    folder.mkdir(exist_ok=True)
    for key, content in contents.items():
        (folder / f"{key}.parquet").write_bytes(content)


@pytest.mark.parametrize("seed", DEADLY_SEEDS)
def test_a_file_that_ends_its_reader_is_set_aside_and_the_rest_is_read(seed, config, tmp_path):
    days = {"2023-11-14": whole(), "2023-11-15": corrupted(whole(), seed)}
    days |= {"2023-11-16": whole()[:-1] + b"0", "2023-11-17": whole("v")}
    write_days(tmp_path / "events", days)
    report = ingest(config)
    assert report.new == ["2023-11-14", "2023-11-17"]
    reason = report.set_aside["2023-11-15"]
    assert "SIGABRT" in reason
    assert "write its files again" in reason
    assert set(report.set_aside) == {"2023-11-15", "2023-11-16"}
    write_days(tmp_path / "events", {"2023-11-15": whole("w")})
    assert ingest(config).new == ["2023-11-15"]


@settings(max_examples=60, deadline=None)
@given(seed=st.integers(0, 10**9))
def test_whatever_the_bytes_are_the_next_file_is_read(tmp_path_factory, reader, seed):
    folder = tmp_path_factory.mktemp("fuzz")
    path = folder / "events.parquet"
    path.write_bytes(corrupted(whole(), seed))
    try:
        reply = reader.read(request_of(path, folder / "bad"))
    except ReadingFailedError:
        event("ended its reader")
    else:
        assert reply.report is not None or str(path) in reply.refused
    path.write_bytes(whole())
    again = reader.read(request_of(path, folder / "good"))
    assert again.report is not None
    assert again.report.rows == 200


def test_a_killed_reader_is_no_fault_of_the_file(config, tmp_path, monkeypatch):
    write_days(tmp_path / "events", {"2023-11-14": whole(), "2023-11-15": whole()[::-1]})
    read = PartitionReader.read

    def read_and_be_killed(self: PartitionReader, request: ReadRequest) -> object:
        read(self, request)
        assert self._process is not None
        os.kill(self._process.pid, signal.SIGKILL)
        return read(self, request)

    with monkeypatch.context() as patched:
        patched.setattr(PartitionReader, "read", read_and_be_killed)
        report = ingest(config)
    assert "SIGKILL" in report.set_aside["2023-11-14"]
    assert ingest(config).new == ["2023-11-14"]


def test_too_little_memory_is_no_fault_of_the_file(tmp_path):
    small, large = tmp_path / "small.parquet", tmp_path / "large.parquet"
    small.write_bytes(whole())
    frame = pl.DataFrame({"event_time": pl.int_range(4_000_000, eager=True) + START})
    ids = pl.format("a user with a long name {}", "event_time")
    frame.with_columns(user_id=ids, item_id=pl.lit("i1")).write_parquet(large)
    with PartitionReader() as reader:
        reader.read(request_of(small, tmp_path / "first"))
        process = reader._process
        assert process is not None
        used = 4096 * int(Path(f"/proc/{process.pid}/statm").read_text().split()[0])
        resource.prlimit(process.pid, resource.RLIMIT_AS, (used, used))
        with pytest.raises(ReadingFailedError):
            reader.read(request_of(large, tmp_path / "second"))
        assert reader.read(request_of(small, tmp_path / "third")).report is not None


def test_a_reader_ends_with_who_started_it(tmp_path):
    with PartitionReader() as reader:
        path = tmp_path / "events.parquet"
        path.write_bytes(whole())
        reader.read(request_of(path, tmp_path / "out"))
        process = reader._process
        assert process is not None
        assert reader._connection is not None
        reader._connection.close()
        assert process.wait(10) == 0


def test_a_full_disk_rises_as_it_is(tmp_path, reader):
    path = tmp_path / "events.parquet"
    path.write_bytes(whole())
    (tmp_path / "out").write_text("a file where the folder should be")
    with pytest.raises(OSError, match="File exists"):
        reader.read(request_of(path, tmp_path / "out"))
