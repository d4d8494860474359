"""The statistics behind verdicts: medians with intervals, ratios, the U test, Holm's correction."""

import math
from functools import lru_cache

import numpy as np

RESAMPLES = 2000


def median(values):
    return float(np.median(np.asarray(values, dtype=float)))


@lru_cache(maxsize=64)
def _resampled_positions(count, seed):
    """Positions, in sorted samples, of the two middle samples of each bootstrap resample."""
    drawn = np.sort(np.random.default_rng([seed, count]).integers(count, size=(RESAMPLES, count)), axis=1)
    return drawn[:, (count - 1) // 2].copy(), drawn[:, count // 2].copy()


def bootstrap_medians(samples, seed):
    """The medians of RESAMPLES resamples. Only the middle positions are drawn, which is exact and quick."""
    ordered = np.sort(np.asarray(samples, dtype=float))
    low, high = _resampled_positions(len(ordered), seed)
    return (ordered[low] + ordered[high]) / 2


def ratio_interval(a, b):
    """(low, high), at 95 %, of median(b) / median(a): bootstrap percentiles, both sides resampled."""
    ratios = bootstrap_medians(b, seed=3) / bootstrap_medians(a, seed=2)
    low, high = np.percentile(ratios, [2.5, 97.5])
    return float(low), float(high)


def u_moments(a, b):
    """Mann-Whitney U of b over a (pairs in which b is larger, ties a half), its mean and variance under
    equality, corrected for ties."""
    a, b = np.sort(np.asarray(a, dtype=float)), np.asarray(b, dtype=float)
    below = np.searchsorted(a, b, side="left")
    up_to = np.searchsorted(a, b, side="right")
    u = float((below + up_to).sum()) / 2
    n, m = len(a), len(b)
    total = n + m
    equal = np.unique(np.concatenate((a, b)), return_counts=True)[1].astype(float)
    ties = float((equal**3 - equal).sum())
    variance = n * m / 12 * (total + 1 - ties / (total * (total - 1))) if total > 1 else 0.0
    return u, n * m / 2, variance


def u_test(a, b):
    """One-sided p values (that b is not larger than a, that it is not smaller): exact for small samples."""
    if min(len(a), len(b)) > 8:
        return stratified_u_test([(a, b)])
    from scipy.stats import mannwhitneyu  # SciPy takes half a second to import; most rows do without

    return (
        float(mannwhitneyu(b, a, alternative="greater").pvalue), float(mannwhitneyu(b, a, alternative="less").pvalue),)


def stratified_u_test(pairs):
    """One-sided p values (that b is not larger than a, that it is not smaller) within each round: van Elteren's test,
    in which no round decides alone because it has many samples; normal approximation, corrected for continuity."""
    excess = variance = 0.0
    for a, b in pairs:
        u, mean, part = u_moments(a, b)
        weight = _weight(len(a), len(b))
        excess += weight * (u - mean)
        variance += weight**2 * part
    if variance == 0:  # every sample is the same
        return 1.0, 1.0
    step = max(_weight(len(a), len(b)) for a, b in pairs) / 2
    return _normal_tail(excess - step, variance), _normal_tail(-excess - step, variance)


def _weight(a_count, b_count):
    """Of a round with these counts of samples, in van Elteren's test."""
    return 1 / (a_count + b_count + 1)


def _normal_tail(excess, variance):
    return 0.5 * math.erfc(excess / math.sqrt(2 * variance))


def smallest_p(counts):
    """The least p that samples of these (a, b) counts can give in u_test or stratified_u_test."""
    if len(counts) == 1 and min(counts[0]) <= 8:
        return 1 / math.comb(sum(counts[0]), counts[0][0])
    apart = [(np.arange(n), n + np.arange(m)) for n, m in counts]
    return stratified_u_test(apart)[0]


def holm(p_values):
    """Holm's adjusted p values, in the order given. If every p of at most alpha is rejected, the probability of any
    wrong rejection among all rows is at most alpha."""
    p_values = np.asarray(p_values, dtype=float)
    order = np.argsort(p_values, kind="stable")
    scaled = p_values[order] * np.arange(len(p_values), 0, -1)
    adjusted = np.empty_like(scaled)
    adjusted[order] = np.minimum(np.maximum.accumulate(scaled), 1.0) if len(scaled) else scaled
    return adjusted


def geometric_mean(ratios):
    return float(np.exp(np.mean(np.log(np.asarray(ratios, dtype=float)))))
