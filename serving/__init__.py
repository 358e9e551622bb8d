"""Serving: one request is answered from one released bundle, over HTTP, in Python and in batch.

A request, in order:

1. `web/app.py` routes it; `web/http.py` reads the body and checks it against `schemas.py`.
2. `loading.py` made the `Recommender` of the bundle that is published (`bundle/load.py`).
3. `recommend.py` runs the stages:
   `query.py` looks up ids, history and context features (`context.py`);
   `filters.py` compiles one mask of the items that may be shown;
   `sources.py` lists candidates from each source of the surface (`surfaces.py`);
   `ranking.py` merges the lists, and `bundle/ranker.py` reorders the first places;
   `explain.py` gives reasons, if requested.
4. The reply (`schemas.py`) names what served it and what was degraded; `log.py` logs one line.

`settings.py` holds the options of both; `web/pages.py` serves the try-it page. `server/` runs all
this in several processes, and `security/` decides who may call. docs/serving.md describes the API.
"""
