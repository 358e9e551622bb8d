"""The licence of every package that the platform brings in, read from installed metadata.

    python -m tests.release.licences        writes docs/licences.md

A licence that cannot be read, or that does not go with Apache-2.0, is an error that names the
package. Packages that the locks for CPUs lack stand in ``READ_FROM_INDEX``, as their metadata on
the package index has them.
"""

from __future__ import annotations

import re
import tomllib
from functools import cache
from importlib.metadata import Distribution, PackageNotFoundError, distribution
from pathlib import Path

from license_expression import Licensing, get_spdx_licensing
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "licences.md"
OWN = "recsys-platform"
NVIDIA = "LicenseRef-NVIDIA-Proprietary"
# Attribution alone, or copyleft by file (MPL): a package that is used as it is stays apart.
PERMITTED = {
    "0BSD", "Apache-2.0", "BSD-2-Clause", "BSD-3-Clause", "BSL-1.0", "CC0-1.0", "CNRI-Python",
    "ISC", "MIT", "MIT-0", "MIT-CMU", "MPL-2.0", "PSF-2.0", "Zlib",
    "Apache-2.0 WITH LLVM-exception", "LicenseRef-matplotlib",
}  # fmt: skip
# The metadata's free text and classifiers, in lower case, as SPDX has them.
ALIASES = {
    "3-clause bsd license": "BSD-3-Clause",
    "apache": "Apache-2.0",
    "apache 2.0": "Apache-2.0",
    "apache 2.0 license": "Apache-2.0",
    "apache license 2.0": "Apache-2.0",
    "apache license, version 2.0": "Apache-2.0",
    "apache software license": "Apache-2.0",
    "bsd-3": "BSD-3-Clause",
    "isc license": "ISC",
    "mit license": "MIT",
    "mit licensed, as found in the license file": "MIT",
    "mozilla public license 2.0 (mpl 2.0)": "MPL-2.0",
    "python software foundation license": "PSF-2.0",
}
# Metadata that says less than the licence file, or another thing.
READ_FROM_FILE = {
    "huey": "MIT",
    "matplotlib": "LicenseRef-matplotlib",
    "python-dateutil": "Apache-2.0 OR BSD-3-Clause",
    "skops": "MIT",
    "uvloop": "MIT OR Apache-2.0",
}
READ_FROM_INDEX = {
    "cuda-bindings": "Apache-2.0",
    "cuda-pathfinder": "Apache-2.0",
    "cuda-toolkit": NVIDIA,
    "faiss-gpu": "MIT",
    "fbgemm-gpu": "BSD-3-Clause",
    "gcsfs": "BSD-3-Clause",
    "nvidia-nvtx": "Apache-2.0",
    "triton": "MIT",
    "vector-quantize-pytorch": "MIT",
}
HEAD = """# Licences

The platform is under [Apache-2.0](../LICENSE). What it brings in, by SPDX name, as written by
`python -m tests.release.licences` from the metadata of the packages that `requirements/cpu.txt` and
the extras install; a test holds the table to them, and refuses a package whose licence is unknown
or does not go with ours. Versions are in the locks and the SBOM that `make release-check` writes.
"""
GPU_HEAD = f"""
## On GPUs alone

What `requirements/gpu.txt` adds. NVIDIA's libraries (`{NVIDIA}`) are not free
software: installing them accepts [NVIDIA's terms](https://docs.nvidia.com/cuda/eula/index.html),
and an image that holds them may be passed on under those alone.
"""


class UnknownLicenceError(ValueError):
    """A package's metadata names no licence that is known."""


@cache
def spdx() -> Licensing:
    """Return the parser of SPDX expressions."""
    return get_spdx_licensing()


def locked(lock: str) -> dict[str, str]:
    """Return name and version of each package of ``requirements/<lock>.txt``."""
    text = (ROOT / "requirements" / f"{lock}.txt").read_text(encoding="utf-8")
    return dict(re.findall(r"^([\w.-]+)==([^;\s]+)", text, re.MULTILINE))


