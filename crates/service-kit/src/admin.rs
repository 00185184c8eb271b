//! The admin listener: `/livez` and `/readyz`.

use std::collections::BTreeMap;
use std::net::SocketAddr;

use axum::Router;
use axum::extract::State;
use axum::http::StatusCode;
use axum::http::header::CONTENT_TYPE;
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use serde::Serialize;
use tokio::net::TcpListener;
use tracing::info;

use crate::loops::Heartbeat;
use crate::run_file::RunFile;
use crate::{Context, DependencyState, Error};

#[derive(Serialize)]
struct Report {
    service: &'static str,
    ready: bool,
    draining: bool,
    dependencies: BTreeMap<&'static str, DependencyState>,
    loops: BTreeMap<&'static str, Heartbeat>,
}

/// A process that cannot answer this is dead; one whose loop died ends by itself.
async fn livez() -> &'static str {
    "ok\n"
}

async fn readyz(State(ctx): State<Context>) -> Response {
    let readiness = ctx.readiness().borrow().clone();
    let loops = ctx.loops().heartbeats();
    let stalled = loops.values().any(|heartbeat| heartbeat.stalled);
    let report = Report {
        service: ctx.service(),
        ready: readiness.is_ready() && !stalled,
        draining: readiness.draining,
        dependencies: readiness.dependencies,
        loops,
    };
    let status = if report.ready {
        StatusCode::OK
    } else {
        StatusCode::SERVICE_UNAVAILABLE
    };
    let body = serde_json::to_string(&report).unwrap_or_default() + "\n";
    (status, [(CONTENT_TYPE, "application/json")], body).into_response()
}

impl Context {
    /// Tells the address of the service's own gRPC listener, for the run file. Call it before
    /// [`Context::serve_admin`].
    pub fn set_grpc_addr(&self, address: SocketAddr) {
        self.note_grpc_addr(address);
    }

    /// Opens the admin listener and writes the run file. Call it once everything else listens and
    /// all dependencies are watched.
    ///
    /// # Errors
    /// [`Error::Setting`] when the address cannot be opened or the run file not written.
    pub async fn serve_admin(&self) -> Result<SocketAddr, Error> {
        let setting = "--admin-addr (SECKILL_ADMIN_ADDR)";
        let wrong = |error| Error::setting(setting, error);
        let listener = TcpListener::bind(self.admin_addr()).await.map_err(wrong)?;
        let address = listener.local_addr().map_err(wrong)?;
        if let Some(folder) = self.run_dir() {
            let file = RunFile::write(
                folder,
                self.service(),
                self.instance(),
                address,
                self.grpc_addr(),
            )
            .map_err(|error| Error::setting("--run-dir (SECKILL_RUN_DIR)", error))?;
            self.keep_run_file(file);
        }
        let router = Router::new()
            .route("/livez", get(livez))
            .route("/readyz", get(readyz))
            .with_state(self.clone());
        info!(admin_addr = %address, "admin listener is open");
        let ctx = self.clone();
        // It answers until the process ends, so that a drain can be watched: not tracked.
        tokio::spawn(async move {
            if let Err(source) = axum::serve(listener, router).await {
                ctx.fail(Error::System {
                    what: "the admin listener failed".to_owned(),
                    source,
                });
            }
        });
        Ok(address)
    }
}
