"""Events by partitions: files to records, ids to ranks, records to ranges of users."""
