"""Pooled and unpooled lookups in many embedding tables, with the optimizer in the backward."""
