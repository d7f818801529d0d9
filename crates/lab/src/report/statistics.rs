//! Medians with their spread, and ratios with confidence intervals.

use std::collections::BTreeMap;

use serde::Serialize;

/// Fewer rounds say nothing about how far chance goes.
pub const ROUNDS_FOR_INTERVAL: usize = 3;

/// Two-sided 95 % quantiles of Student's t, for 1 to 30 degrees of freedom. More degrees take the
/// last, which makes their intervals a little wider than they must be.
const STUDENT_T: [f64; 30] = [
    12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228, 2.201, 2.179, 2.160, 2.145, 2.131,
    2.120, 2.110, 2.101, 2.093, 2.086, 2.080, 2.074, 2.069, 2.064, 2.060, 2.056, 2.052, 2.048, 2.045, 2.042,
];

/// Figures of one cell by round.
pub type ByRound = BTreeMap<u32, f64>;

/// The middle of several figures, and how far apart they are.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Spread {
    /// Half are above it and half below.
    pub median: f64,
    /// The smallest.
    pub min: f64,
    /// The largest.
    pub max: f64,
    /// How many there are.
    pub count: usize,
}

impl Spread {
    /// Returns the statistics of at least one figure.
    pub fn of(figures: impl IntoIterator<Item = f64>) -> Option<Self> {
        let mut sorted: Vec<f64> = figures.into_iter().filter(|figure| figure.is_finite()).collect();
        sorted.sort_by(f64::total_cmp);
        let (count, middle) = (sorted.len(), sorted.len() / 2);
        let (min, max) = (*sorted.first()?, *sorted.last()?);
        let median =
            if count % 2 == 1 { sorted[middle] } else { f64::midpoint(sorted[middle - 1], sorted[middle]) };
        Some(Spread { median, min, max, count })
    }

    /// From the smallest to the largest, in percent of the median.
    pub fn percent(&self) -> f64 {
        if self.median > 0.0 { (self.max - self.min) * 100.0 / self.median } else { 0.0 }
    }
}

/// Where the true ratio is with a confidence of 95 %.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Interval {
    /// Its lower end.
    pub low: f64,
    /// Its upper end.
    pub high: f64,
}

/// How two systems, or two states of one, compare.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Ratio {
    /// The geometric mean of the ratios.
    pub value: f64,
    /// None with fewer than `ROUNDS_FOR_INTERVAL` rounds.
    pub interval: Option<Interval>,
    /// Rounds that it is made of; the fewer of the two if rounds are not compared one by one.
    pub rounds: usize,
}

impl Ratio {
    /// Compares two cells whose runs alternated: each round's two runs were close in time, so a disturbance
    /// affected both, and their ratio holds when the machine was slower in one round than in the next. Rounds that
    /// one of them lacks do not count.
    pub fn within_rounds(baseline: &ByRound, other: &ByRound) -> Option<Self> {
        let logs: Vec<f64> = baseline
            .iter()
            .filter_map(|(round, below)| Some((other.get(round)? / below).ln()))
            .filter(|log| log.is_finite())
            .collect();
        let logs = Sample::of(&logs)?;
        let degrees = logs.count.saturating_sub(1);
        Some(Ratio::of(logs.mean, logs.variance / logs.count as f64, degrees, logs.count))
    }

    /// Compares two cells that were measured apart, by their means (Welch's interval, with their own variances).
    pub fn of_apart(baseline: &ByRound, other: &ByRound) -> Option<Self> {
        let logs = |figures: &ByRound| -> Vec<f64> {
            figures.values().map(|figure| figure.ln()).filter(|log| log.is_finite()).collect()
        };
        let (below, above) = (Sample::of(&logs(baseline))?, Sample::of(&logs(other))?);
        let rounds = below.count.min(above.count);
        let (one, two) = (below.variance / below.count as f64, above.variance / above.count as f64);
        let squares = |sample: &Sample, share: f64| share * share / (sample.count.saturating_sub(1).max(1)) as f64;
        let degrees = (one + two).powi(2) / (squares(&below, one) + squares(&above, two));
        let fewest = rounds.saturating_sub(1);
        let degrees = if degrees.is_finite() { degrees as usize } else { fewest };
        Some(Ratio::of(above.mean - below.mean, one + two, degrees.max(fewest), rounds))
    }

    fn of(mean_log: f64, variance_of_mean: f64, degrees: usize, rounds: usize) -> Self {
        let interval = (rounds >= ROUNDS_FOR_INTERVAL).then(|| {
            let half = STUDENT_T[degrees.clamp(1, STUDENT_T.len()) - 1] * variance_of_mean.sqrt();
            Interval { low: (mean_log - half).exp(), high: (mean_log + half).exp() }
        });
        Ratio { value: mean_log.exp(), interval, rounds }
    }

