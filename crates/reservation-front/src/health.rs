//! Keeps the standard health service in step with readiness: overall, for the API, and for each
//! dependency by its name.

use seckill_proto::v1::reservation_service_server::SERVICE_NAME;
use seckill_service_kit::{Context, Readiness};
use tonic_health::ServingStatus;
use tonic_health::server::HealthReporter;

/// The name under which the overall state is asked for.
const OVERALL: &str = "";

fn serving(up: bool) -> ServingStatus {
    if up {
        ServingStatus::Serving
    } else {
        ServingStatus::NotServing
    }
}

/// Publishes the present state. To be called before anybody can ask: the health service's own first
/// answer is "serving".
pub(crate) async fn publish(reporter: &HealthReporter, readiness: &Readiness) {
    let ready = serving(readiness.is_ready());
    reporter.set_service_status(OVERALL, ready).await;
    reporter.set_service_status(SERVICE_NAME, ready).await;
    for (name, dependency) in &readiness.dependencies {
        let state = serving(dependency.up);
        reporter.set_service_status(*name, state).await;
    }
}

/// Publishes every change until the service takes no more work.
pub(crate) async fn follow(ctx: Context, reporter: HealthReporter) {
    let mut changes = ctx.readiness();
    let shutdown = ctx.shutdown();
    loop {
        let readiness = changes.borrow_and_update().clone();
        publish(&reporter, &readiness).await;
        tokio::select! {
            changed = changes.changed() => {
                if changed.is_err() {
                    return;
                }
            }
            () = shutdown.cancelled() => return,
        }
    }
}
