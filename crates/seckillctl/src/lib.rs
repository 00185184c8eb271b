//! The operator's command line: schema and topics, activities, inspection, the audit, and a sale.
//!
//! It decides nothing: every step is one of `seckill_activity_control`, which a controller shares.
//! It says what it did as a table for people or as JSON for machines, and ends with a code that
//! scripts can rely on:
//!
//! | code | meaning |
//! | --- | --- |
//! | 0 | done, nothing differs |
//! | 1 | differences were found, or the run failed |
//! | 64 | a setting is wrong; the message names it |
//! | 69 | a dependency could not be reached in time |
//!
//! **Invariant:** it never writes to a store except through the steps of `seckill_activity_control`,
//! `seckill_dead_letters` and `seckill_settlement`, and the migrations of `seckill_order_store`.

mod activity;
mod audit;
mod by;
mod cli;
mod connect;
mod dlq;
mod doctor;
mod exit;
mod migrate;
mod order;
mod output;
mod reconcile;
mod reservation;
mod sale;
mod scope;
mod values;

use std::process::ExitCode;

use anyhow::Context as _;
use seckill_message_bus::BusRuntime;
use seckill_telemetry::LogFormat;

use crate::cli::Cli;
use crate::exit::Verdict;

/// The whole program: reads the settings, runs one command and gives its exit code.
#[must_use]
pub fn main() -> ExitCode {
    let cli = match seckill_service_kit::parse::<Cli>() {
        Ok(cli) => cli,
        Err(code) => return ExitCode::from(code),
    };
    // A command tells its result; what its libraries log only matters to somebody who asks for it.
    if std::env::var_os("RUST_LOG").is_some() {
        seckill_telemetry::init("seckillctl", LogFormat::Text);
    }
    match run(cli) {
        Ok(verdict) => verdict.exit_code(),
        Err(failure) => exit::report(&failure),
    }
}

fn run(cli: Cli) -> anyhow::Result<Verdict> {
    // The bus client insists on a runtime of its own, made outside of any other; commands that do
    // not need it are spared its threads.
    let bus = cli.command.needs_bus().then(BusRuntime::new).transpose()?;
    // One thread: a command waits for servers most of its life, and during a sale the other core
    // belongs to them.
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .context("building the runtime")?;
    let result = runtime.block_on(Box::pin(cli.command.run(cli.output, bus.as_ref())));
    drop(runtime);
    if let Some(bus) = bus {
        bus.shutdown();
    }
    result
}
