//! Where values are along an axis.

/// A linear or logarithmic scale.
#[derive(Clone, Copy, Debug)]
pub struct Scale {
    from: f64,
    to: f64,
    is_logarithmic: bool,
}

impl Scale {
    /// From 0 to a round figure that holds the largest value.
    pub fn linear(values: impl Iterator<Item = f64>) -> Self {
        let most = values.filter(|value| value.is_finite()).fold(0.0, f64::max);
        let most = if most > 0.0 { most } else { 1.0 };
        let step = round_step(most);
        Scale { from: 0.0, to: (most / step - 1e-9).ceil() * step, is_logarithmic: false }
    }

    /// From one value to another.
    pub fn between(from: f64, to: f64) -> Self {
        Scale { from, to, is_logarithmic: false }
    }

    /// A logarithmic one that holds all values, which are above 0.
    pub fn logarithmic(values: impl Iterator<Item = f64>) -> Self {
        let values: Vec<f64> = values.filter(|value| value.is_finite() && *value > 0.0).collect();
        let least = values.iter().copied().fold(f64::INFINITY, f64::min);
        let most = values.iter().copied().fold(0.0, f64::max);
        if values.is_empty() {
            return Scale { from: 1.0, to: 10.0, is_logarithmic: true };
        }
        let from = round_logarithms(least).take_while(|one| *one <= least).last().unwrap_or(least);
        let to = round_logarithms(most).find(|one| *one >= most && *one > from).unwrap_or(most);
        Scale { from, to, is_logarithmic: true }
    }

    /// Where a value is, from 0 to 1.
    pub fn share(&self, value: f64) -> f64 {
        let share = if self.is_logarithmic {
            (value.max(self.from) / self.from).ln() / (self.to / self.from).ln()
        } else {
            (value - self.from) / (self.to - self.from)
        };
        if share.is_finite() { share.clamp(0.0, 1.0) } else { 0.0 }
    }

    /// Values to write at the axis: three to seven.
    pub fn ticks(&self) -> Vec<f64> {
        if !self.is_logarithmic {
            let step = round_step(self.to - self.from);
            let first = (self.from / step).ceil();
            return (0..12)
                .map(|index| (first + f64::from(index)) * step)
                .take_while(|one| self.holds(*one))
                .collect();
        }
        let mut all: Vec<f64> = round_logarithms(self.from).skip_while(|one| !self.holds(*one)).collect();
        all.retain(|one| self.holds(*one));
        if all.len() > 7 { all.into_iter().filter(|one| is_power_of_ten(*one)).collect() } else { all }
    }

    fn holds(&self, value: f64) -> bool {
        value >= self.from * (1.0 - 1e-9) && value <= self.to * (1.0 + 1e-9)
    }
}

/// 1, 2 or 5 times a power of ten, so that four to eight of them fill the range.
fn round_step(range: f64) -> f64 {
    let rough = range / 4.0;
    let power = 10_f64.powf(rough.log10().floor());
    [5.0, 2.0, 1.0].into_iter().map(|one| one * power).find(|one| *one <= rough * (1.0 + 1e-9)).unwrap_or(power)
}

/// 1, 2, 5, 10, 20, ... from a power of ten below a value on, over ten decades.
fn round_logarithms(value: f64) -> impl Iterator<Item = f64> {
    let power = value.log10().floor() as i32;
    (power..power + 10).flat_map(|power| [1.0, 2.0, 5.0].map(|one| one * 10_f64.powi(power)))
}

fn is_power_of_ten(value: f64) -> bool {
    (value.log10() - value.log10().round()).abs() < 1e-9
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_linear_scale_ends_at_a_round_figure() {
        let scale = Scale::linear([3.0, 17_300.0].into_iter());
        assert_eq!(
            scale.ticks(),
            [0.0, 2_000.0, 4_000.0, 6_000.0, 8_000.0, 10_000.0, 12_000.0, 14_000.0, 16_000.0, 18_000.0]
        );
        assert_eq!((scale.share(0.0), scale.share(9_000.0), scale.share(18_000.0)), (0.0, 0.5, 1.0));
        assert_eq!(Scale::linear([f64::NAN].into_iter()).share(1.0), 1.0);
    }

    #[test]
    fn a_logarithmic_scale_holds_its_values_with_a_few_ticks() {
        let scale = Scale::logarithmic([130.0, 9_000.0].into_iter());
        assert_eq!(scale.ticks().len(), 7);
        assert!((scale.share(1_000.0) - 0.5).abs() < 1e-9);
        assert_eq!(Scale::logarithmic([1.0, 1e7].into_iter()).ticks().len(), 8);
        assert!(Scale::logarithmic(std::iter::empty()).share(0.0) == 0.0);
    }
}
