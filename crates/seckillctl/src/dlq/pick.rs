//! Which parked messages a command is about.

use std::time::{SystemTime, UNIX_EPOCH};

use anyhow::Context as _;
use clap::ValueEnum;
use seckill_order_store::{LetterFilter, LetterStatus, ParkedLetter, Store};
use seckill_state_machine::{ReservationId, TimestampMs};

use crate::exit::Failure;
use crate::scope::VersionArgs;

/// Letters of one page: what PostgreSQL gives at once.
const PAGE: u32 = 1_000;

/// Most letters of one command: their headers take about 50 MB, and sending them at 50 a second half an
/// hour. Whoever has more repeats the command.
const LIMIT_MAX: i64 = 100_000;

/// A status, or any.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum StatusChoice {
    /// Nothing was done about it, or a replay failed.
    Open,
    /// Sent again.
    Replayed,
    /// Given up.
    Discarded,
    /// Whatever its status.
    All,
}

/// What narrows the messages down; all of it must fit.
#[derive(Debug, Clone, clap::Args)]
pub struct Selection {
    /// Numbers of messages, as `dlq list` shows them
    #[arg(long = "id", value_name = "N", value_delimiter = ',')]
    ids: Vec<i64>,

    /// The word for why they were parked, such as `undecodable` or `attempts_exhausted`
    #[arg(long, value_name = "WORD")]
    parked_reason: Option<String>,

    /// The topic that they were read from, with its prefix
    #[arg(long, value_name = "NAME")]
    topic: Option<String>,

    /// The consumer group that gave up, without a prefix
    #[arg(long, value_name = "NAME")]
    group: Option<String>,

    #[command(flatten)]
    version: VersionArgs,

    /// The reservation inside
    #[arg(long, value_name = "ID")]
    reservation_id: Option<ReservationId>,

    /// Their status; open when not given, or any when they are named by number
    #[arg(long, value_enum, value_name = "STATUS")]
    status: Option<StatusChoice>,

    /// Last parked longer ago than this, in seconds
    #[arg(long, value_name = "SECONDS")]
    older_than_s: Option<u32>,

    /// Last parked within this time, in seconds
    #[arg(long, value_name = "SECONDS")]
    newer_than_s: Option<u32>,

    /// Most messages at once
    #[arg(long, value_name = "COUNT", default_value = "1000",
          value_parser = clap::value_parser!(i64).range(1..=LIMIT_MAX))]
    limit: i64,
}

/// What was selected, by number.
#[derive(Debug)]
pub struct Picked {
    /// At most as many as were asked for.
    pub letters: Vec<ParkedLetter>,
    /// Whether more would have fitted.
    pub more: bool,
}

impl Selection {
    /// Refuses a selection that names nothing: who changes messages says which.
    ///
    /// # Errors
    /// A wrong setting.
    pub fn require_narrow(&self, all: bool) -> anyhow::Result<()> {
        let is_narrow = !self.ids.is_empty()
            || self.parked_reason.is_some()
            || self.topic.is_some()
            || self.group.is_some()
            || self.version.scope().is_some()
            || self.reservation_id.is_some()
            || self.older_than_s.is_some()
            || self.newer_than_s.is_some();
        if is_narrow || all {
            return Ok(());
        }
        Err(Failure::Setting {
            setting: "--id",
            reason: "say which messages: by --id, --parked-reason, --topic, --group, \
                     --activity-id, --reservation-id or age, or --all for every open one"
                .to_owned(),
        }
        .into())
    }

    fn status(&self) -> Option<LetterStatus> {
        match self.status {
            Some(StatusChoice::Open) => Some(LetterStatus::Open),
            Some(StatusChoice::Replayed) => Some(LetterStatus::Replayed),
            Some(StatusChoice::Discarded) => Some(LetterStatus::Discarded),
            Some(StatusChoice::All) => None,
            None => self.ids.is_empty().then_some(LetterStatus::Open),
        }
    }

    fn filter(&self) -> anyhow::Result<LetterFilter> {
        let now = SystemTime::now()
            .duration_since(UNIX_EPOCH)
            .context("the clock is before 1970")?;
        let now = TimestampMs::new(i64::try_from(now.as_millis())?);
        let ago = |seconds: Option<u32>| seconds.map(|s| now + -(i64::from(s) * 1_000));
        Ok(LetterFilter {
            ids: (!self.ids.is_empty()).then(|| self.ids.clone()),
            reason: self.parked_reason.clone(),
            topic: self.topic.clone(),
            group: self.group.clone(),
            scope: self.version.scope(),
            reservation: self.reservation_id.clone(),
            status: self.status(),
            parked_before: ago(self.older_than_s),
            parked_after: ago(self.newer_than_s),
            after_id: None,
            limit: None,
        })
    }

    /// Reads them page by page. What is parked meanwhile is not waited for.
    ///
    /// # Errors
    /// Store errors.
    pub async fn pick(&self, store: &Store) -> anyhow::Result<Picked> {
        let mut filter = self.filter()?;
        let wanted = usize::try_from(self.limit)?;
        let mut letters: Vec<ParkedLetter> = Vec::new();
        loop {
            // One more than wanted tells whether there are more.
            let missing = (wanted + 1).saturating_sub(letters.len());
            let limit = i64::try_from(missing)?.min(i64::from(PAGE));
            filter.limit = Some(limit);
            let page = store.letters(&filter).await?;
            let is_last = i64::try_from(page.len())? < limit;
            filter.after_id = page.last().map(|letter| letter.id);
            letters.extend(page);
            if is_last || letters.len() > wanted {
                break;
            }
        }
        let more = letters.len() > wanted;
        letters.truncate(wanted);
        Ok(Picked { letters, more })
    }
}
