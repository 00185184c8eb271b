//! Connections as they come in, up to a limit.
//!
//! Left alone, tonic's accept loop takes whatever comes, and when the process has no file descriptors
//! left it spins without a word.

use std::io::{self, ErrorKind, IoSlice};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use futures::stream::{self, Stream, StreamExt};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tonic::transport::server::{Connected, TcpConnectInfo, TcpIncoming};
use tracing::warn;

use crate::log_limit::LogLimit;

/// The pause after a failed accept: without file descriptors the next one fails too, and ten attempts
/// a second are soon enough once some are free again.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// Where connections come from, and how many may be open.
struct Door {
    listener: TcpIncoming,
    room: Arc<Semaphore>,
    trouble: LogLimit,
    shed: LogLimit,
}

/// The connections of a listener. Beyond `connections_max` open ones a new one is closed at once, so
/// that its caller turns to another front instead of waiting for an answer.
pub(crate) fn incoming(
    listener: TcpListener,
    keepalive: Duration,
    connections_max: usize,
) -> impl Stream<Item = io::Result<Connection>> {
    let door = Door {
        listener: TcpIncoming::from(listener)
            .with_nodelay(Some(true))
            .with_keepalive(Some(keepalive)),
        room: Arc::new(Semaphore::new(connections_max)),
        trouble: LogLimit::new(),
        shed: LogLimit::new(),
    };
    stream::unfold(door, |mut door| async move {
        let connection = door.accept().await?;
        Some((Ok(connection), door))
    })
}

impl Door {
    async fn accept(&mut self) -> Option<Connection> {
        loop {
            let stream = match self.listener.next().await? {
                Ok(stream) => stream,
                Err(error) => {
                    self.failed(&error).await;
                    continue;
                }
            };
            if let Ok(room) = Arc::clone(&self.room).try_acquire_owned() {
                return Some(Connection {
                    stream,
                    _room: room,
                });
            }
            if let Some(left_out) = self.shed.allow() {
                warn!(
                    left_out,
                    "too many connections, some are closed (see SECKILL_FRONT_CONNECTIONS_MAX)"
                );
            }
        }
    }

    async fn failed(&self, error: &io::Error) {
        // The peer left before it was accepted; the next one may be fine.
        if matches!(
            error.kind(),
            ErrorKind::ConnectionAborted | ErrorKind::ConnectionReset | ErrorKind::Interrupted
        ) {
            return;
        }
        if let Some(left_out) = self.trouble.allow() {
            warn!(left_out, "no connection can be accepted: {error}");
        }
        tokio::time::sleep(ACCEPT_PAUSE).await;
    }
}

/// A connection that gives its room back when it ends.
pub(crate) struct Connection {
    stream: TcpStream,
    _room: OwnedSemaphorePermit,
}

impl Connected for Connection {
    type ConnectInfo = TcpConnectInfo;

    fn connect_info(&self) -> TcpConnectInfo {
        self.stream.connect_info()
    }
}

impl AsyncRead for Connection {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_read(cx, buffer)
    }
}

impl AsyncWrite for Connection {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write(cx, bytes)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(cx)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        slices: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write_vectored(cx, slices)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }
}

#[cfg(test)]
mod tests {
    use tokio::io::AsyncReadExt;

    use super::*;

    #[tokio::test]
    async fn a_connection_too_many_is_closed_and_a_closed_one_makes_room() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let mut incoming = Box::pin(incoming(listener, Duration::from_secs(20), 1));
        let _first = TcpStream::connect(address).await.unwrap();
        let held = incoming.next().await.unwrap().unwrap();

        let mut second = TcpStream::connect(address).await.unwrap();
        let mut byte = [0];
        tokio::select! {
            read = second.read(&mut byte) => assert_eq!(read.unwrap(), 0, "closed"),
            _ = incoming.next() => panic!("there is no room for a second one"),
        }
        drop(held);
        let _third = TcpStream::connect(address).await.unwrap();
        assert!(incoming.next().await.unwrap().is_ok());
    }
}
