"""Value of another policy on a log, with its uncertainty."""
