"""Exact inner-product search in one fused pass over the items."""
