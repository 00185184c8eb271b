//! SIGSTOP for one replica: its connections and leases stay, and it does nothing. Then SIGCONT.

use std::net::SocketAddr;
use std::time::Duration;

use seckill_test_support::{ServiceProcess, http_get};
use tokio::time::{sleep, timeout};

use super::Seen;
use crate::replicas::Replica;

/// A process that runs answers within milliseconds, or tens of them on a busy machine.
const SILENCE: Duration = Duration::from_millis(300);

/// How long a process may take to stop.
const STOP_LIMIT: Duration = Duration::from_secs(2);

/// Between two looks at it.
const POLL: Duration = Duration::from_millis(20);

pub(super) async fn make(replica: &Replica, lasts: Duration) -> Seen {
    let admin = replica.admin_addr();
    let Some(pid) = replica.with(|process| {
        process.pause();
        process.pid()
    }) else {
        return Err(format!("{} did not run", replica.name()));
    };
    let began = tokio::time::Instant::now();
    // On a busy machine it takes its time until every thread has met the signal.
    let mut stopped = is_stopped(pid);
    while !stopped && began.elapsed() < STOP_LIMIT {
        sleep(POLL).await;
        stopped = is_stopped(pid);
    }
    let silent = match admin {
        Some(admin) => is_silent(admin).await,
        None => true,
    };
    sleep(lasts.saturating_sub(began.elapsed())).await;
    replica.with(ServiceProcess::resume);
    if stopped && silent {
        Ok(format!("{} stood still", replica.name()))
    } else {
        Err(format!(
            "{}: stopped {stopped}, silent {silent}",
            replica.name()
        ))
    }
}

/// The state stands after the name, which is in parentheses.
fn is_stopped(pid: u32) -> bool {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    let state = stat.rsplit(") ").next();
    state.is_some_and(|rest| rest.starts_with('T'))
}

async fn is_silent(admin: SocketAddr) -> bool {
    let answer = timeout(SILENCE, http_get(admin, "/livez")).await;
    !matches!(answer, Ok(Ok(_)))
}
