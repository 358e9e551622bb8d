"""A page as one HTML file that opens anywhere, with everything that draws it.

The file may reach nothing: its policy names its own scripts and styles by their digests. Scripts
and styles come from installed packages; there is no build step. Their addresses in the dashboard
hold a digest of everything, so a browser keeps files for good and still sees a new version at once.
"""

from __future__ import annotations

import base64
import hashlib
import json
import re
from collections.abc import Mapping
from contextlib import suppress
from functools import cache
from importlib.metadata import version as installed_version
from pathlib import Path
from string import Template
from typing import NamedTuple

import vl_convert

from pipelines.engine.artifacts import cache_dir
from pipelines.pages.document import Page
from pipelines.pages.encoding import for_script
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


SHELL = CLIENT / "shell.html"
FIRST = "main.js"
LATER = {"vega.js", "datatables.js"}
"""Modules loaded only for a page with a chart or a table."""
TABLE_EXPORTS = re.compile(r"export\{[^}]*?([\w$]+) as default[^}]*\};?")
IMPORT = re.compile(r'^import \{([^}]*)\} from "\./([\w.]+)";\n', re.MULTILINE)
DYNAMIC = re.compile(r'import\("\./(\w+)\.js"\)')
EXPORT = re.compile(r"^export (?=(?:async )?(?:function|class|const) (\w+))", re.MULTILINE)
LEFT = re.compile(r"^\s*(?:import\b(?!\()|export\b)", re.MULTILINE)


def filled(path: Path, **parts: str) -> str:
    """Fill the shell; every part is given."""
    return Template(path.read_text(encoding="utf-8")).substitute(parts)


# A page from file:// cannot import, so a module becomes a function that returns its exports. The
# few forms of import and export that our modules use are read, any other is refused.


def imported(source: str) -> list[str]:
    """List the modules that a module imports."""
    return [name for _, name in IMPORT.findall(source)]


def in_order(modules: Mapping[str, str], first: str) -> list[str]:
    """Order modules so that each comes after those that it imports."""
    found: list[str] = []

    def visit(name: str, above: tuple[str, ...]) -> None:
        assert name not in above, f"modules import in a circle: {(*above, name)}"
        for other in imported(modules[name]):
            visit(other, (*above, name))
        if name not in found:
            found.append(name)

    visit(first, ())
    return found


def scope_name(module: str) -> str:
    """Return the constant that holds a module's exports."""
    return f"module_{module.removesuffix('.js')}"


def scoped(name: str, source: str) -> str:
    """Wrap a module in a scope of its own."""
    exports = EXPORT.findall(source)
    body = IMPORT.sub(lambda found: f"const {{{found[1]}}} = {scope_name(found[2])};\n", source)
    body = DYNAMIC.sub(r"Promise.resolve(globalThis.recsys_\1)", EXPORT.sub("", body))
    assert not LEFT.search(body), f"{name}: a form of import or export that is not known"
    returned = ", ".join(exports)
    return f"const {scope_name(name)} = (() => {{\n{body}return {{ {returned} }};\n}})();\n"


def _inlined(source: str) -> str:
    """Make a script that cannot end its element, nor begin a comment of the page in it."""
    return re.sub("<(?=!--|/?script)", r"\\x3C", source, flags=re.IGNORECASE)


def scripts() -> list[str]:
    """Return the chart library, the table component and our modules, in that order."""
    text = {name: found.body.decode() for name, found in assets().items() if name.endswith(".js")}
    tables, count = TABLE_EXPORTS.subn(
        r"globalThis.recsys_datatables = { default: \1 };", text["datatables.js"]
    )
    assert count == 1, "the table component exports nothing as default"
    ours = {name: source for name, source in text.items() if name not in LATER}
    charts = f"{text['vega.js']}\nglobalThis.recsys_vega = globalThis.vegaEmbed;"
    own = "".join(scoped(name, ours[name]) for name in in_order(ours, FIRST))
    return [_inlined(source) for source in (charts, tables, own)]


def _digest(source: str) -> str:
    return f"'sha256-{base64.b64encode(hashlib.sha256(source.encode()).digest()).decode()}'"


def page_html(page: Page, name: str) -> str:
    """Render a page as an HTML file.

    Args:
        name: Name of the page in its address.
    """
    style = "\n".join(assets()[name].body.decode() for name in STYLES)
    code = scripts()
    policy = (
        f"default-src 'none'; script-src {' '.join(map(_digest, code))}; "
        f"style-src {_digest(style)}; style-src-attr 'unsafe-inline'; img-src data:; "
        "base-uri 'none'; form-action 'none'"
    )
    without = filled(
        SHELL,
        policy=f'<meta http-equiv="Content-Security-Policy" content="{policy}">',
        title=page.title.translate({ord(sign): f"&#{ord(sign)};" for sign in "&<>"}),
        head=f"<style>{style}</style>",
        settings="SETTINGS",
        scripts="\n".join(f'<script type="module">{one}</script>' for one in code),
    )
    entry = {"name": name, "title": page.title, "in_navigation": True, "keeps": []}
    settings = {"pages": [entry], "exported": page}
    head, tail = without.split(">SETTINGS<")
    return f"{head}>{for_script(settings)}<{tail}"


def write_page(page: Page, path: Path) -> None:
    """Write a page as an HTML file, whole or not at all."""
    path.parent.mkdir(parents=True, exist_ok=True)
    write_durably(path, page_html(page, path.stem))
