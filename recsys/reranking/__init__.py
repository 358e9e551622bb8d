"""One ranked list in, the shown list out: diversity, caps, exploration."""
