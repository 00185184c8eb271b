//! `seckillctl sale run`: prepares an activity of its own, lets the buyers loose, waits until all is
//! settled, and checks.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::pin::pin;
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context as _, bail};
use seckill_activity_control::{AuditOptions, AuditReport, Control, Order, Settledness};
use seckill_message_bus::{Admin, BusRuntime};
use seckill_service_kit::values::{count, positive_millis};
use seckill_service_kit::{BrokerArgs, SecretArgs};
use seckill_state_machine::{ActivityId, ActivityVersion, BucketCount, Quantity, Scope, SkuId};
use tokio::net::TcpStream;
use tokio::task::JoinHandle;
use tonic::transport::Channel;

use super::caller::{Writer, channels};
use super::crash::Front;
use super::load::{Finished, Load};
use super::plan::{Mix, Plan};
use super::report::{Kill, Report, StoreFigures, Verdict as AuditVerdict, expected, round};
use super::{progress, summary};
use crate::activity::Terms;
use crate::connect::{self, StoreArgs};
use crate::exit::{Failure, Verdict};
use crate::output::Output;
use crate::values::{buckets, percent};

/// Calls in flight at most: two thirds of the streams that four connections to one front carry.
const CONCURRENCY_MAX: u64 = 4_096;

/// Connections at most.
const CONNECTIONS_MAX: u64 = 64;

/// Buyers at most: their answers are kept, about 120 bytes each.
const BUYERS_MAX: u64 = 10_000_000;

/// Between two looks at whether everything is settled.
const SETTLE_POLL: Duration = Duration::from_millis(200);

/// Settings of the command.
#[derive(Debug, clap::Args)]
#[command(args_override_self = true)]
pub struct Args {
    /// Addresses of the fronts, host:port, separated by commas
    #[arg(
        long,
        env = "SECKILL_FRONT_ADDR",
        value_name = "ADDRS",
        value_delimiter = ',',
        required = true
    )]
    front_addr: Vec<String>,

    /// Buyers
    #[arg(long, default_value = "100000", value_name = "COUNT", value_parser = count::<BUYERS_MAX>)]
    buyers: usize,

    /// Units on sale
    #[arg(long, default_value_t = 10_000, value_name = "UNITS")]
    stock: u64,

    /// Buckets that the stock is split into
    #[arg(long, default_value = "1", value_name = "COUNT", value_parser = buckets)]
    buckets: BucketCount,

    /// Calls in flight at once
    #[arg(long, default_value = "512", value_name = "COUNT", value_parser = count::<CONCURRENCY_MAX>)]
    concurrency: usize,

    /// Connections that the calls share
    #[arg(long, default_value = "4", value_name = "COUNT", value_parser = count::<CONNECTIONS_MAX>)]
    connections: usize,

    /// Requests that are sent again under the same request id, of a hundred
    #[arg(long, default_value = "20", value_name = "PERCENT", value_parser = percent)]
    repeat_percent: u32,

    /// Buyers who send a second request under a new id, of a hundred
    #[arg(long, default_value = "5", value_name = "PERCENT", value_parser = percent)]
    second_percent: u32,

    /// Malformed calls in all
    #[arg(long, default_value_t = 1_000, value_name = "COUNT")]
    invalid: u32,

    /// What the order of the calls is drawn from; a new one each time when not given
    #[arg(long, value_name = "NUMBER")]
    seed: Option<u64>,

    /// Kill the front with SIGKILL after so many acceptances, and start it again
    #[arg(long, value_name = "ACCEPTED")]
    kill_front_after: Option<u64>,

    /// Folder of the run files, to find the front that is to be killed
    #[arg(long, env = "SECKILL_RUN_DIR", value_name = "DIR")]
    run_dir: Option<PathBuf>,

    /// How long to wait until everything is settled, in milliseconds
    #[arg(long, default_value = "60000", value_name = "MS", value_parser = positive_millis)]
    settle_timeout_ms: Duration,

    /// The activity to create; a new name each time when not given
    #[arg(long, value_name = "ID")]
    activity_id: Option<ActivityId>,

    /// The SKU to sell
    #[arg(long, default_value = "demo-sku", value_name = "ID")]
    sku_id: SkuId,

    /// File for the report as JSON
    #[arg(long, value_name = "FILE")]
    report: Option<PathBuf>,

    #[command(flatten)]
    secrets: SecretArgs,
    #[command(flatten)]
    broker: BrokerArgs,
    #[command(flatten)]
    stores: StoreArgs,
}

