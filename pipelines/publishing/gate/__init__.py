"""Checks on a bundle as it was written: what it holds, what it lists, what it was made from."""
