"""Items by a text: words (BM25), a text tower that reads spellings, and how their lists merge."""
