"""Events in an object store: a real S3 server on loopback, and doubles of Google's and Azure's."""

import json
import threading
from collections.abc import Iterator
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import polars as pl
import pytest
from moto.server import ThreadedMotoServer

from features.reading.databases import DatabaseTable
from pipelines.config.run import DataConfig, RunConfig
from pipelines.datasets.init_file import write_config
from pipelines.inputs.snapshots import with_snapshots
from pipelines.partitions.ingest import ingest
from pipelines.partitions.manifest import PartitionsManifest
from pipelines.presets.resolve import resolve, with_dataset

FIRST = 1_767_225_600  # 2026-01-01, Unix seconds


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


class Storage(BaseHTTPRequestHandler):
    """Lists and reads the files of one bucket, as the XML interfaces of Google and Azure do."""

    files: dict[str, bytes]

    def do_GET(self) -> None:
        path, _, query = self.path.partition("?")
        name = path.replace("%2F", "/").replace("%2E", ".").rpartition("/shop/")[2]
        if "comp=list" in query:
            blobs = "".join(
                f"<Blob><Name>{one}</Name><Properties><Content-Length>{len(data)}</Content-Length>"
                "<Last-Modified>Thu, 01 Jan 2026 00:00:00 GMT</Last-Modified>"
                "<Content-Type>file</Content-Type><Etag>1</Etag></Properties></Blob>"
                for one, data in self.files.items()
            )
            self._send(200, f"<Results><Blobs>{blobs}</Blobs></Results>".encode())
        elif query:
            keys = "".join(
                f"<Contents><Key>{one}</Key><Size>{len(data)}</Size><ETag>1</ETag>"
                "<LastModified>2026-01-01T00:00:00.000Z</LastModified></Contents>"
                for one, data in self.files.items()
            )
            self._send(200, f"<ListBucketResult>{keys}</ListBucketResult>".encode())
        elif name not in self.files:
            self._send(404, b"")
        else:
            data = self.files[name]
            begin, _, end = self.headers.get("Range", "bytes=0-")[6:].partition("-")
            first = int(begin) if begin else max(0, len(data) - int(end))
            last = min(int(end), len(data) - 1) if begin and end else len(data) - 1
            whole = f"bytes {first}-{last}/{len(data)}"
            self._send(206, data[first : last + 1], {"Content-Range": whole})

    do_HEAD = do_GET

    def _send(self, status: int, data: bytes, headers: dict[str, str] | None = None) -> None:
        self.send_response(status)
        times = {"Last-Modified": "Thu, 01 Jan 2026 00:00:00 GMT", "ETag": "1"}
        for name, value in {**times, "Content-Length": str(len(data)), **(headers or {})}.items():
            self.send_header(name, value)
        self.end_headers()
        if self.command == "GET":
            self.wfile.write(data)

    def log_message(self, *_: object) -> None: ...


@pytest.fixture
def storage(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[dict[str, bytes]]:
    """Files of a bucket of a server, to which the variables of both stores point."""
    files: dict[str, bytes] = {}
    handler = type("Handler", (Storage,), {"files": files})
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    address = f"http://127.0.0.1:{server.server_port}"
    account = {"gcs_base_url": address, "disable_oauth": True}
    account |= {"client_email": "", "private_key": "", "private_key_id": ""}
    (tmp_path / "key.json").write_text(json.dumps(account))
    monkeypatch.setenv("GOOGLE_SERVICE_ACCOUNT", str(tmp_path / "key.json"))
    monkeypatch.setenv("AZURE_STORAGE_USE_EMULATOR", "true")
    monkeypatch.setenv("AZURITE_BLOB_STORAGE_URL", address)
    pl.Config.set_default_credential_provider(None)
    yield files
    pl.Config.set_default_credential_provider("auto")
    server.shutdown()
    server.server_close()


@pytest.mark.parametrize("kind", ["gs", "az"])
def test_files_of_a_store_are_read_by_their_address(kind, storage, tmp_path):
    days = [pl.read_csv(day_text(day).encode()) for day in (1, 2)]
    for day, table in enumerate(days):
        table.write_parquet(tmp_path / "one.parquet")
        storage[f"orders/{day}.parquet"] = (tmp_path / "one.parquet").read_bytes()
    address = f"{kind}://shop/orders/*.parquet"
    found = write_config([address], tmp_path / "shop.toml", force=False)
    assert found["events"].columns["user_id"] == "user_id"
    kept = with_snapshots(resolve(tmp_path / "shop.toml", workspace=tmp_path / "run"))
    assert pl.read_parquet(kept.data.events).equals(pl.concat(days))
    chosen = DatabaseTable.parse(f"{address}#select user_id from orders where item_id = 'i0'")
    assert chosen.read().height == 4
    with pytest.raises(ValueError, match=rf"{kind}://shop/gone\.parquet cannot be read"):
        DatabaseTable.parse(f"{kind}://shop/gone.parquet").read()


@pytest.mark.usefixtures("server")
def test_files_of_s3_are_read_by_their_address_and_ids_of_digits_stay_texts(monkeypatch):
    import s3fs

    monkeypatch.setenv("AWS_ALLOW_HTTP", "true")
    s3fs.S3FileSystem().pipe("shop/orders.csv", b"user_id,item_id\n007,i1\n")
    table = DatabaseTable.parse("s3://shop/orders.csv")
    assert (table.name, table.read().rows()) == ("orders", [("007", "i1")])
    for wrong in ("s3://key:geheim@shop/orders.csv", "s3://shop/orders.xlsx"):
        with pytest.raises(ValueError, match="without a password") as refused:
            DatabaseTable.parse(wrong)
        assert "geheim" not in str(refused.value)
