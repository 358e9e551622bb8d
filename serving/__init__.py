"""Serving: one request is answered from one released bundle, over HTTP, in Python and in batch.

A request, in order:

1. `server/front.py` holds the connection, asks `security/` whose it is, and reads the body;
   `server/dispatch.py` gives it to a worker (`server/worker.py`), where `web/handlers.py` answers
   it. `routes.py` has every route with its schema, scope and example.
2. `Recommender.load` read the bundle that is published (`bundle/load.py`);
   `server/fleet.py` has the next one made when another is published.
3. `recommend.py` runs the stages:
   `live.py` reads what the visitor did since the release from the online store (`online/`);
   `query.py` looks up ids, history and context features;
   `exclusions.py` decides which items may be shown, and why others may not (and has cursors);
   `retrieval.py` queries each source (`sources.py`) of the surface (`surfaces.py`), merges the
   lists (`ranking.py`), and has `bundle/ranker.py` reorder the first places;
   `arrangement/` applies rules, diversity, caps and exploration (`configuration/`);
   `ranking.py` builds the items of the reply, with reasons if requested.
4. The reply (`schemas.py`) names the parts that made it and each degraded one; `log.py` logs
   one line, and the front keeps the list's record (`list_record.py`), from which
   `explanation/` explains it.

`settings.py` holds the options of both; `configuration/` reads surfaces, rules and experiments;
`web/files.py` serves the try-it page. `server/` runs all this in several processes, and `security/`
decides who may call. docs/serving.md describes the API, docs/control.md the configuration.
"""
