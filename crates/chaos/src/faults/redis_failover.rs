//! The primary of Redis dies while the replica lacks its last writes, and the replica takes over.

use std::time::Duration;

use super::Seen;
use crate::installation::Installation;

pub(super) async fn make(
    installation: &Installation,
    unreplicated_ms: u64,
    outage: Duration,
) -> Seen {
    let _control = installation.control.lock().await;
    let unreplicated = Duration::from_millis(unreplicated_ms);
    let failover = Box::pin(
        installation
            .redis
            .fail_over(installation.clock, unreplicated, outage),
    )
    .await
    .map_err(|error| format!("{error:#}"))?;
    let [before, after] = &failover.run_ids;
    let lost = failover.lost_bytes;
    if before != after && lost > 0 {
        Ok(format!(
            "{before:.8} died, {after:.8} took over without {lost} bytes"
        ))
    } else {
        Err(format!("{before:.8} to {after:.8}, {lost} bytes lost"))
    }
}
