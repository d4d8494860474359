"""The statistics behind verdicts, each against SciPy, an exact value, or its stated coverage."""

import unittest

import numpy as np
from scipy import stats

from tokline import statistics
from tokline.samples import interval


class MedianTest(unittest.TestCase):
    def test_median_of_an_even_number_is_between_the_middle_two(self):
        self.assertEqual(statistics.median([1, 2, 3, 10]), 2.5)

    def test_interval_takes_the_ranks_of_the_binomial(self):
        # P(at most 3 of 15 coins) = 0.0176, P(at most 4) = 0.0592.
        self.assertEqual(interval(range(15)), (3.0, 11.0))
        self.assertEqual(interval(range(25)), (7.0, 17.0))

    def test_interval_of_few_samples_is_their_range(self):
        self.assertEqual(interval([1, 2, 3, 4, 5]), (1, 5))
        self.assertEqual(interval([7]), (7.0, 7.0))

    def test_interval_covers_the_median_at_least_as_often_as_stated(self):
        random = np.random.default_rng(1)
        covered = 0
        for _ in range(2000):
            low, high = interval(np.sort(random.exponential(size=21)))
            covered += low <= np.log(2) <= high
        self.assertGreaterEqual(covered, 0.94 * 2000)


class RatioIntervalTest(unittest.TestCase):
    def test_same_seed_same_interval(self):
        a, b = np.random.default_rng(2).normal(10, 0.1, (2, 15))
        self.assertEqual(statistics.ratio_interval(a, b), statistics.ratio_interval(a, b))
        one, two = statistics.bootstrap_medians(a, seed=1), statistics.bootstrap_medians(a, seed=2)
        self.assertFalse(np.array_equal(one, two))

    def test_covers_the_ratio_about_as_often_as_stated(self):
        random = np.random.default_rng(3)
        covered = 0
        for _ in range(1000):
            low, high = statistics.ratio_interval(random.normal(10, 0.2, 15), random.normal(11, 0.2, 15))
            covered += low <= 1.1 <= high
        self.assertGreaterEqual(covered, 920)
        self.assertLessEqual(covered, 990)

    def test_sides_are_resampled_independently(self):
        samples = np.linspace(10, 11, 15)
        low, high = statistics.ratio_interval(samples, samples)
        self.assertLess(low, 0.99)
        self.assertGreater(high, 1.01)


class UTest(unittest.TestCase):
    def test_agrees_with_scipy_with_and_without_ties(self):
        random = np.random.default_rng(4)
        for decimals in (8, 1):
            for shift in (-0.5, 0.0, 0.7):
                a, b = (np.round(random.normal(0, 1, 15), decimals), np.round(random.normal(shift, 1, 21), decimals))
                larger, smaller = statistics.u_test(a, b)
                for alternative, p in (("greater", larger), ("less", smaller)):
                    expected = stats.mannwhitneyu(b, a, alternative=alternative, method="asymptotic").pvalue
                    self.assertAlmostEqual(p, expected, places=12)

    def test_small_samples_are_exact(self):
        self.assertAlmostEqual(statistics.u_test([1, 2, 3, 4, 5], [6, 7, 8, 9, 10])[0], 1 / 252)
        self.assertAlmostEqual(statistics.smallest_p([(5, 5)]), 1 / 252)

    def test_equal_samples_are_no_evidence(self):
        self.assertEqual(statistics.u_test([2.0] * 15, [2.0] * 15), (1.0, 1.0))

    def test_a_round_of_many_samples_does_not_decide_alone(self):
        random = np.random.default_rng(6)
        pairs = [(random.normal(1, 0.01, 15), random.normal(1.2, 0.01, 15)) for _ in range(4)]
        disturbed = (random.normal(1.3, 0.1, 1035), random.normal(1.2, 0.01, 15))
        self.assertLess(statistics.stratified_u_test(pairs + [disturbed])[0], 1e-6)

    def test_drift_between_rounds_does_not_hide_a_difference_within_them(self):
        random = np.random.default_rng(5)
        pairs = [(random.normal(level, 0.02, 15), random.normal(level + 0.03, 0.02, 15)) for level in (1, 2, 3, 4, 5)]
        pooled = statistics.u_test(*(np.concatenate(side) for side in zip(*pairs)))[0]
        self.assertGreater(pooled, 0.01)
        self.assertLess(statistics.stratified_u_test(pairs)[0], 1e-6)

    def test_smallest_p_is_that_of_samples_fully_apart(self):
        apart = [(np.arange(15.0), np.arange(15.0) + 100)] * 5
        self.assertAlmostEqual(statistics.smallest_p([(15, 15)] * 5), statistics.stratified_u_test(apart)[0])


class HolmTest(unittest.TestCase):
    def test_known_values_in_the_order_given(self):
        np.testing.assert_allclose(statistics.holm([0.01, 0.04, 0.03, 0.005]), [0.03, 0.06, 0.06, 0.02])
        np.testing.assert_allclose(statistics.holm([0.6, 0.9]), [1.0, 1.0])
        self.assertEqual(len(statistics.holm([])), 0)

    def test_of_many_true_nulls_a_family_is_rejected_as_rarely_as_alpha(self):
        random = np.random.default_rng(6)
        rejected = sum(statistics.holm(random.random(230)).min() <= 0.01 for _ in range(4000))
        self.assertLessEqual(rejected, 0.015 * 4000)


if __name__ == "__main__":
    unittest.main()
