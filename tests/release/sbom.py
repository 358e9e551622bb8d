"""The software bill of materials (CycloneDX): packages, versions, licences and who needs whom."""

from __future__ import annotations

import tomllib
from importlib.metadata import distribution
from pathlib import Path

from cyclonedx.contrib.this.builders import this_component
from cyclonedx.model.bom import Bom
from cyclonedx.model.component import Component, ComponentType
from cyclonedx.model.license import LicenseExpression
from cyclonedx.output.json import JsonV1Dot6
from packageurl import PackageURL
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from tests.release.licences import OWN, ROOT, licence_of, locked


def component(name: str, version: str, licence: str, kind: ComponentType) -> Component:
    """Describe one package of the index."""
    url = PackageURL("pypi", None, name, version)
    return Component(
        name=name,
        version=version,
        type=kind,
        purl=url,
        bom_ref=str(url),
        licenses=[LicenseExpression(licence)],
    )


def required_by(name: str) -> set[str]:
    """Return what an installed package requires here, without extras."""
    found = [Requirement(line) for line in distribution(name).requires or ()]
    here = [one for one in found if not one.marker or one.marker.evaluate({"extra": ""})]
    return {canonicalize_name(one.name) for one in here}


def make_bom() -> Bom:
    """List the packages of the CPU lock around the platform's own."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    bom = Bom()
    bom.metadata.tools.components.add(this_component())
    own = component(OWN, project["version"], project["license"], ComponentType.APPLICATION)
    bom.metadata.component = own
    parts = {
        name: component(name, version, licence_of(distribution(name)), ComponentType.LIBRARY)
        for name, version in locked("cpu").items()
    }
    bom.components.update(parts.values())
    direct = {canonicalize_name(Requirement(line).name) for line in project["dependencies"]}
    bom.register_dependency(own, [parts[name] for name in sorted(direct & parts.keys())])
    for name, part in parts.items():
        needed = required_by(name) & parts.keys()
        bom.register_dependency(part, [parts[other] for other in sorted(needed)])
    return bom


def write(path: Path) -> int:
    """Write the bill; return the number of packages."""
    bom = make_bom()
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(JsonV1Dot6(bom).output_as_string(indent=2), encoding="utf-8")
    return len(bom.components)
