"""State since the release: events, shown lists, hidden and new items."""
