"""Files that a browser loads: our modules and styles, the chart library and the table component.

All of it comes from installed packages; there is no build step. Addresses hold a digest of
everything, so a browser keeps files for good and still sees a new version at once.
"""

from __future__ import annotations

import hashlib
import json
from contextlib import suppress
from functools import cache
from importlib.metadata import version as installed_version
from pathlib import Path
from typing import NamedTuple

import vl_convert

from pipelines.engine.artifacts import cache_dir
from recsys.data.durable import write_durably
from serving.web import files as served

CLIENT = Path(__file__).parent / "client"
TYPES = {
    ".css": "text/css; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".svg": "image/svg+xml",
}
STYLES = ("palette.css", "dashboard.css", "blocks.css", "tables.css", "print.css")
"""In the order in which they apply."""


class Asset(NamedTuple):
    """A file as it is sent."""

    body: bytes
    media_type: str


def bundle_charts() -> bytes:
    """Bundle Vega-Lite, Vega and its interpreter, as ``vegaEmbed``: 898 kB.

    With the interpreter (``ast``) a page can forbid the evaluation of strings. Bundling takes
    seconds, so a machine keeps the script, after its digest, in its cache.
    """
    module = f"https://cdn.jsdelivr.net/npm/vega-embed@{vl_convert.get_vega_embed_version()}/+esm"
    snippet = f"import embed from {json.dumps(module)}; window.vegaEmbed = embed;"
    made_from = f"{installed_version('vl-convert-python')} {snippet}"
    name = f"vega-{hashlib.sha256(made_from.encode()).hexdigest()[:16]}"
    with suppress(OSError, RuntimeError):
        digest, _, script = (cache_dir("pages") / name).read_bytes().partition(b"\n")
        if digest.decode("ascii", "replace") == hashlib.sha256(script).hexdigest():
            return script
    script = vl_convert.javascript_bundle(snippet).encode()
    # A home that cannot be written to keeps nothing.
    with suppress(OSError, RuntimeError):
        folder = cache_dir("pages")
        folder.mkdir(parents=True, exist_ok=True)
        write_durably(folder / name, hashlib.sha256(script).hexdigest().encode() + b"\n" + script)
    return script


@cache
def assets() -> dict[str, Asset]:
    """Read every asset, by name."""
    import itables

    files = {
        path.name: path.read_bytes() for path in sorted(CLIENT.iterdir()) if path.suffix in TYPES
    }
    files["combobox.js"] = (served.STATIC / "combobox.js").read_bytes()
    files["datatables.js"] = (Path(itables.__file__).parent / "html/dt_bundle.js").read_bytes()
    files["vega.js"] = bundle_charts()
    return {name: Asset(body, TYPES[Path(name).suffix]) for name, body in files.items()}


@cache
def version() -> str:
    """Digest the content of all assets to 16 hexadecimal digits."""
    digest = hashlib.sha256()
    for name, asset in sorted(assets().items()):
        digest.update(f"{name}\0{len(asset.body)}\0".encode())
        digest.update(asset.body)
    return digest.hexdigest()[:16]
