"""What operators look at and clean up: plans of runs, status, bundles that nobody needs."""
