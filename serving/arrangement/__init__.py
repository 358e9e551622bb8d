"""From the ranked list to the list that is shown."""
