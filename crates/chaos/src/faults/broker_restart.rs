//! SIGKILL for the broker. What it had taken is in its files; what consumers had confirmed within the
//! last five seconds it may deliver again.

use std::time::Duration;

use super::Seen;
use crate::installation::Broker;

pub(super) async fn make(broker: &Broker, down: Duration) -> Seen {
    let _in_use = broker.in_use.lock().await;
    let killed = broker.kill().map_err(|error| format!("{error:#}"));
    tokio::time::sleep(down).await;
    // Also after a kill that failed: perhaps it does not run at all.
    broker
        .restart()
        .await
        .map_err(|error| format!("{error:#}"))?;
    let gone = killed?;
    let now = broker.pid();
    if now == gone {
        Err(format!("the broker is still process {gone}"))
    } else {
        Ok(format!("broker {gone} was lost, {now} took its place"))
    }
}
