"""Commands of operators: status, clean-up, forgetting users."""