def of_pyproject() -> list[Requirement]:
    """Return what the package requires, with every extra."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    lists = [project["dependencies"], *project["optional-dependencies"].values()]
    found = [Requirement(line) for lines in lists for line in lines]
    return [one for one in found if canonicalize_name(one.name) != OWN]


def brought_in(roots: list[Requirement]) -> set[str]:
    """Follow requirements through installed metadata; what is not installed ends its branch."""
    found: set[str] = set()
    waiting = [(canonicalize_name(root.name), frozenset(root.extras)) for root in roots]
    seen = set(waiting)
    while waiting:
        name, extras = waiting.pop()
        try:
            lines = distribution(name).requires or []
        except PackageNotFoundError:
            continue
        found.add(name)
        for line in lines:
            one = Requirement(line)
            wanted = ("", *extras)
            if one.marker and not any(one.marker.evaluate({"extra": extra}) for extra in wanted):
                continue
            step = (canonicalize_name(one.name), frozenset(one.extras))
            if step not in seen:
                seen.add(step)
                waiting.append(step)
    return found


def licence_text(package: Distribution) -> str:
    """Return the text of the licence files that a package comes with."""
    files = [
        one for one in package.files or () if re.search("licen[cs]e|copying", one.name.lower())
    ]
    paths = [Path(str(package.locate_file(one))) for one in files]
    return "\n".join(one.read_text(errors="replace") for one in paths if one.is_file())


def named_by(package: Distribution) -> list[str]:
    """Return what the metadata says, the most exact first."""
    metadata = package.metadata
    classifiers = [one for one in metadata.get_all("Classifier") or () if one.startswith("License")]
    last = [one.split("::")[-1].strip() for one in classifiers]
    short = (metadata.get("License") or "").strip()
    return [metadata.get("License-Expression") or "", short if "\n" not in short else "", *last]


def licence_of(package: Distribution) -> str:
    """Return a package's licence as an SPDX expression.

    Raises:
        UnknownLicenceError: Its metadata and its licence file say nothing that is known.
    """
    name = canonicalize_name(package.metadata["Name"])
    if name in READ_FROM_FILE:
        return READ_FROM_FILE[name]
    named = named_by(package)
    for text in named:
        expression = ALIASES.get(text.lower(), text)
        if expression and not spdx().validate(expression).errors:
            return str(spdx().parse(expression))
    if any("bsd" in text.lower() for text in named):
        text = licence_text(package).lower()
        if "redistribution and use in source and binary forms" in text:
            has_third = re.search(r"neither\s+the\s+names?\s|names?\s+of\s+(its|any)\s", text)
            return "BSD-3-Clause" if has_third else "BSD-2-Clause"
        return "BSD-3-Clause OR BSD-2-Clause"
    said = ", ".join(filter(None, named)) or "nothing"
    raise UnknownLicenceError(
        f"{name} {package.version}: no known licence in its metadata ({said}); read its licence "
        "file and add it to READ_FROM_FILE in tests/release/licences.py, or do without the package"
    )


def is_permitted(expression: str) -> bool:
    """Whether one may depend on a package of this licence."""

    def permitted(node: object) -> bool:
        operator, arguments = getattr(node, "operator", ""), getattr(node, "args", ())
        if operator.strip() == "OR":
            return any(permitted(one) for one in arguments)
        if operator.strip() == "AND":
            return all(permitted(one) for one in arguments)
        return str(node) in PERMITTED

    return permitted(Licensing().parse(expression))


def of_cpu() -> dict[str, str]:
    """Return the licence of each package of the CPU lock and of the extras.

    Raises:
        UnknownLicenceError: One is not installed though it is locked, or its licence is unknown.
    """
    known = {*locked("cpu"), *locked("dev")}
    extras = known & brought_in(of_pyproject())
    direct = {canonicalize_name(one.name) for one in of_pyproject()}
    other = direct & READ_FROM_INDEX.keys() - known - locked("gpu").keys()
    found = {}
    for name in {*locked("cpu"), *extras}:
        try:
            found[name] = licence_of(distribution(name))
        except PackageNotFoundError:
            raise UnknownLicenceError(f"{name} is locked but not installed: make install") from None
    found |= {name: READ_FROM_INDEX[name] for name in other}
    return dict(sorted(found.items()))


def of_gpu() -> dict[str, str]:
    """Return the licence of each package that the GPU lock alone has."""
    names = sorted(locked("gpu").keys() - locked("cpu").keys())
    default = {name: NVIDIA for name in names if name.startswith("nvidia-")}
    found = {
        **default,
        **{name: READ_FROM_INDEX[name] for name in names if name in READ_FROM_INDEX},
    }
    if unknown := [name for name in names if name not in found]:
        raise UnknownLicenceError(
            f"no licence is known of {', '.join(unknown)}; add them to READ_FROM_INDEX"
        )
    return dict(sorted(found.items()))


def refused(licences: dict[str, str]) -> dict[str, str]:
    """Return the packages that one may not depend on."""
    return {name: text for name, text in licences.items() if not is_permitted(text)}


def table(licences: dict[str, str]) -> str:
    """Lay packages out by licence, the licence of most packages first."""
    by_licence: dict[str, list[str]] = {}
    for name, text in licences.items():
        by_licence.setdefault(text, []).append(name)
    order = sorted(by_licence, key=lambda text: (-len(by_licence[text]), text))
    rows = [f"| {text} | {', '.join(by_licence[text])} |" for text in order]
    return "\n".join(["", "| licence | packages |", "| --- | --- |", *rows]) + "\n"


def page() -> str:
    """Write the page of all licences."""
    return HEAD + table(of_cpu()) + GPU_HEAD + table(of_gpu())


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
