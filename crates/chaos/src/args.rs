//! Settings of the run.

use std::path::PathBuf;
use std::time::Duration;

use clap::Parser;

use crate::plan::Kind;

/// The longest run: its Redis is read whole at the end, within ten seconds.
const SECONDS_MAX: u64 = 1_800;

/// A sale under faults, and the check of what is left.
///
/// Exit code 0 when everything holds, 1 when something does not, 69 when the run broke off.
#[derive(Debug, Clone, Parser)]
#[command(name = "seckill-chaos", version)]
pub struct Args {
    /// What the plan of the faults is drawn from; a new one when not given
    #[arg(long, env = "CHAOS_SEED", value_name = "N")]
    pub seed: Option<u64>,

    /// How long faults are made
    #[arg(long, env = "CHAOS_SECONDS", default_value_t = 300, value_name = "SECONDS",
          value_parser = clap::value_parser!(u64).range(10..=SECONDS_MAX))]
    pub seconds: u64,

    /// Kinds of faults, separated by commas; all of them when not given
    #[arg(long, env = "CHAOS_KINDS", value_name = "KINDS", value_delimiter = ',',
          value_parser = Kind::parse)]
    pub kinds: Vec<Kind>,

    /// Fewest faults whose effect was observed; two thirds of the seconds when not given
    #[arg(long, env = "CHAOS_FAULTS_MIN", value_name = "COUNT")]
    pub faults_min: Option<u64>,

    /// New buyers a second
    #[arg(long, env = "CHAOS_BUYERS", default_value_t = 15, value_name = "COUNT",
          value_parser = clap::value_parser!(u64).range(1..=200))]
    pub buyers_per_second: u64,

    /// Folder of a stack of the run's own, whose broker may be killed; its settings are those that
    /// `SECKILL_TEST_STACK` names
    #[arg(long, env = "CHAOS_STACK", value_name = "DIR")]
    pub stack: PathBuf,

    /// Folder for the report, and below it one a seed for logs and run files
    #[arg(
        long,
        env = "CHAOS_OUTPUT",
        default_value = "target/chaos",
        value_name = "DIR"
    )]
    pub output: PathBuf,
}

impl Args {
    /// The kinds that are wanted.
    pub(crate) fn wanted(&self) -> Vec<Kind> {
        if self.kinds.is_empty() {
            return Kind::ALL.to_vec();
        }
        let all = Kind::ALL.iter().copied();
        all.filter(|kind| self.kinds.contains(kind)).collect()
    }

    pub(crate) const fn length(&self) -> Duration {
        Duration::from_secs(self.seconds)
    }

    /// 200 in five minutes.
    pub(crate) fn faults_min(&self) -> u64 {
        self.faults_min.unwrap_or(self.seconds * 2 / 3)
    }
}
