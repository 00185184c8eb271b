//! `seckillctl activity show`.

use seckill_activity_control::{ActivityView, BucketView};

use crate::connect::StoreArgs;
use crate::exit::Verdict;
use crate::output::{NONE, Output, or_none, table};
use crate::scope::ScopeArgs;

/// Settings of the command.
#[derive(Debug, clap::Args)]
pub struct Args {
    #[command(flatten)]
    scope: ScopeArgs,
    #[command(flatten)]
    stores: StoreArgs,
}

/// Runs the command: every version that is meant, newest first.
///
/// # Errors
/// When there is none, or a store is away.
pub async fn run(args: Args, output: Output) -> anyhow::Result<Verdict> {
    let control = args.stores.control().await?;
    let mut views = Vec::new();
    for activity in args.scope.all(&control).await? {
        views.push(control.show(&activity.settings.scope).await?);
    }
    output.print(&views, || {
        let shown: Vec<String> = views.iter().map(describe).collect();
        shown.join("\n\n")
    })?;
    Ok(Verdict::Fine)
}

fn describe(view: &ActivityView) -> String {
    let settings = &view.activity.settings;
    let current = match view.current_version {
        Some(version) if version == settings.scope.version => "is current".to_owned(),
        Some(version) => format!("version {version} is current"),
        None => "no version is current".to_owned(),
    };
    format!(
        "{scope}  {state}, {current}\n\
         on sale   {starts} to {ends} (ms), keys live until {retention}\n\
         stock     {stock} units in {buckets} buckets, {limit} a user, at most {max} a call\n\
         timers    reservation {ttl} ms, patience {patience} ms, secret {secret}\n\
         open      {pending} to send, {expiry} undecided, {tasks} compensation tasks\n\n{table}",
        scope = settings.scope,
        state = view.activity.state,
        starts = settings.starts_at_ms,
        ends = settings.ends_at_ms,
        retention = settings.retention_until_ms,
        stock = settings.total_stock,
        buckets = settings.bucket_count,
        limit = settings.limit_per_user,
        max = settings.max_quantity,
        ttl = settings.reservation_ttl_ms,
        patience = settings.patience_ms,
        secret = settings.secret_version,
        pending = view.send_pending,
        expiry = view.reservation_expiry,
        tasks = view.tasks,
        table = buckets(&view.buckets),
    )
}

fn buckets(buckets: &[BucketView]) -> String {
    let heading = [
        "BUCKET",
        "TOTAL",
        "LEFT",
        "SOLD",
        "REDIS STATE",
        "INITIAL",
        "AVAILABLE",
        "RESERVED",
        "RELEASED",
    ];
    let rows = buckets.iter().map(|bucket| {
        let book = bucket.postgres;
        let redis = bucket.redis;
        let state = match (bucket.state, bucket.recovery) {
            (Some(state), Some(recovery)) => format!("{state} ({recovery})"),
            (Some(state), None) => state.to_string(),
            (None, _) => NONE.to_owned(),
        };
        [
            bucket.bucket_id.to_string(),
            or_none(book.map(|book| book.total)),
            or_none(book.map(|book| book.available)),
            or_none(book.map(|book| book.sold)),
            state,
            or_none(redis.map(|stock| stock.initial)),
            or_none(redis.map(|stock| stock.available)),
            or_none(redis.map(|stock| stock.reserved)),
            or_none(redis.map(|stock| stock.released_total)),
        ]
    });
    table(heading, rows)
}
