//! `seckillctl activity create`.

use std::time::{SystemTime, UNIX_EPOCH};

use anyhow::Context as _;
use seckill_key_layout::HmacSecrets;
use seckill_order_store::Created;
use seckill_service_kit::SecretArgs;
use seckill_state_machine::{
    Activity, ActivityId, ActivitySettings, ActivityVersion, BucketCount, Quantity, Scope, SkuId,
    TimestampMs,
};
use serde::Serialize;

use crate::connect::StoreArgs;
use crate::exit::{Failure, Verdict};
use crate::output::Output;
use crate::values::{buckets, quantity, version};

const DAY_MS: i64 = 24 * 3_600_000;

/// Settings of the command.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// The activity
    #[arg(long, value_name = "ID")]
    activity_id: ActivityId,

    /// What is sold
    #[arg(long, value_name = "ID")]
    sku_id: SkuId,

    /// The version; the newest when not given, or the next if that one sells the SKU already
    #[arg(long, value_name = "N", value_parser = version)]
    activity_version: Option<ActivityVersion>,

    #[command(flatten)]
    terms: Terms,
    #[command(flatten)]
    secrets: SecretArgs,
    #[command(flatten)]
    stores: StoreArgs,
}

/// What is sold when and how; fixed for the version.
#[derive(Debug, Clone, clap::Args)]
pub struct Terms {
    /// Units on sale
    #[arg(long, value_name = "UNITS")]
    pub stock: u64,

    /// Buckets that the stock is split into; more than one only for a measured hot slot
    #[arg(long, value_name = "COUNT", default_value = "1", value_parser = buckets)]
    pub buckets: BucketCount,

    /// First instant of the sale, in milliseconds since 1970; now when not given
    #[arg(long, value_name = "MS")]
    pub starts_at_ms: Option<i64>,

    /// Last instant of the sale, in milliseconds since 1970
    #[arg(long, value_name = "MS", conflicts_with = "duration_s")]
    pub ends_at_ms: Option<i64>,

    /// How long the sale lasts, in seconds, unless its end is given
    #[arg(long, value_name = "SECONDS", default_value_t = 3_600)]
    pub duration_s: u32,

    /// How long after its end the keys in Redis live, in days
    #[arg(long, value_name = "DAYS", default_value_t = 7)]
    pub retention_days: u32,

    /// Units a buyer may hold; only 1 is supported
    #[arg(long, value_name = "UNITS", default_value_t = 1)]
    pub limit_per_user: u32,

    /// Most units of one call
    #[arg(long, value_name = "UNITS", default_value = "1", value_parser = quantity)]
    pub max_quantity: Quantity,

    /// From acceptance to the check of a reservation that is still open, in milliseconds
    #[arg(long, value_name = "MS", default_value_t = 300_000)]
    pub reservation_ttl_ms: i64,

    /// How long an undecided reservation is left alone, in milliseconds
    #[arg(long, value_name = "MS", default_value_t = 600_000)]
    pub patience_ms: i64,

    /// Which of the configured secrets derives reservation ids; the newest when not given
    #[arg(long, value_name = "N")]
    pub secret_version: Option<u32>,
}

impl Terms {
    /// The settings of a version.
    ///
    /// # Errors
    /// A wrong setting when the secret is not configured.
    pub fn settings(
        &self,
        scope: Scope,
        secrets: &HmacSecrets,
    ) -> anyhow::Result<ActivitySettings> {
        let secret_version = self
            .secret_version
            .unwrap_or_else(|| secrets.latest_version());
        if !secrets.has(secret_version) {
            let reason = format!("SECKILL_HMAC_SECRETS holds no version {secret_version}");
            return Err(Failure::Setting {
                setting: "--secret-version",
                reason,
            }
            .into());
        }
        let starts_at = match self.starts_at_ms {
            Some(ms) => TimestampMs::new(ms),
            None => now()?,
        };
        let ends_at = match self.ends_at_ms {
            Some(ms) => TimestampMs::new(ms),
            None => starts_at + i64::from(self.duration_s) * 1_000,
        };
        Ok(ActivitySettings {
            scope,
            starts_at_ms: starts_at,
            ends_at_ms: ends_at,
            retention_until_ms: ends_at + i64::from(self.retention_days) * DAY_MS,
            total_stock: self.stock,
            bucket_count: self.buckets,
            limit_per_user: self.limit_per_user,
            max_quantity: self.max_quantity,
            reservation_ttl_ms: self.reservation_ttl_ms,
            patience_ms: self.patience_ms,
            secret_version,
        })
    }
}

fn now() -> anyhow::Result<TimestampMs> {
    let since = SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .context("the clock is before 1970")?;
    Ok(TimestampMs::new(i64::try_from(since.as_millis())?))
}