/// Runs the command.
///
/// # Errors
/// A wrong setting, a dependency that stays away, or a step that failed. Conditions that the sale
/// does not meet are no errors: they are in the report and in the verdict.
pub async fn run(args: Args, output: Output, bus: Option<&BusRuntime>) -> anyhow::Result<Verdict> {
    args.check()?;
    let front = args.front_to_kill()?;
    let control = args.stores.control().await?;
    for address in &args.front_addr {
        args.await_front(address).await?;
    }
    let channels = channels(&args.front_addr, args.connections)?;
    let admin = connect::admin(&args.broker, bus).await?;
    let sale = Sale {
        args: &args,
        control: &control,
        admin: &admin,
        scope: args.scope()?,
    };
    let report = sale.run(&channels, front).await;
    admin.shutdown().await;
    let report = report?;
    if let Some(path) = &args.report {
        write_report(path, &report)?;
    }
    let looking = summary::Looking {
        report_file: args.report.as_deref(),
        run_dir: args.run_dir.as_deref(),
    };
    output.print(&report, || summary::describe(&report, &looking))?;
    Ok(Verdict::of(report.failures.is_empty()))
}

impl Args {
    fn check(&self) -> anyhow::Result<()> {
        let wrong = |setting, reason: String| Err(Failure::Setting { setting, reason }.into());
        let expected = self.stock.min(self.buyers as u64);
        match self.kill_front_after {
            Some(after) if after == 0 || after >= expected => wrong(
                "--kill-front-after",
                format!(
                    "must be 1 to {}, else nobody is left to be served",
                    expected.max(2) - 1
                ),
            ),
            Some(_) if self.run_dir.is_none() => wrong(
                "--run-dir (SECKILL_RUN_DIR)",
                "is needed to find the front".to_owned(),
            ),
            Some(_) | None => Ok(()),
        }
    }

    fn front_to_kill(&self) -> anyhow::Result<Option<Front>> {
        match (&self.run_dir, self.kill_front_after) {
            (Some(run_dir), Some(_)) => Ok(Some(Front::find(run_dir)?)),
            _ => Ok(None),
        }
    }

    async fn await_front(&self, address: &str) -> anyhow::Result<()> {
        let setting = "--front-addr (SECKILL_FRONT_ADDR)";
        connect::reach(
            "the front",
            setting,
            self.stores.patience,
            |_| false,
            async || TcpStream::connect(address).await.map(drop),
        )
        .await
    }

    fn scope(&self) -> anyhow::Result<Scope> {
        let activity_id = match &self.activity_id {
            Some(activity_id) => activity_id.clone(),
            // 64 random bits: two runs at one instant still differ.
            None => ActivityId::parse(format!("sale-{:016x}", rand::random::<u64>()))?,
        };
        let sku_id = self.sku_id.clone();
        Ok(Scope {
            activity_id,
            sku_id,
            version: ActivityVersion::new(1)?,
        })
    }

    /// Long enough for the slowest machine, short enough that keys of a demo do not pile up.
    fn terms(&self) -> Terms {
        Terms {
            stock: self.stock,
            buckets: self.buckets,
            starts_at_ms: None,
            ends_at_ms: None,
            duration_s: 3_600,
            retention_days: 1,
            limit_per_user: 1,
            max_quantity: Quantity::ONE,
            reservation_ttl_ms: 300_000,
            patience_ms: 600_000,
            secret_version: None,
        }
    }

    fn mix(&self) -> anyhow::Result<Mix> {
        Ok(Mix {
            buyers: u32::try_from(self.buyers)?,
            repeat_percent: self.repeat_percent,
            second_percent: self.second_percent,
            invalid: self.invalid,
            seed: self.seed.unwrap_or_else(rand::random),
        })
    }
}

/// One sale with everything it needs.
struct Sale<'a> {
    args: &'a Args,
    control: &'a Control,
    admin: &'a Admin,
    scope: Scope,
}

