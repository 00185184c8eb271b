//! The run from start to verdict.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use anyhow::Context;
use tokio::task::{JoinSet, LocalSet, spawn_local};
use tokio_util::sync::CancellationToken;

use crate::args::Args;
use crate::faults::Injector;
use crate::installation::Installation;
use crate::load::Load;
use crate::oracle::{self, Evidence, Records, Violations, Wrong};
use crate::plan::{Kind, Round, plan};
use crate::random::Random;
use crate::recorder::Recorder;
use crate::replicas::Replicas;
use crate::report::Report;
use crate::settle::{Settled, settle, unsettled};
use crate::watch::Watch;

/// Everything that runs.
struct Stage {
    installation: Arc<Installation>,
    replicas: Arc<Replicas>,
    load: Load,
    recorder: Recorder,
    watch: Watch,
}

/// Makes the run and says whether everything holds.
///
/// # Errors
///
/// When the run could not be carried out.
pub async fn run(args: Args) -> anyhow::Result<bool> {
    // All of it on one thread, which waits most of the time: servers and proxies have their own.
    LocalSet::new().run_until(Box::pin(perform(args))).await
}

async fn perform(args: Args) -> anyhow::Result<bool> {
    let seed = args.seed.unwrap_or_else(new_seed);
    let kinds = args.wanted();
    println!(
        "seed {seed}, {} s, {}",
        args.seconds,
        kinds
            .iter()
            .map(|kind| kind.word())
            .collect::<Vec<_>>()
            .join(" ")
    );
    let folder = make_folder(&args.output, seed)?;
    let stage = Box::pin(Stage::set(&args, seed, &folder)).await?;
    let mut report = Report {
        seed,
        faults_min: args.faults_min(),
        ..Report::default()
    };
    let watching = CancellationToken::new();
    let watch = spawn_local(stage.watch.clone().run(seed, watching.clone()));
    let rounds = plan(seed, args.length(), &kinds);
    let injector = stage.break_things(&args, rounds, &mut report).await?;
    println!(
        "  {} faults made, now all must settle",
        injector.made().len()
    );

    let settled = stage.settle().await?;
    injector.look_at_replays().await;
    report.count_faults(&injector.made(), &kinds);
    write_faults(&folder, &injector)?;
    watching.cancel();
    watch.await.context("watching")?;
    report.settle_seconds = settled.after.as_secs_f64();
    let records = Records::read(&stage.installation).await?;
    let violations = stage.judge(&mut report, &records, settled).await?;
    report.count_violations(violations);
    report.find_shortfalls();
    if report.violations > 0 {
        keep(&folder, &stage, &records).await?;
    }
    let path = report.write(&args.output)?;
    report.write(&folder)?;
    println!("{}", report.text());
    println!("report {}, logs {}", path.display(), folder.display());
    Ok(report.is_good())
}

impl Stage {
    async fn set(args: &Args, seed: u64, folder: &Path) -> anyhow::Result<Self> {
        let installation = Arc::new(Box::pin(Installation::start(&args.stack, folder)).await?);
        let recorder = Recorder::install(
            installation.proxy(crate::plan::Link::Broker),
            installation.clock,
        );
        let replicas = Arc::new(Replicas::start(&installation).await?);
        let load = Load::new(Arc::clone(&installation), Arc::clone(&replicas), seed);
        load.start(args.buyers_per_second).await?;
        let watch = Watch::new(Arc::clone(&installation), load.clone());
        Ok(Self {
            installation,
            replicas,
            load,
            recorder,
            watch,
        })
    }

    /// Makes all faults; when this returns, the last one has ended and every process runs.
    async fn break_things(
        &self,
        args: &Args,
        rounds: Vec<Round>,
        report: &mut Report,
    ) -> anyhow::Result<Injector> {
        let injector = Injector::new(
            Arc::clone(&self.installation),
            Arc::clone(&self.replicas),
            self.load.clone(),
            self.recorder.clone(),
        );
        let clock = self.installation.clock;
        let began = clock.now();
        let length = u64::try_from(args.length().as_millis()).unwrap_or(u64::MAX);
        for round in rounds {
            if clock.now() >= began + length {
                // A machine that falls behind makes fewer rounds, and each of them whole.
                break;
            }
            let mut running = JoinSet::new();
            for faults in round.into_values() {
                running.spawn_local(injector.clone().run(faults, began));
            }
            while let Some(ended) = running.join_next().await {
                ended.context("a lane of faults broke off")?;
            }
        }
        // A run of few kinds may be done with them before its time.
        clock.sleep_until(began, args.length()).await;
        self.load.close();
        let ended = clock.now();
        report.seconds_accepting = self.load.ledger().seconds_accepting(began..ended);
        report.seconds = ended / 1_000 - began / 1_000;
        self.replicas.await_ready().await?;
        Ok(injector)
    }

