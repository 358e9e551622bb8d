"""Search by a text: texts of items, made queries, and the weights of finds."""
