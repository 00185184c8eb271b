//! SIGTERM and SIGINT: the first begins the drain, the second ends the process at once.

use tokio::signal::unix::{Signal, SignalKind, signal};
use tracing::{info, warn};

use crate::{Context, EXIT_FAILED, Error};

async fn next(terminate: &mut Signal, interrupt: &mut Signal) -> &'static str {
    tokio::select! {
        _ = terminate.recv() => "SIGTERM",
        _ = interrupt.recv() => "SIGINT",
    }
}

/// Listens for signals from here on.
pub(crate) fn listen(ctx: &Context) -> Result<(), Error> {
    let listen_for = |kind| {
        signal(kind).map_err(|source| Error::System {
            what: "signals cannot be listened for".to_owned(),
            source,
        })
    };
    let mut terminate = listen_for(SignalKind::terminate())?;
    let mut interrupt = listen_for(SignalKind::interrupt())?;
    let ctx = ctx.clone();
    tokio::spawn(async move {
        let first = next(&mut terminate, &mut interrupt).await;
        info!("{first}: draining");
        ctx.begin_drain(ctx.drain_delay());
        let second = next(&mut terminate, &mut interrupt).await;
        warn!("{second} again: ending at once, what was in hand is left to recovery");
        std::process::exit(i32::from(EXIT_FAILED));
    });
    Ok(())
}
