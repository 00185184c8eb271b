//! What came of the run, for people and for programs.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::path::{Path, PathBuf};

use anyhow::Context;
use serde::Serialize;

use crate::faults::Made;
use crate::oracle::{Violations, Wrong};
use crate::plan::Kind;

/// A kind of fault counts as made when it is a twentieth of all.
const SHARE_MIN: u64 = 20;

/// Violations of one sort that are printed; the report has all of them.
const PRINTED_MAX: usize = 10;

/// One kind's faults.
#[derive(Debug, Clone, Default, Serialize)]
pub(crate) struct OfKind {
    /// Faults whose effect was observed.
    pub(crate) observed: u64,
    /// Faults that met nobody, or whose effect could not be seen.
    pub(crate) unseen: u64,
    /// Observed faults by the way they were made.
    pub(crate) ways: BTreeMap<&'static str, u64>,
    /// What was seen of the last one that counts.
    pub(crate) example: String,
    /// Why the last one that does not count does not.
    pub(crate) missed: String,
}

/// The whole run. The first names are fixed: programs read them.
#[derive(Debug, Clone, Default, Serialize)]
pub(crate) struct Report {
    pub(crate) seed: u64,
    pub(crate) faults: u64,
    pub(crate) calls: u64,
    pub(crate) accepted: u64,
    pub(crate) orders: u64,
    pub(crate) released: u64,
    pub(crate) oversold: u64,
    pub(crate) lost: u64,
    pub(crate) duplicated: u64,
    pub(crate) stuck: u64,
    pub(crate) violations: u64,
    pub(crate) settle_seconds: f64,
    pub(crate) seconds: u64,
    pub(crate) seconds_accepting: u64,
    pub(crate) faults_by_kind: BTreeMap<Kind, OfKind>,
    pub(crate) faults_min: u64,
    pub(crate) unknown_answers: u64,
    pub(crate) purchases: u64,
    pub(crate) cancelled: u64,
    pub(crate) rejected: u64,
    pub(crate) fenced: u64,
    pub(crate) parked: u64,
    pub(crate) sends: u64,
    pub(crate) sales: u64,
    pub(crate) failovers: u64,
    pub(crate) lost_bytes: u64,
    pub(crate) looks: u64,
    pub(crate) audit: Vec<String>,
    pub(crate) problems: Vec<String>,
    pub(crate) violation_texts: BTreeMap<Wrong, Vec<String>>,
    pub(crate) shortfalls: Vec<String>,
}

impl Report {
    /// Counts the faults by kind.
    pub(crate) fn count_faults(&mut self, made: &[Made], kinds: &[Kind]) {
        for kind in kinds {
            self.faults_by_kind.insert(*kind, OfKind::default());
        }
        for fault in made {
            let of_kind = self.faults_by_kind.entry(fault.kind).or_default();
            match &fault.seen {
                Ok(evidence) => {
                    of_kind.observed += 1;
                    *of_kind.ways.entry(fault.way).or_default() += 1;
                    of_kind.example.clone_from(evidence);
                    self.faults += 1;
                }
                Err(reason) => {
                    of_kind.unseen += 1;
                    of_kind.missed.clone_from(reason);
                }
            }
        }
    }

    /// Counts the violations by sort.
    pub(crate) fn count_violations(&mut self, violations: Violations) {
        let count = |wrong: Wrong| {
            let texts = violations.get(&wrong).map_or(0, Vec::len);
            u64::try_from(texts).unwrap_or(u64::MAX)
        };
        self.oversold = count(Wrong::Oversold);
        self.lost = count(Wrong::Lost);
        self.duplicated = count(Wrong::Duplicated);
        self.stuck = count(Wrong::Stuck);
        let others = count(Wrong::Broken);
        self.violations = self.oversold + self.lost + self.duplicated + self.stuck + others;
        self.violation_texts = violations;
    }

    /// What the run itself lacked: it must have been a sale, and it must have been broken often enough
    /// and in every way.
    pub(crate) fn find_shortfalls(&mut self) {
        let mut shortfalls = Vec::new();
        if self.faults < self.faults_min {
            shortfalls.push(format!(
                "{} faults, {} wanted",
                self.faults, self.faults_min
            ));
        }
        for (kind, of_kind) in &self.faults_by_kind {
            if of_kind.observed * SHARE_MIN < self.faults {
                let (word, count) = (kind.word(), of_kind.observed);
                shortfalls.push(format!("{word}: {count} of {} faults", self.faults));
            }
        }
        if self.seconds_accepting * 2 < self.seconds {
            let (accepting, all) = (self.seconds_accepting, self.seconds);
            shortfalls.push(format!("only {accepting} of {all} seconds accepted"));
        }
        // Both judges must come to the same verdict.
        if self.violations == 0 && !self.audit.is_empty() {
            shortfalls.push("the audit complains, and the checks do not".to_owned());
        }
        self.shortfalls = shortfalls;
    }

