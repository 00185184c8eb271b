//! From `main` to the exit code.

use std::env;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use clap::Parser;
use seckill_message_bus::BusRuntime;
use tracing::{error, info, warn};

use crate::settings::{Parsed, read};
use crate::{Context, Error, ErrorKind, ProcessArgs, signals};

/// Something failed.
pub const EXIT_FAILED: u8 = 1;

/// A setting is wrong.
pub const EXIT_USAGE: u8 = 64;

/// A one-shot command could not reach a dependency.
pub const EXIT_UNAVAILABLE: u8 = 69;

/// How long threads of the runtime may take to end once everything that matters is closed.
const RUNTIME_STOP_MAX: Duration = Duration::from_secs(1);

/// What every service's settings offer.
pub trait Settings {
    /// The part that the kit itself needs.
    fn process(&self) -> &ProcessArgs;

    /// Checks what no single value can: settings that must fit together.
    ///
    /// # Errors
    /// [`Error::Setting`] names the one to change.
    fn check(&self) -> Result<(), Error> {
        Ok(())
    }
}

/// Runs a service from its `main`: reads the settings, sets up logging, runs `run` until it returns
/// and everything it started has ended, and says how that went.
///
/// `run` sets up the service, calls [`Context::serve_admin`], waits for [`Context::drained`], closes
/// its clients and returns. Its error becomes exit code 64 when it is an [`Error::Setting`], else 1.
pub fn main<S, F>(service: &'static str, run: F) -> ExitCode
where
    S: Parser + Settings,
    F: AsyncFnOnce(Context, S) -> anyhow::Result<()>,
{
    let parsed = match read::<S>(env::args_os().collect()) {
        Ok(parsed) => parsed,
        Err(refusal) => return ExitCode::from(refusal.report()),
    };
    if let Err(message) = check(&parsed.settings) {
        eprintln!("error: {message}");
        return ExitCode::from(EXIT_USAGE);
    }
    seckill_telemetry::init(service, parsed.settings.process().log_format);
    match start(service, parsed, run) {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => {
            error!("{failure:#}");
            ExitCode::from(exit_code(&failure))
        }
    }
}

fn check<S: Settings>(settings: &S) -> Result<(), String> {
    settings.check().map_err(|error| error.to_string())?;
    seckill_telemetry::check_filter().map_err(|error| error.to_string())
}

fn exit_code(failure: &anyhow::Error) -> u8 {
    match failure.downcast_ref::<Error>().map(Error::kind) {
        Some(ErrorKind::Invalid) => EXIT_USAGE,
        Some(ErrorKind::Fatal) | None => EXIT_FAILED,
    }
}

fn start<S, F>(service: &'static str, parsed: Parsed<S>, run: F) -> anyhow::Result<()>
where
    S: Parser + Settings,
    F: AsyncFnOnce(Context, S) -> anyhow::Result<()>,
{
    info!(
        version = env!("CARGO_PKG_VERSION"),
        commit = option_env!("SECKILL_GIT_SHA").unwrap_or("unknown"),
        pid = std::process::id(),
        settings = parsed.description,
        "starting"
    );
    // The bus client insists on a runtime of its own, made outside of any other.
    let bus = Arc::new(BusRuntime::new()?);
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .enable_all()
        .build()?;
    let ctx = Context::new(service, parsed.settings.process().clone(), Arc::clone(&bus));
    let result = runtime.block_on(Box::pin(supervise(ctx, parsed.settings, run)));
    runtime.shutdown_timeout(RUNTIME_STOP_MAX);
    if let Some(bus) = Arc::into_inner(bus) {
        bus.shutdown();
    }
    if result.is_ok() {
        info!("stopped");
    }
    result
}

async fn supervise<S, F>(ctx: Context, settings: S, run: F) -> anyhow::Result<()>
where
    F: AsyncFnOnce(Context, S) -> anyhow::Result<()>,
{
    signals::listen(&ctx)?;
    let result = tokio::select! {
        result = run(ctx.clone(), settings) => result,
        // Work that ignores the end of the grace period is dropped where it stands.
        () = ctx.cut().cancelled_owned() => Err(Error::CutOff(ctx.loops().running()).into()),
    };
    // Whatever `run` did not wait for gets what is left of the grace period; after an error, nothing.
    if result.is_ok() {
        ctx.begin_drain(Duration::ZERO);
    } else {
        ctx.cut_off();
    }
    let ended = ctx.drained().await;
    ctx.remove_run_file();
    if let Some(failure) = ctx.take_failure() {
        return Err(failure.into());
    }
    if result.is_ok() && !ended {
        let left = ctx.loops().running();
        warn!("still running when the grace period was over: {left}");
        return Err(Error::CutOff(left).into());
    }
    result
}
