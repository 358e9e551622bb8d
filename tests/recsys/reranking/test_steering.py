import numpy as np

from recsys.reranking.lists import DISLIKE_STRENGTH, dislike_pulls, steered_order


def test_an_item_moves_by_a_bounded_factor_of_its_place():
    pulls = np.zeros(40, np.float32)
    assert steered_order(pulls).tolist() == list(range(40))
    pulls[[0, 31]] = -5, 5
    order = steered_order(pulls).tolist()
    # Place 32 becomes 4, after the fourth; place 1 becomes 8, after the eighth.
    assert order[:9] == [1, 2, 3, 31, 4, 5, 6, 0, 7]
    assert sorted(order) == list(range(40))
    late = steered_order(np.array([0, 0, 1], np.float32), np.array([1, 2, 17.0]))
    assert late.tolist() == [0, 1, 2]


def test_the_nearest_disliked_item_lowers_and_an_opposite_one_does_nothing():
    vectors = np.array([[1, 0], [0, 1], [-1, 0], [0.6, 0.8]], np.float32)
    pulls = dislike_pulls(vectors, np.array([[1, 0], [0.8, 0.6]], np.float32))
    np.testing.assert_allclose(pulls, -DISLIKE_STRENGTH * np.array([1, 0.6, 0, 0.96]), rtol=1e-6)
