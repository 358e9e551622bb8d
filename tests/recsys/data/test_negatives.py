import torch
from torch.nn import functional

from recsys.data.windows import every_item, mixed_candidates, sampled_softmax_loss


def full_softmax_loss(scores: torch.Tensor, labels: torch.Tensor, smoothing: float) -> torch.Tensor:
    """The truth: cross-entropy over items 1.., scores [B, N] by item row."""
    return functional.cross_entropy(scores[:, 1:], labels - 1, label_smoothing=smoothing)


def loss_from(
    scores: torch.Tensor, labels: torch.Tensor, num_uniform: int, counts: torch.Tensor
) -> torch.Tensor:
    candidates = mixed_candidates(labels, num_uniform, counts)
    label_scores = scores.gather(1, labels[:, None])[:, 0]
    return sampled_softmax_loss(label_scores, scores[:, candidates.rows], candidates, labels)


def test_every_item_gives_the_full_softmax_with_smoothing() -> None:
    torch.manual_seed(0)
    scores, labels = torch.randn(5, 9), torch.tensor([1, 8, 3, 3, 5])
    candidates = every_item(9)
    label_scores = scores.gather(1, labels[:, None])[:, 0]
    loss = sampled_softmax_loss(label_scores, scores[:, candidates.rows], candidates, labels, 0.2)
    torch.testing.assert_close(loss, full_softmax_loss(scores, labels, 0.2))


def test_the_corrected_sum_estimates_the_full_partition_without_bias() -> None:
    """Averaged over many batches, sum exp(score - log expected) is the sum over the catalogue."""
    torch.manual_seed(1)
    counts = torch.tensor([0, 400, 200, 100, 50, 25])
    scores = torch.tensor([0.0, 0.5, -1.0, 2.0, 0.3, 1.0])
    totals = []
    for _ in range(4000):
        labels = torch.multinomial(counts.float(), 8, replacement=True)
        candidates = mixed_candidates(labels, 6, counts)
        totals.append(torch.exp(scores[candidates.rows] - candidates.log_expected).sum())
    estimate = torch.stack(totals).mean()
    torch.testing.assert_close(estimate, torch.exp(scores[1:]).sum(), rtol=0.02, atol=0)


def test_an_accidental_hit_never_stands_against_its_own_label() -> None:
    scores = torch.tensor([[0.0, 3.0, 1.0], [0.0, 1.0, 2.0]])
    counts = torch.tensor([0, 1, 1])
    same = loss_from(scores[:1].expand(4, -1), torch.tensor([1, 1, 1, 1]), 0, counts)
    assert same == 0.0
    different = loss_from(scores, torch.tensor([1, 2]), 0, counts)
    truth = full_softmax_loss(scores, torch.tensor([1, 2]), 0.0)
    torch.testing.assert_close(different, truth)
