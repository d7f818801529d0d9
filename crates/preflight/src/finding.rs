//! The result of a check, and its severity.

use std::collections::BTreeMap;

use serde::Serialize;

/// How bad a finding is, from good to bad.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Verdict {
    /// As it should be.
    Ok,
    /// The host does not show it, as virtual machines often do not; nothing is known.
    NotVisible,
    /// It works; it can be better.
    Advice,
    /// It works, at a price that is noticed.
    Warning,
    /// Atoll should not be deployed like this.
    Problem,
}

/// One thing that was looked at.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Finding {
    /// Name of the check, such as `cpu.governor`.
    pub check: &'static str,
    /// Which one of several, such as a disk or a peer.
    pub subject: Option<String>,
    /// How bad it is.
    pub verdict: Verdict,
    /// The result, with units.
    pub found: String,
    /// The figures of `found`, by names that end in their units.
    pub figures: BTreeMap<&'static str, f64>,
    /// Its meaning for Atoll.
    pub meaning: String,
    /// How to fix it.
    pub fix: Option<String>,
}

impl Finding {
    /// A finding without subject, figures and fix.
    pub fn new(
        check: &'static str,
        verdict: Verdict,
        found: impl Into<String>,
        meaning: impl Into<String>,
    ) -> Self {
        Finding {
            check,
            subject: None,
            verdict,
            found: found.into(),
            figures: BTreeMap::new(),
            meaning: meaning.into(),
            fix: None,
        }
    }

    /// Returns a finding about a value that the host does not show.
    pub fn not_visible(check: &'static str, meaning: impl Into<String>) -> Self {
        Finding::new(check, Verdict::NotVisible, "not visible here (virtual machine?)", meaning)
    }

    /// Names the one of several that was looked at.
    pub fn on(self, subject: impl Into<String>) -> Self {
        Finding { subject: Some(subject.into()), ..self }
    }

    /// Adds a figure. JSON has no numbers that are not finite.
    pub fn figure(mut self, name: &'static str, value: f64) -> Self {
        if value.is_finite() {
            self.figures.insert(name, (value * 100.0).round() / 100.0);
        }
        self
    }

    /// Says how to fix it.
    pub fn fix(self, fix: impl Into<String>) -> Self {
        Finding { fix: Some(fix.into()), ..self }
    }
}

/// All findings.
#[derive(Clone, Debug, Serialize)]
pub struct Report {
    /// True if there is no problem. Advice and warnings do not count.
    pub deployable: bool,
    /// How many findings there are of each verdict.
    pub counts: BTreeMap<Verdict, usize>,
    /// The findings, in the order of the checks.
    pub findings: Vec<Finding>,
}

impl Report {
    /// Counts the findings.
    pub fn new(findings: Vec<Finding>) -> Self {
        let mut counts = BTreeMap::new();
        for finding in &findings {
            *counts.entry(finding.verdict).or_default() += 1;
        }
        Report { deployable: !counts.contains_key(&Verdict::Problem), counts, findings }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_problems_forbid_deployment() {
        let finding = |verdict| Finding::new("a.b", verdict, "found", "meaning");
        let mut findings = vec![finding(Verdict::Ok), finding(Verdict::Warning), finding(Verdict::NotVisible)];
        assert!(Report::new(findings.clone()).deployable);
        findings.push(finding(Verdict::Problem));
        let report = Report::new(findings);
        assert!(!report.deployable);
        assert_eq!(report.counts[&Verdict::Problem], 1);
    }

    #[test]
    fn figures_are_finite() {
        let finding = Finding::not_visible("a.b", "").figure("x_us", f64::INFINITY).figure("y_us", 1.234);
        assert_eq!(finding.figures, BTreeMap::from([("y_us", 1.23)]));
    }
}
