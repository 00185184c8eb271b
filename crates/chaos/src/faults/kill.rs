//! SIGKILL for one replica, and a successor with the same settings.

use std::time::Duration;

use super::Seen;
use crate::replicas::Replica;

pub(super) async fn make(replica: &Replica, down: Duration) -> Seen {
    let gone = replica.kill();
    tokio::time::sleep(down).await;
    replica.start();
    match gone {
        Some(pid) => Ok(format!("{} lost its process {pid}", replica.name())),
        None => Err(format!("{} did not run", replica.name())),
    }
}
