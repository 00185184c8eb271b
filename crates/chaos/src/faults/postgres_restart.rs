//! PostgreSQL crashes, or stops fast; either way every open transaction is undone.

use std::time::Duration;

use tokio::net::TcpStream;

use super::Seen;
use crate::installation::Installation;

pub(super) async fn make(installation: &Installation, crash: bool, down: Duration) -> Seen {
    let _control = installation.control.lock().await;
    let server = installation.postgres();
    if crash {
        server.crash().await;
    } else {
        server.stop().await;
    }
    let refused = TcpStream::connect(server.address()).await.is_err();
    tokio::time::sleep(down).await;
    server.restart().await;
    if refused {
        Ok("the server was gone".to_owned())
    } else {
        Err("somebody answered in its place".to_owned())
    }
}
