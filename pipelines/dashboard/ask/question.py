"""What is requested of the bundles: the page's parameters as a request, and as an address."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, get_args

from pydantic import ValidationError

from pipelines.dashboard.ask.loading import Loading
from pipelines.dashboard.context import Context
from pipelines.dashboard.query import NotFoundError, Query, QueryError
from pipelines.dashboard.runs.run import Run
from pipelines.pages.document import Link
from serving.schemas import Context as RequestContext
from serving.schemas import Filter, Request

Kind = Literal["user", "session", "item", "text"]
Profiles = Literal["fast", "full", "both"]
"""By which profile bundles answer; ``both`` sets one bundle's two lists side by side."""
KINDS: Mapping[Kind, str] = {
    "user": "a user",
    "session": "a session",
    "item": "items like one",
    "text": "a search",
}
MOST_K, K = 50, 20
MAX_SESSION = 50
CHALLENGER = "kept as challenger"
NO_BUNDLES = (
    "There is no bundle below the dashboard's folders. A run releases one: recsys run --config "
    "shop.toml; or start the dashboard with --bundles at a folder of bundles"
)


@dataclass(frozen=True, kw_only=True)
class Question:
    """One request for both bundles."""

    bundles: tuple[Run, ...]
    """One or two."""
    kind: Kind
    user: str = ""
    session: tuple[str, ...] = ()
    item: str = ""
    text: str = ""
    k: int = K
    profile: Profiles = "fast"
    domain: str = ""
    category: str = ""

    @classmethod
    def of(cls, context: Context, query: Query) -> Question:
        """Read the parameters; what is given says what is meant where ``for`` does not.

        Raises:
            NotFoundError: A bundle is not there, or there is none.
            QueryError: A value is none of those allowed.
        """
        given = {"item": query.text("item"), "text": query.text("text")}
        session = query.several("session", at_most=MAX_SESSION)
        meant = next((name for name, value in given.items() if value), "")
        meant = meant or ("session" if session and not query.text("user") else "user")
        kind = query.choice("for", get_args(Kind), meant)
        return cls(
            bundles=bundles_of(context, query),
            kind=kind,  # type: ignore[arg-type]
            user=query.text("user"),
            session=session,
            item=given["item"],
            text=given["text"],
            k=query.number("k", K, least=1, most=MOST_K),
            profile=query.choice("profile", get_args(Profiles), "fast"),  # type: ignore[arg-type]
            domain=query.text("domain"),
            category=query.text("category"),
        )

    @property
    def is_complete(self) -> bool:
        """Whether there is something to request."""
        return bool({"user": "x", "session": "x", "item": self.item, "text": self.text}[self.kind])

    def request(self) -> Request:
        """Write it as the API takes it.

        Raises:
            QueryError: A value is out of what the API takes.
        """
        own: dict[str, object] = {}
        if self.kind == "item":
            own = {"surface": "similar", "item_id": self.item}
        elif self.kind == "text":
            own = {"surface": "search", "query": self.text}
        else:
            own = {"session": list(self.session)} if self.session else {}
            own |= {"user_id": self.user} if self.user and self.kind == "user" else {}
        if self.category:
            own["filter"] = Filter(categories=[self.category])
        try:
            context = RequestContext(domain=self.domain or None)
            return Request.model_validate(
                {**own, "k": self.k, "context": context, "explain": True, "dry_run": True}
            )
        except ValidationError as error:
            first = error.errors(include_url=False, include_input=False)[0]
            where = ".".join(map(str, first["loc"]))
            raise QueryError(f"{where}: {first['msg']}") from None

    def parameters(self, **changes: str | tuple[str, ...]) -> dict[str, str | tuple[str, ...]]:
        """Write it as an address, with changes; what is empty or not meant is left out."""
        all_: dict[str, str | tuple[str, ...]] = {
            "runs": tuple(one.key for one in self.bundles),
            "for": self.kind,
            "user": self.user,
            "session": self.session,
            "item": self.item,
            "text": self.text,
            "k": str(self.k) if self.k != K else "",
            "profile": self.profile if self.profile != "fast" else "",
            "domain": self.domain,
            "category": self.category,
            **changes,
        }
        unmeant = {"user": ("item", "text"), "session": ("user", "item", "text")}
        without = unmeant.get(str(all_["for"]) or self.kind, ())
        return {name: value for name, value in all_.items() if value and name not in without}

    def with_item(self, item_id: str) -> Link:
        """Lead to the list behind a click on an item."""
        session = (*self.session, item_id)[-MAX_SESSION:]
        kind = "user" if self.kind == "user" and self.user else "session"
        return Link(
            label="add to the session",
            page="ask",
            parameters=self.parameters(session=session, **{"for": kind}),
        )


def bundles_of(context: Context, query: Query) -> tuple[Run, ...]:
    """Take the bundles that are named, or what is served and its challenger.

    A run that is named alone stands beside what is served; one without a bundle leaves the choice
    open.

    Raises:
        NotFoundError: A bundle is not there, or there is none.
    """
    if keys := query.several("runs", at_most=2):
        named = [bundle_of(context, context.stores.run(key)) for key in keys]
        return tuple({one.key: one for one in named}.values())
    known = [one for one in context.stores.bundles() if one.status == "complete"]
    if not known:
        raise NotFoundError(NO_BUNDLES)
    about = None
    if run := query.text("run"):
        try:
            about = bundle_of(context, context.stores.run(run))
        except NotFoundError:
            about = None
    near = [one for one in known if about is None or one.path.parent == about.path.parent]
    served = next((one for one in near if "served" in one.tags), about or known[0])
    near = [one for one in near if one.path.parent == served.path.parent and one.key != served.key]
    waiting = [one for one in near if one.tags.get("decision") == CHALLENGER]
    if about is not None and about.key != served.key:
        waiting = [about]
    return (served, *[*waiting, *near][:1])


def bundle_of(context: Context, run: Run) -> Run:
    """Take a bundle, or the newest one that a run released.

    Raises:
        NotFoundError: The run has none.
    """
    if run.kind == "bundle":
        return run
    for bundle in context.stores.bundles():
        if bundle.made_by == run.key:
            return bundle
    raise NotFoundError(
        f"{run.name} has released no bundle that is still there, so nothing can be requested of "
        "it; choose another one"
    )


def loaded(states: Sequence[Loading]) -> list[Loading]:
    """Keep those that are in memory."""
    return [one for one in states if one.wait(0) and not one.error]
