"""A day's increment: served models continued on new events."""
