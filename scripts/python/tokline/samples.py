"""The statistics of a row's samples, as in harness/measure/timing.h. Standard library only."""

import math
from functools import cache


def middle(ordered):
    """The median of sorted values, of which there is at least one."""
    return (ordered[(len(ordered) - 1) // 2] + ordered[len(ordered) // 2]) / 2


@cache
def interval_rank(count):
    """The rank (from 0) of the order statistic below which the median is with a probability of at most 2.5 %."""
    missed, rank = 0.0, -1
    for heads in range(count // 2):
        missed += math.comb(count, heads) / 2**count
        if missed > 0.025:
            break
        rank = heads
    return max(rank, 0)


def interval(ordered):
    """(low, high): the 95 % interval of the median by order statistics of sorted values; the extremes if there
    are too few."""
    rank = interval_rank(len(ordered))
    return ordered[rank], ordered[-1 - rank]
