"""Items by a text: words (BM25), spellings, meanings, and how their lists merge."""
