"""Commands of what a server lives with: its configuration, keys, events and experiments."""
