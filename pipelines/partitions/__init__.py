"""Events that arrive as partitions by day or hour: found, checked, kept with their digests."""