    /// Whether all holds.
    pub(crate) fn is_good(&self) -> bool {
        self.violations == 0 && self.shortfalls.is_empty()
    }

    /// Writes it as JSON.
    pub(crate) fn write(&self, folder: &Path) -> anyhow::Result<PathBuf> {
        let path = folder.join("report.json");
        let text = serde_json::to_string_pretty(self).context("the report as JSON")?;
        std::fs::write(&path, text + "\n")
            .with_context(|| format!("writing {}", path.display()))?;
        Ok(path)
    }

    /// As people read it.
    pub(crate) fn text(&self) -> String {
        let mut text = String::new();
        for (kind, of_kind) in &self.faults_by_kind {
            let ways: Vec<String> = of_kind
                .ways
                .iter()
                .filter(|(way, _)| !way.is_empty())
                .map(|(way, count)| format!("{way} {count}"))
                .collect();
            let _ = writeln!(
                text,
                "  {:<17} {:>4} seen {:>3} unseen  {}",
                kind.word(),
                of_kind.observed,
                of_kind.unseen,
                ways.join(", ")
            );
        }
        let _ = writeln!(
            text,
            "  {} faults; {} calls ({} uncertain), {} accepted, {} orders ({} cancelled), {} released \
             ({} rejected, {} fenced), {} parked; {} of {} seconds accepting; settled in {:.1} s",
            self.faults,
            self.calls,
            self.unknown_answers,
            self.accepted,
            self.orders,
            self.cancelled,
            self.released,
            self.rejected,
            self.fenced,
            self.parked,
            self.seconds_accepting,
            self.seconds,
            self.settle_seconds
        );
        for (wrong, texts) in &self.violation_texts {
            let _ = writeln!(text, "  {wrong:?}: {}", texts.len());
            for violation in texts.iter().take(PRINTED_MAX) {
                let _ = writeln!(text, "    {violation}");
            }
        }
        for (what, texts) in [
            ("audit", &self.audit),
            ("operator", &self.problems),
            ("shortfall", &self.shortfalls),
        ] {
            for complaint in texts.iter().take(PRINTED_MAX) {
                let _ = writeln!(text, "  {what}: {complaint}");
            }
        }
        let verdict = if self.is_good() { "holds" } else { "FAILED" };
        let _ = write!(
            text,
            "seed {} {verdict}: oversold {}, lost {}, duplicated {}, stuck {}, violations {}",
            self.seed, self.oversold, self.lost, self.duplicated, self.stuck, self.violations
        );
        text
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn made(kind: Kind, is_seen: bool) -> Made {
        let seen = if is_seen {
            Ok("seen".to_owned())
        } else {
            Err("not seen".to_owned())
        };
        Made::new(kind, seen)
    }

    #[test]
    fn only_faults_that_were_seen_count() {
        let mut report = Report {
            faults_min: 2,
            ..Report::default()
        };
        let faults = [made(Kind::Kill, true), made(Kind::Pause, false)];
        report.count_faults(&faults, &[Kind::Kill, Kind::Pause]);
        report.find_shortfalls();
        assert_eq!(report.faults, 1);
        assert_eq!(report.shortfalls.len(), 2, "{:?}", report.shortfalls);
        assert!(!report.is_good());
    }

    #[test]
    fn an_outage_is_no_sale_and_a_disagreement_of_the_judges_no_success() {
        let mut report = Report {
            seconds: 10,
            seconds_accepting: 5,
            ..Report::default()
        };
        report.find_shortfalls();
        assert!(report.is_good());
        report.seconds_accepting = 4;
        report.find_shortfalls();
        assert!(!report.is_good());
        report.seconds_accepting = 5;
        report.audit.push("a difference".to_owned());
        report.find_shortfalls();
        assert!(!report.is_good());
    }

    #[test]
    fn every_sort_of_violation_counts() {
        let texts = |count: usize| vec!["text".to_owned(); count];
        let mut report = Report::default();
        report.count_violations(
            [
                (Wrong::Oversold, texts(1)),
                (Wrong::Lost, texts(2)),
                (Wrong::Broken, texts(3)),
            ]
            .into(),
        );
        assert_eq!((report.oversold, report.lost, report.violations), (1, 2, 6));
        assert!(!report.is_good());
    }
}
