//! Which differences a command is about.

use seckill_order_store::{DiscrepancyFilter, Recorded, Store};
use seckill_settlement::Class;
use seckill_state_machine::ReservationId;
use serde::Serialize;

use crate::exit::Failure;
use crate::scope::VersionArgs;

/// Most differences of one command. More than that is no list to be worked off but a bucket to be
/// rebuilt.
const LIMIT_MAX: i64 = 10_000;

/// What narrows the differences down; all of it must fit.
#[derive(Debug, Clone, clap::Args)]
pub struct Selection {
    /// Numbers of differences, as `reconcile plan` shows them
    #[arg(long = "id", value_name = "N", value_delimiter = ',')]
    ids: Vec<i64>,

    /// Of this class, such as `reservation_missing`
    #[arg(long, value_name = "WORD", value_parser = class)]
    class: Option<Class>,

    /// About this reservation
    #[arg(long, value_name = "ID")]
    reservation_id: Option<ReservationId>,

    #[command(flatten)]
    version: VersionArgs,

    /// Most differences at once
    #[arg(long, value_name = "COUNT", default_value = "1000",
          value_parser = clap::value_parser!(i64).range(1..=LIMIT_MAX))]
    limit: i64,
}

fn class(word: &str) -> Result<Class, String> {
    Class::parse(word).ok_or_else(|| {
        let words: Vec<&str> = Class::ALL.iter().map(|class| class.word()).collect();
        format!("must be one of {}", words.join(", "))
    })
}

/// What was selected, the oldest first.
#[derive(Debug)]
pub struct Picked {
    /// At most as many as were asked for.
    pub found: Vec<Recorded>,
    /// Whether more would have fitted.
    pub more: bool,
}

impl Selection {
    /// Refuses a selection that names nothing: who changes something says what.
    ///
    /// # Errors
    /// A wrong setting.
    pub fn require_narrow(&self, all: bool) -> anyhow::Result<()> {
        let is_narrow = !self.ids.is_empty()
            || self.class.is_some()
            || self.reservation_id.is_some()
            || self.version.scope().is_some();
        if is_narrow || all {
            return Ok(());
        }
        Err(Failure::Setting {
            setting: "--id",
            reason: "say which differences: by --id, --class, --reservation-id or --activity-id, \
                     or --all for every open one"
                .to_owned(),
        }
        .into())
    }

    /// Reads the open ones.
    ///
    /// # Errors
    /// Store errors.
    pub async fn pick(&self, store: &Store) -> anyhow::Result<Picked> {
        let filter = DiscrepancyFilter {
            scope: self.version.scope(),
            kind: self.class.map(|class| class.word().to_owned()),
            run_kind: None,
            reservation_id: self.reservation_id.clone(),
            after: None,
        };
        let mut found = if self.ids.is_empty() {
            store.open_discrepancies(&filter, self.limit + 1).await?
        } else {
            self.by_number(store, &filter).await?
        };
        let wanted = usize::try_from(self.limit)?;
        let more = found.len() > wanted;
        found.truncate(wanted);
        Ok(Picked { found, more })
    }

    /// One question a number: there are as many as somebody has typed.
    async fn by_number(
        &self,
        store: &Store,
        filter: &DiscrepancyFilter,
    ) -> anyhow::Result<Vec<Recorded>> {
        let mut found = Vec::new();
        for id in &self.ids {
            let one = store.discrepancy(*id).await?;
            let one = one.ok_or_else(|| anyhow::anyhow!("there is no difference {id}"))?;
            let about = &one.discrepancy;
            let fits = filter.kind.as_ref().is_none_or(|kind| *kind == about.kind)
                && filter
                    .scope
                    .as_ref()
                    .is_none_or(|scope| *scope == about.bucket.scope)
                && (filter.reservation_id.is_none()
                    || filter.reservation_id == about.reservation_id);
            if fits {
                found.push(one);
            }
        }
        Ok(found)
    }
}

/// A difference for people and machines.
#[derive(Debug, Serialize)]
pub struct Difference {
    pub id: i64,
    pub class: String,
    means: &'static str,
    pub bucket: String,
    pub reservation_id: Option<String>,
    pub redis: String,
    pub postgres: String,
    detail: String,
    pub repair: String,
    pub repaired_by: &'static str,
    found_by: String,
    first_seen_at_ms: i64,
    last_seen_at_ms: i64,
    pub times_seen: u64,
    pub resolved_at_ms: Option<i64>,
}

impl From<&Recorded> for Difference {
    fn from(recorded: &Recorded) -> Self {
        let found = &recorded.discrepancy;
        let entry = Class::parse(&found.kind).map(Class::entry);
        Self {
            id: recorded.id,
            class: found.kind.clone(),
            means: entry.map_or("a class that this program does not know", |entry| {
                entry.means
            }),
            bucket: found.bucket.to_string(),
            reservation_id: found.reservation_id.as_ref().map(ToString::to_string),
            redis: found.evidence_redis.clone(),
            postgres: found.evidence_postgres.clone(),
            detail: found.detail.clone(),
            repair: entry.map_or_else(String::new, |entry| entry.repair.to_owned()),
            repaired_by: match found.repairable {
                seckill_order_store::Repairable::Automatic => "the services",
                seckill_order_store::Repairable::Operator => "an operator",
                seckill_order_store::Repairable::None => "nobody: look",
            },
            found_by: recorded.run_kind.clone(),
            first_seen_at_ms: recorded.first_seen_at_ms.get(),
            last_seen_at_ms: recorded.last_seen_at_ms.get(),
            times_seen: recorded.times_seen,
            resolved_at_ms: recorded.resolved_at_ms.map(|at| at.get()),
        }
    }
}
