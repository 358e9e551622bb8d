"""Artefacts: the stages of a run, their configuration, command line and release."""
