//! An operator who cancels orders while the sale goes on.

use std::time::Duration;

use tokio::time::timeout;

use super::Load;

/// One order every so often: enough that cancelling meets every kind of fault.
const EVERY: Duration = Duration::from_secs(4);

/// Only orders of the last purchases: their cancelling still races with their settlement.
const AMONG: usize = 200;

impl Load {
    pub(super) async fn cancel_orders(&self) {
        while timeout(EVERY, self.shared.closing.cancelled())
            .await
            .is_err()
        {
            let recent = self.draw(|random| self.shared.ledger.late_accepted(AMONG, random));
            let Some(id) = recent else { continue };
            let Some(found) = self.look_up(id).await else {
                continue;
            };
            if !found.order_id.is_empty() {
                self.cancel(&found.order_id).await;
            }
        }
    }

    async fn cancel(&self, order_id: &str) {
        let installation = &self.shared.installation;
        let _control = installation.control.lock().await;
        let mut arguments = vec!["order", "cancel", "--order-id", order_id];
        arguments.extend(["--actor", "chaos", "--reason", "changed their mind"]);
        if let Err(error) = installation.ctl(&arguments).await {
            self.complain(format!("cancelling {order_id}: {error:#}"));
        }
    }
}
