"""Files that claim more than they hold: refused before anything of that size is allocated.

A child with hardly more address space than it uses loads them; manifests and descriptions are
forged so that every digest fits.
"""

import hashlib
import json
import shutil
import struct
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.serving.writable import writable

ROOM = 256 << 20
HUGE = 1 << 40
CHILD = f"""
import resource, sys
from pathlib import Path
import torch
from serving.bundle.load import load_bundle

torch.set_num_threads(1)
honest, *crafted = sys.argv[1:]
load_bundle(Path(honest))
used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
resource.setrlimit(resource.RLIMIT_AS, (used + {ROOM}, used + {ROOM}))
try:
    bytearray({HUGE})
except MemoryError:
    print("limited", flush=True)
for path in crafted:
    try:
        load_bundle(Path(path))
        print("loaded")
    except Exception as error:
        print(type(error).__name__, str(error).splitlines()[0])
"""


def index_with(place: int, form: str, value: int) -> Callable[[Path], None]:
    """Write a number into the index, and describe it so."""

    def craft(bundle: Path) -> None:
        path = bundle / "index" / "items.faiss"
        content = bytearray(path.read_bytes())
        struct.pack_into(form, content, place, value)
        path.write_bytes(content)
        meta = path.with_name("items.faiss.json")
        described = json.loads(meta.read_text())
        described.pop("meta_sha256")
        described["sha256"] = hashlib.sha256(content).hexdigest()
        described["dim"] = int.from_bytes(content[4:8], "little")
        described["num_item_rows"] = int.from_bytes(content[8:16], "little")
        digest = hashlib.sha256(json.dumps(described, sort_keys=True).encode()).hexdigest()
        meta.write_text(json.dumps({**described, "meta_sha256": digest}))

    return craft


def array_header(bundle: Path) -> None:
    """Claim 2^40 events in the header of an array."""
    path = bundle / "histories" / "item_rows.npy"
    content = path.read_bytes()
    header, _, values = content.partition(b"\n")
    begin, end = header.index(b"'shape': ("), header.index(b"), }")
    wanted = header[:begin] + f"'shape': ({HUGE},".encode() + header[end:]
    path.write_bytes(wanted.rstrip().ljust(len(header)) + b"\n" + values)


def tensor_shape(bundle: Path) -> None:
    """Claim a table of 2^40 rows in a header that fits otherwise."""
    path = bundle / "popularity" / "popularity.safetensors"
    content = path.read_bytes()
    (length,) = struct.unpack_from("<Q", content)
    described = json.loads(content[8 : 8 + length])
    for tensor in described.values():
        if "shape" in tensor:
            tensor["shape"] = [HUGE]
            tensor["data_offsets"] = [0, 4 * HUGE]
    header = json.dumps(described).encode()
    path.write_bytes(struct.pack("<Q", len(header)) + header + content[8 + length :])


def manifest_rows(bundle: Path) -> None:
    """Claim 2^40 items in a manifest whose files fit it."""


CRAFTED: dict[str, Callable[[Path], None]] = {
    "items.faiss width": index_with(4, "<i", 1 << 30),
    "items.faiss vector": index_with(37, "<q", HUGE),
    "item_rows.npy": array_header,
    "popularity shape": tensor_shape,
    "different runs": manifest_rows,
}


@pytest.fixture(scope="module")
def results(released, tmp_path_factory, reseal):
    """What the child says of each crafted bundle."""
    folder, honest = tmp_path_factory.mktemp("crafted"), released / "bundle-v1"
    dimensions = json.loads((honest / "manifest.json").read_text())["dimensions"]
    for number, (name, craft) in enumerate(CRAFTED.items()):
        crafted = writable(shutil.copytree(honest, folder / f"bundle-{number}"))
        craft(crafted)
        forged = {"num_item_rows": HUGE} if name == "different runs" else {}
        reseal(crafted, dimensions={**dimensions, **forged})
    child = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", CHILD, honest, *sorted(folder.iterdir())],
        capture_output=True,
        text=True,
        check=False,
    )
    assert child.returncode == 0, child.stderr
    limited, *lines = child.stdout.splitlines()
    assert limited == "limited"
    return dict(zip(CRAFTED, lines, strict=True))


@pytest.mark.parametrize("name", CRAFTED)
def test_what_claims_more_than_it_holds_is_refused_without_the_memory(results, name):
    assert results[name].startswith("ValueError")
    assert name.partition(" ")[0] in results[name]
