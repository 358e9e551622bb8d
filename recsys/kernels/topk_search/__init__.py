"""Exact inner-product search in one fused pass over the items."""

GROUP = 32
"""Item rows per group: the bits of one mask word."""