impl Sale<'_> {
    async fn run(&self, channels: &[Channel], front: Option<Front>) -> anyhow::Result<Report> {
        self.open().await?;
        let mix = self.args.mix()?;
        let writer = Writer::new(self.scope.clone());
        let load = Load::new(Plan::new(mix), writer, self.args.kill_front_after)?;
        eprintln!(
            "{}: {} buyers, {} units, {} calls, {} at once over {} connections, seed {}",
            self.scope,
            mix.buyers,
            self.args.stock,
            load.total(),
            self.args.concurrency,
            channels.len(),
            mix.seed
        );
        let started = Instant::now();
        let shown = tokio::spawn(progress::show(Arc::clone(&load)));
        let killing = front.map(|front| tokio::spawn(kill_when_due(Arc::clone(&load), front)));
        let selling = load.run(channels, self.args.concurrency);
        let (finished, killed) = match killing {
            None => (selling.await?, None),
            Some(killing) => {
                let (finished, killed) = sell_and_kill(&load, selling, killing).await?;
                (finished, Some(killed))
            }
        };
        shown.await?;

        let mut report = self.report(&mix, &finished, killed);
        let settling = Instant::now();
        report.on_its_way = self.await_settled().await?;
        report.unsettled = report.on_its_way.as_ref().map_or(0, Settledness::open);
        report.settle_seconds = round(settling.elapsed().as_secs_f64());
        let auditing = Instant::now();
        self.check_stores(&mut report, &finished).await?;
        report.audit = self.audit().await;
        report.audit_seconds = round(auditing.elapsed().as_secs_f64());
        report.total_seconds = round(started.elapsed().as_secs_f64());
        report.judge();
        Ok(report)
    }

    async fn open(&self) -> anyhow::Result<()> {
        let settings = self
            .args
            .terms()
            .settings(self.scope.clone(), &self.args.secrets.hmac_secrets)?;
        self.control
            .create(&settings)
            .await
            .context("creating the activity")?;
        self.control
            .preheat(&self.scope)
            .await
            .context("preheating the activity")?;
        let order = Order {
            actor: "seckillctl".to_owned(),
            reason: "seckillctl sale run".to_owned(),
        };
        self.control
            .open(&self.scope, &order)
            .await
            .context("opening the activity")?;
        Ok(())
    }

    fn report(&self, mix: &Mix, finished: &Finished, front_killed: Option<Kill>) -> Report {
        let mut report = Report {
            activity_id: self.scope.activity_id.to_string(),
            sku_id: self.scope.sku_id.to_string(),
            activity_version: self.scope.version.get(),
            buckets: self.args.buckets.get(),
            stock: self.args.stock,
            buyers: mix.buyers,
            expected: expected(&self.scope, self.args.buckets, self.args.stock, mix.buyers),
            concurrency: self.args.concurrency,
            seed: mix.seed,
            front_killed,
            ..Report::default()
        };
        report.set_answers(finished.tally.clone());
        report.retries = finished.retries;
        report.retry_reasons.clone_from(&finished.faults);
        report.set_latency(&finished.latency, finished.took.as_secs_f64());
        report
    }

    /// Waits until nothing is open; returns what still was when the time was up.
    async fn await_settled(&self) -> anyhow::Result<Option<Settledness>> {
        let limit = self.args.settle_timeout_ms;
        let started = Instant::now();
        loop {
            let found = self
                .control
                .settledness(&self.scope, Some(self.admin))
                .await;
            let is_late = started.elapsed() > limit;
            match found {
                Ok(found) if found.is_settled() => return Ok(None),
                Ok(found) if is_late => return Ok(Some(found)),
                Err(error) if is_late => return Err(error).context("asking what is settled"),
                // A server that hiccups is asked again, like one that is not done.
                Ok(_) | Err(_) => tokio::time::sleep(SETTLE_POLL).await,
            }
        }
    }

    async fn check_stores(&self, report: &mut Report, finished: &Finished) -> anyhow::Result<()> {
        let figures = self.control.figures(&self.scope).await?;
        let ordered = self.control.ordered_reservations(&self.scope).await?;
        let promised = &finished.tally.reservation_ids;
        let ordered: BTreeSet<&[u8]> = ordered.iter().map(|id| id.as_str().as_bytes()).collect();
        let kept = promised
            .iter()
            .filter(|id| ordered.contains(id.as_slice()))
            .count();
        report.set_stores(StoreFigures {
            orders: figures.orders,
            available: figures.available,
            reserved: figures.reserved,
            oversold: figures.oversold,
            duplicate_orders: figures.duplicate_orders,
            unsettled: report.unsettled,
            accepted_without_order: (promised.len() - kept) as u64,
            orders_without_acceptance: (ordered.len() - kept) as u64,
        });
        Ok(())
    }

    /// A failed audit is a finding of the run, not the end of its report.
    async fn audit(&self) -> AuditVerdict {
        match self.try_audit().await {
            Ok(report) if report.is_ok() => AuditVerdict::OK,
            Ok(report) => AuditVerdict::Differences(report.differences),
            Err(error) => AuditVerdict::NotDone(format!("{error:#}")),
        }
    }

    async fn try_audit(&self) -> anyhow::Result<AuditReport> {
        let options = AuditOptions::default();
        let report = self.control.audit(&self.scope, options).await?;
        Ok(report)
    }
}

/// Awaits both, and ends with the first that fails: a front that did not come back would only keep
/// the callers waiting.
async fn sell_and_kill(
    load: &Load,
    selling: impl Future<Output = anyhow::Result<Finished>>,
    mut killing: JoinHandle<anyhow::Result<Kill>>,
) -> anyhow::Result<(Finished, Kill)> {
    let mut selling = pin!(selling);
    tokio::select! {
        finished = &mut selling => {
            let finished = finished?;
            if !load.is_kill_due() {
                killing.abort();
                bail!("the front was not killed: fewer were accepted than --kill-front-after");
            }
            Ok((finished, killing.await??))
        }
        killed = &mut killing => {
            let killed = killed??;
            Ok((selling.await?, killed))
        }
    }
}

async fn kill_when_due(load: Arc<Load>, front: Front) -> anyhow::Result<Kill> {
    load.kill_due().await;
    let accepted = load.progress().accepted;
    front.kill_and_restart(accepted).await
}

fn write_report(path: &Path, report: &Report) -> anyhow::Result<()> {
    if let Some(folder) = path
        .parent()
        .filter(|folder| !folder.as_os_str().is_empty())
    {
        std::fs::create_dir_all(folder)
            .with_context(|| format!("creating {}", folder.display()))?;
    }
    let mut text = serde_json::to_string_pretty(report)?;
    text.push('\n');
    std::fs::write(path, text).with_context(|| format!("writing {}", path.display()))
}
