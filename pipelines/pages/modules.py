"""Our modules as one script for a file that has no server: each in a scope of its own, in order.

A page from ``file://`` cannot import, so a module becomes a function that returns what it exports.
This reads the few forms of ``import`` and ``export`` that our modules use and refuses any other.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

IMPORT = re.compile(r'^import \{([^}]*)\} from "\./([\w.]+)";\n', re.MULTILINE)
DYNAMIC = re.compile(r'import\("\./(\w+)\.js"\)')
EXPORT = re.compile(r"^export (?=(?:async )?(?:function|class|const) (\w+))", re.MULTILINE)
LEFT = re.compile(r"^\s*(?:import\b(?!\()|export\b)", re.MULTILINE)


def imported(source: str) -> list[str]:
    """Name the modules that a module imports."""
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
    """Name the constant that holds what a module exports."""
    return f"module_{module.removesuffix('.js')}"


def scoped(name: str, source: str) -> str:
    """Wrap a module in a scope of its own."""
    exports = EXPORT.findall(source)
    body = IMPORT.sub(lambda found: f"const {{{found[1]}}} = {scope_name(found[2])};\n", source)
    body = DYNAMIC.sub(r"Promise.resolve(globalThis.recsys_\1)", EXPORT.sub("", body))
    assert not LEFT.search(body), f"{name}: a form of import or export that is not known"
    returned = ", ".join(exports)
    return f"const {scope_name(name)} = (() => {{\n{body}return {{ {returned} }};\n}})();\n"


def one_script(modules: Mapping[str, str], first: str) -> str:
    """Write modules as one script."""
    return "".join(scoped(name, modules[name]) for name in in_order(modules, first))
