"""How far apart two sets of logits are: the measures in golden files and parity records."""

import itertools


def relative_l2(logits, expected):
    """||logits - expected|| / ||expected|| over all rows together, computed in double."""
    expected = expected.double()
    return ((logits.double() - expected).norm() / expected.norm()).item()


def top1_agreement(logits, expected):
    """The share of rows whose largest logit is at the same token."""
    return (logits.argmax(-1) == expected.argmax(-1)).double().mean().item()


def common_prefix(tokens, expected):
    """The number of leading tokens that are equal."""
    pairs = zip(tokens, expected)
    return sum(1 for _ in itertools.takewhile(lambda pair: pair[0] == pair[1], pairs))


def margins_over_std(logits):
    """The distance of the largest logit from the second, row by row, in units of the row's std."""
    top = logits.double().topk(2, dim=-1).values
    return (top[..., 0] - top[..., 1]) / logits.double().std(dim=-1)
