"""The language of a request's filter, and how it becomes a mask of item rows."""
