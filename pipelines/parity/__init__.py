"""Served lists computed once more from the artefacts and the events as of their moment.

log          the served lists and the events, of a store or an export
past         the store as it was when a list was made
batch        histories and features of many requests by the batch definitions, in Polars
compare      what differs between a record and its recomputation, and which code computes it
run          all of it, and parity.json
"""
