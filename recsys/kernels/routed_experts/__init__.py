"""Experts that each row visits a few of: router, order of visits, products, weighted sum."""
