"""Served lists computed once more from the artefacts and the events as of their moment.

log          the served lists and the events, and the store as it was when a list was made
compare      differences between a record and its recomputation
recompute    all of it, and parity.json
"""