#[derive(Debug, Serialize)]
struct Result {
    created: bool,
    #[serde(flatten)]
    settings: ActivitySettings,
}

/// Runs the command.
///
/// # Errors
/// A wrong setting, a conflict with what exists, or a store that cannot be reached.
pub async fn run(args: Args, output: Output) -> anyhow::Result<Verdict> {
    let control = args.stores.control().await?;
    let scope = Scope {
        version: match args.activity_version {
            Some(version) => version,
            None => next_version(&control.activities(&args.activity_id).await?, &args.sku_id)?,
        },
        activity_id: args.activity_id,
        sku_id: args.sku_id,
    };
    let settings = args.terms.settings(scope, &args.secrets.hmac_secrets)?;
    let created = control.create(&settings).await?;
    let result = Result {
        created: created == Created::New,
        settings,
    };
    output.print(&result, || {
        let verb = if result.created {
            "created"
        } else {
            "is there already"
        };
        let ActivitySettings {
            scope,
            total_stock,
            bucket_count,
            ..
        } = &result.settings;
        format!("{scope} {verb}: {total_stock} units in {bucket_count} buckets; preheat it next")
    })?;
    Ok(Verdict::Fine)
}

/// All SKUs of an activity are sold under one version, since one pointer leads to them: a SKU that
/// the newest version lacks joins it, and one that it has begins the next.
fn next_version(all: &[Activity], sku_id: &SkuId) -> anyhow::Result<ActivityVersion> {
    let scopes = || all.iter().map(|activity| &activity.settings.scope);
    let Some(newest) = scopes().map(|scope| scope.version).max() else {
        return Ok(ActivityVersion::new(1)?);
    };
    let has_it = scopes().any(|scope| scope.version == newest && scope.sku_id == *sku_id);
    Ok(ActivityVersion::new(newest.get() + u64::from(has_it))?)
}

#[cfg(test)]
mod tests {
    use seckill_state_machine::ActivityState;

    use super::*;

    fn terms() -> Terms {
        Terms {
            stock: 10,
            buckets: BucketCount::ONE,
            starts_at_ms: Some(1_000),
            ends_at_ms: None,
            duration_s: 60,
            retention_days: 7,
            limit_per_user: 1,
            max_quantity: Quantity::ONE,
            reservation_ttl_ms: 1,
            patience_ms: 1,
            secret_version: None,
        }
    }

    fn scope() -> Scope {
        Scope {
            activity_id: ActivityId::parse("act").unwrap(),
            sku_id: SkuId::parse("sku").unwrap(),
            version: ActivityVersion::new(1).unwrap(),
        }
    }

    fn secrets() -> HmacSecrets {
        let secret = "QUFBQUFBQUFBQUFBQUFBQUFBQUFBQUFBQUFBQUFBQUE=";
        format!("1:{secret},4:{secret}").parse().unwrap()
    }

    #[test]
    fn a_further_sku_joins_the_newest_version() {
        let version = |known: &[(&str, u64)], sku: &str| {
            let all: Vec<Activity> = known
                .iter()
                .map(|(sku, version)| Activity {
                    settings: terms()
                        .settings(
                            Scope {
                                sku_id: SkuId::parse(*sku).unwrap(),
                                version: ActivityVersion::new(*version).unwrap(),
                                ..scope()
                            },
                            &secrets(),
                        )
                        .unwrap(),
                    state: ActivityState::Prepared,
                })
                .collect();
            next_version(&all, &SkuId::parse(sku).unwrap())
                .unwrap()
                .get()
        };
        assert_eq!(version(&[], "a"), 1);
        assert_eq!(version(&[("a", 1)], "b"), 1);
        assert_eq!(version(&[("a", 1), ("b", 1)], "a"), 2);
        assert_eq!(version(&[("a", 2), ("b", 1)], "b"), 2);
    }

    #[test]
    fn times_follow_from_the_start() {
        let settings = terms().settings(scope(), &secrets()).unwrap();
        assert_eq!(settings.ends_at_ms, TimestampMs::new(61_000));
        assert_eq!(
            settings.retention_until_ms,
            TimestampMs::new(61_000 + 7 * DAY_MS)
        );
        assert_eq!(settings.secret_version, 4);
    }

    #[test]
    fn a_secret_that_is_not_configured_is_a_wrong_setting() {
        let terms = Terms {
            secret_version: Some(2),
            ..terms()
        };
        let error = terms.settings(scope(), &secrets()).unwrap_err();
        assert!(
            error.to_string().starts_with("--secret-version is wrong"),
            "{error}"
        );
    }
}