    /// Returns true for a difference beyond chance; none without an interval.
    pub fn is_different(&self) -> Option<bool> {
        self.interval.map(|interval| interval.low > 1.0 || interval.high < 1.0)
    }
}

/// The middle of ratios: a half and a double make one.
pub fn geometric_mean(ratios: &[f64]) -> Option<f64> {
    let logs: Vec<f64> = ratios.iter().map(|ratio| ratio.ln()).filter(|log| log.is_finite()).collect();
    Sample::of(&logs).map(|sample| sample.mean.exp())
}

struct Sample {
    mean: f64,
    variance: f64,
    count: usize,
}

impl Sample {
    fn of(figures: &[f64]) -> Option<Self> {
        let count = figures.len();
        if count == 0 {
            return None;
        }
        let mean = figures.iter().sum::<f64>() / count as f64;
        let squares: f64 = figures.iter().map(|figure| (figure - mean).powi(2)).sum();
        Some(Sample { mean, variance: squares / (count.max(2) - 1) as f64, count })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn by_round(figures: &[f64]) -> ByRound {
        (0..).zip(figures.iter().copied()).collect()
    }

    fn near(one: f64, other: f64) {
        assert!((one - other).abs() < 1e-4, "{one} is not {other}");
    }

    #[test]
    fn the_median_of_an_even_number_is_between() {
        let spread = Spread::of([30.0, 10.0, 20.0, 40.0]).unwrap();
        assert_eq!(spread, Spread { median: 25.0, min: 10.0, max: 40.0, count: 4 });
        near(spread.percent(), 120.0);
        assert_eq!(Spread::of([3.0, 1.0, 2.0]).unwrap().median, 2.0);
        assert_eq!(Spread::of([f64::NAN]), None);
    }

    #[test]
    fn a_ratio_within_rounds_is_not_disturbed_by_slow_rounds() {
        let ratio =
            Ratio::within_rounds(&by_round(&[100.0, 10.0, 1000.0]), &by_round(&[50.0, 5.0, 500.0])).unwrap();
        near(ratio.value, 0.5);
        let interval = ratio.interval.unwrap();
        near(interval.low, 0.5);
        near(interval.high, 0.5);
        assert_eq!(ratio.is_different(), Some(true));
    }

    /// In-round ratios 0.8, 1.0, 1.25: logs -0.22314, 0, 0.22314, so mean 0, standard deviation
    /// 0.22314, of the mean 0.12883; times 4.303 is 0.55436.
    #[test]
    fn the_interval_is_students() {
        let ratio = Ratio::within_rounds(&by_round(&[10.0, 10.0, 10.0]), &by_round(&[8.0, 10.0, 12.5])).unwrap();
        near(ratio.value, 1.0);
        let interval = ratio.interval.unwrap();
        near(interval.low, (-0.55436_f64).exp());
        near(interval.high, 0.55436_f64.exp());
        assert_eq!(ratio.is_different(), Some(false));
    }

    #[test]
    fn two_rounds_have_no_interval_and_missing_rounds_do_not_count() {
        let other = ByRound::from([(1, 5.0), (2, 20.0), (7, 1.0)]);
        let ratio = Ratio::within_rounds(&by_round(&[10.0, 10.0, 10.0]), &other).unwrap();
        assert_eq!((ratio.rounds, ratio.interval, ratio.is_different()), (2, None, None));
        near(ratio.value, 1.0);
        assert!(Ratio::within_rounds(&by_round(&[]), &other).is_none());
        assert!(Ratio::within_rounds(&by_round(&[0.0, 0.0, 0.0]), &other).is_none(), "no division by zero");
    }

    /// Both samples have logs of variance 0.04980 (-0.22314, 0, 0.22314 around their means), so
    /// Welch has 4 degrees of freedom: 2.776 * sqrt(2 * 0.04979 / 3) = 0.50577.
    #[test]
    fn cells_that_were_measured_apart_have_welchs_interval() {
        let ratio = Ratio::of_apart(&by_round(&[8.0, 10.0, 12.5]), &by_round(&[20.0, 25.0, 16.0])).unwrap();
        near(ratio.value, 2.0);
        let interval = ratio.interval.unwrap();
        near(interval.low, 2.0 * (-0.50577_f64).exp());
        near(interval.high, 2.0 * 0.50577_f64.exp());
        let same = Ratio::of_apart(&by_round(&[5.0; 3]), &by_round(&[5.0; 3])).unwrap();
        assert_eq!(same.is_different(), Some(false));
    }

    #[test]
    fn a_half_and_a_double_are_one() {
        near(geometric_mean(&[0.5, 2.0]).unwrap(), 1.0);
        assert_eq!(geometric_mean(&[]), None);
    }
}