    /// Waits for the rest, then everybody asks a last time. Whom a failover has forgotten without a trace
    /// buys only now, so what that set in motion is waited for as well, and asked about.
    async fn settle(&self) -> anyhow::Result<Settled> {
        let mut settled = settle(&self.installation, &self.load).await?;
        self.load.end().await;
        self.load.ask_everybody_again().await;
        let late = settle(&self.installation, &self.load).await?;
        self.load.ask_everybody_again().await;
        settled.left.extend(late.left);
        Ok(settled)
    }

    async fn judge(
        &self,
        report: &mut Report,
        records: &Records,
        settled: Settled,
    ) -> anyhow::Result<Violations> {
        let evidence = Evidence {
            installation: &self.installation,
            load: &self.load,
            recorder: &self.recorder,
            replicas: &self.replicas,
            records,
        };
        let mut violations = oracle::judge(&evidence).await?;
        let mut stuck = settled.left;
        if stuck.is_empty() {
            // The last round of questions must not have set anything in motion.
            stuck = unsettled(&records.dump);
        }
        let dead = self.replicas.dead();
        stuck.extend(
            dead.iter()
                .map(|name| format!("{name} has ended by itself")),
        );
        let seen = self.watch.seen();
        for (wrong, texts) in [(Wrong::Stuck, stuck), (Wrong::Broken, seen.violations)] {
            if !texts.is_empty() {
                violations.entry(wrong).or_default().extend(texts);
            }
        }
        report.looks = seen.looks;
        report.audit = oracle::audit(&evidence).await;
        self.count(report, records);
        Ok(violations)
    }

    fn count(&self, report: &mut Report, records: &Records) {
        let number = |count: usize| u64::try_from(count).unwrap_or(u64::MAX);
        let decided = |kind: &str| {
            let decisions = records.decisions.values();
            number(decisions.filter(|decision| decision.kind == kind).count())
        };
        let ledger = self.load.ledger();
        let purchases = ledger.all();
        let accepted = purchases.iter().filter(|one| one.reservation().is_some());
        let failovers = self.installation.redis.failovers();
        report.calls = ledger.calls();
        report.unknown_answers = ledger.unknown();
        report.purchases = number(purchases.len());
        report.accepted = number(accepted.count());
        report.orders = number(records.orders.len());
        report.cancelled = number(records.orders.iter().filter(|one| !one.is_active()).count());
        report.released = records.in_state("RELEASED");
        report.rejected = decided("REJECTED");
        report.fenced = decided("RELEASED");
        report.parked = number(records.parked.len());
        report.sends = self.recorder.sends();
        report.sales = number(self.load.all_offers().len());
        report.failovers = number(failovers.len());
        report.lost_bytes = failovers.iter().map(|one| one.lost_bytes).sum();
        report.problems = self.load.problems();
    }
}

/// Below 2^32, so that it is easily typed.
fn new_seed() -> u64 {
    let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
    let nanos = now.map_or(0, |since| since.as_nanos());
    Random::new(u64::try_from(nanos & u128::from(u64::MAX)).unwrap_or_default()).below(1 << 32)
}

/// An empty folder of the run's own.
fn make_folder(output: &Path, seed: u64) -> anyhow::Result<PathBuf> {
    let folder = std::path::absolute(output)?.join(format!("seed-{seed}"));
    if folder.exists() {
        std::fs::remove_dir_all(&folder)?;
    }
    std::fs::create_dir_all(&folder).with_context(|| format!("making {}", folder.display()))?;
    Ok(folder)
}

/// One line a fault, to be laid beside the logs.
fn write_faults(folder: &Path, injector: &Injector) -> anyhow::Result<()> {
    let mut made = injector.made();
    made.sort_by_key(|fault| fault.from);
    let lines: Vec<String> = made
        .iter()
        .map(|fault| {
            let (word, way) = (Kind::word(fault.kind), fault.way);
            format!(
                "{:>7} {:>7} {word} {way} {:?}",
                fault.from, fault.to, fault.seen
            )
        })
        .collect();
    std::fs::write(folder.join("faults.txt"), lines.join("\n") + "\n")?;
    Ok(())
}

/// What both stores held, for whoever looks into a violation; the servers end with the run.
async fn keep(folder: &Path, stage: &Stage, records: &Records) -> anyhow::Result<()> {
    std::fs::write(folder.join("redis.txt"), format!("{:?}", records.dump))?;
    let purchases = stage.load.ledger().all();
    let lines: Vec<String> = purchases.iter().map(|one| format!("{one:?}")).collect();
    std::fs::write(folder.join("purchases.txt"), lines.join("\n") + "\n")?;
    let url = stage.installation.database().url();
    for table in oracle::queries::KEPT_TABLES {
        let query = format!("SELECT to_jsonb(t)::text FROM {table} t");
        let rows = oracle::queries::texts(url, &query).await?;
        let lines: Vec<String> = rows.into_iter().flatten().collect();
        std::fs::write(
            folder.join(format!("{table}.jsonl")),
            lines.join("\n") + "\n",
        )?;
    }
    println!("  both stores are kept in {}", folder.display());
    Ok(())
}
