"""Models that score an item by weights from the items of a history, kept as one ragged table.

model.py          the table, and how it scores: shared by all of them, and what a bundle holds
co_occurrence.py  how often two items have the same users
ease.py           linear regression in closed form (EASE), exact or by neighbourhoods
item_knn.py       BM25 and cosine with time decay
repeats.py        what a user took before
next_basket.py    what follows a basket
"""
