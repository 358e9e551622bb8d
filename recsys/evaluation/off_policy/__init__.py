"""What another policy would have earned on a log, with how far that can be trusted."""
