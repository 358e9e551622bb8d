"""List what of a configuration does not fit a bundle."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from typing import TYPE_CHECKING

import numpy as np

from recsys.data.filters import FilterError, parse
from serving.bundle.manifest import bundle_directory
from serving.configuration.file import ServingConfiguration, list_variants
from serving.configuration.rules import Rule
from serving.surfaces import BUILT_IN, Surface, suggest

if TYPE_CHECKING:
    from serving.bundle.load import Bundle

CATEGORY = "category"
MAX_NAMED = 5


def unfit(
    configuration: ServingConfiguration, bundle: Bundle, sources: Collection[str]
) -> Iterator[str]:
    """List items, properties and sources of a configuration that a bundle does not have.

    Args:
        sources: Those that the bundle's profile has.
    """
    for words, surface in list_variants(configuration.surfaces, configuration.experiments):
        yield from _unfit_surface(words, surface, bundle, sources)
    for rule in configuration.rules:
        yield from _unfit_rule(rule, bundle)
    yield from missing_bundles(configuration, bundle)


def missing_bundles(configuration: ServingConfiguration, bundle: Bundle) -> Iterator[str]:
    """List the bundles that arms name and that do not lie beside this one."""
    folder = bundle.directory.parent
    for version in sorted(configuration.bundles - {bundle.version}):
        if not bundle_directory(folder, version).is_dir():
            there = ", ".join(sorted(one.name[7:] for one in folder.glob("bundle-*")))
            yield f"an arm names bundle {version}, which {folder} does not have; it has {there}"


def _unfit_surface(
    words: str, surface: Surface, bundle: Bundle, sources: Collection[str]
) -> Iterator[str]:
    usual = BUILT_IN[surface.kind].weights
    missing = [name for name in surface.weights if name not in sources and name != surface.kind]
    # What every surface of a kind names is there for whichever bundle has it.
    if missing and surface.weights != usual:
        yield (
            f"{words} has sources {', '.join(missing)}, and bundle {bundle.version} has "
            f"{', '.join(sorted(sources))}"
        )
    named = {f"a cap of {name}": name for name in surface.caps}
    known = [CATEGORY, *bundle.properties.columns]
    for what, name in named.items():
        if name not in known:
            hint = suggest(name, known)
            yield f"{words} has {what}, which items of the bundle do not have; {hint}"
    if surface.filter is not None:
        yield from _unfit_expression(f"the filter of {words}", surface.filter, bundle)


def _unfit_rule(rule: Rule, bundle: Bundle) -> Iterator[str]:
    missing = [item_id for item_id in rule.items if bundle.catalogue.row_of(item_id) is None]
    if missing:
        more = f" and {len(missing) - MAX_NAMED} more" if len(missing) > MAX_NAMED else ""
        yield (
            f"rule {rule.name!r} names items that bundle {bundle.version} does not have: "
            f"{', '.join(missing[:MAX_NAMED])}{more}"
        )
    if rule.where is not None:
        yield from _unfit_expression(f"rule {rule.name!r}", rule.where, bundle)


def _unfit_expression(words: str, text: str, bundle: Bundle) -> Iterator[str]:
    from serving.filtering.compile import matching

    try:
        if not np.any(matching(parse(text), bundle)):
            yield f"{words} holds for no item of bundle {bundle.version}: {text}"
    except FilterError as error:
        yield f"{words}: {text}: {error}"
