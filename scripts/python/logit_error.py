"""How far two sets of logits are apart: the measures that golden files and parity records quote."""


def relative_l2(logits, expected):
    """||logits - expected|| / ||expected|| over all rows together, computed in double."""
    expected = expected.double()
    return ((logits.double() - expected).norm() / expected.norm()).item()


def top1_agreement(logits, expected):
    """Share of rows whose largest logit is at the same token."""
    return (logits.argmax(-1) == expected.argmax(-1)).double().mean().item()


def common_prefix(tokens, expected):
    """Number of leading tokens that are equal."""
    length = 0
    for token, other in zip(tokens, expected):
        if token != other:
            break
        length += 1
    return length


def margins_over_std(logits):
    """Distance of the largest logit to the second, row by row, in units of the row's std."""
    top = logits.double().topk(2, dim=-1).values
    return (top[..., 0] - top[..., 1]) / logits.double().std(dim=-1)
