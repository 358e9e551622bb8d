"""Hyper-parameters chosen on validation: trials here or on a Ray cluster."""
