"""Order and choice of a list, and the items of its reply."""
