"""Hyper-parameters chosen on validation."""
