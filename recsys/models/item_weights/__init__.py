"""Models that score an item by weights from the items of a history, kept as one ragged table."""
