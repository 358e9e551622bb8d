"""Search by a text: what is read of items, made queries, and the weights of what is found."""
