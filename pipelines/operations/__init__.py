"""Commands of operators: plan of a run, status, clean-up, forgetting users."""
