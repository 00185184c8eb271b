//! The proxy's thread: accepts connections and follows orders.

use std::net::TcpListener as StdListener;
use std::sync::Arc;

use tokio::net::{TcpListener, TcpSocket};
use tokio::sync::mpsc;
use tokio::task::JoinSet;

use super::{Mode, Order, Sever, Shared, connection};
use crate::ports::loopback;

/// Connections that may wait to be accepted.
const BACKLOG: u32 = 1_024;

pub(super) async fn serve(
    shared: Arc<Shared>,
    listener: StdListener,
    port: u16,
    mut orders: mpsc::UnboundedReceiver<Order>,
) {
    let mut listener = TcpListener::from_std(listener).ok();
    let mut connections = JoinSet::new();
    loop {
        tokio::select! {
            // Orders first: a mode must hold for every connection that is accepted after it was set.
            biased;
            order = orders.recv() => match order {
                Some(Order::Mode(mode, done)) => {
                    if mode == Mode::Refuse {
                        listener = None;
                    } else if listener.is_none() {
                        // The sender of the order sees that no answer comes, and ends the test.
                        let Ok(bound) = bind(port) else { return };
                        listener = Some(bound);
                    }
                    shared.mode.send_modify(|(now, number)| {
                        *now = mode;
                        *number += 1;
                    });
                    if mode == Mode::Refuse {
                        sever(&shared, Sever::Reset, &mut connections).await;
                    }
                    let _ = done.send(());
                }
                Some(Order::Sever(how, done)) => {
                    sever(&shared, how, &mut connections).await;
                    let _ = done.send(());
                }
                None => return,
            },
            accepted = accept(listener.as_ref()) => if let Ok((client, _)) = accepted {
                let sever = shared.sever.subscribe();
                connections.spawn(connection::run(Arc::clone(&shared), client, sever));
            },
            Some(_) = connections.join_next() => {}
        }
    }
}

async fn accept(
    listener: Option<&TcpListener>,
) -> std::io::Result<(tokio::net::TcpStream, std::net::SocketAddr)> {
    match listener {
        Some(listener) => listener.accept().await,
        None => std::future::pending().await,
    }
}

fn bind(port: u16) -> std::io::Result<TcpListener> {
    let socket = TcpSocket::new_v4()?;
    socket.set_reuseaddr(true)?;
    socket.bind(loopback(port))?;
    socket.listen(BACKLOG)
}

/// Ends the connections and awaits their end, so that none of them acts after the order returned.
async fn sever(shared: &Shared, how: Sever, connections: &mut JoinSet<()>) {
    shared.sever.send_modify(|(now, number)| {
        *now = how;
        *number += 1;
    });
    while connections.join_next().await.is_some() {}
}
