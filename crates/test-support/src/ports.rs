//! Free loopback ports for servers that cannot choose one themselves.

use std::net::{Ipv4Addr, SocketAddr, TcpListener};

use rand::Rng;

/// Below Linux's range for outgoing connections (32768 and up), so that no client of a busy test sits
/// on the port of a server that is about to restart, and five digits long, so that one port can
/// replace another inside a frame without changing its length.
const PORTS: std::ops::Range<u16> = 20_000..32_000;

/// With 12,000 ports and far fewer than 1,000 in use, a hundred tries fail once in 10^100 runs.
const TRIES: usize = 100;

/// The loopback address with a port.
#[must_use]
pub const fn loopback(port: u16) -> SocketAddr {
    SocketAddr::new(std::net::IpAddr::V4(Ipv4Addr::LOCALHOST), port)
}

/// A port on which nobody listens now. Somebody may take it before the caller does: a server that ends
/// at its start is to be started again with another.
pub(crate) fn free_port() -> anyhow::Result<u16> {
    let (_, port) = bind_any()?;
    Ok(port)
}

/// Binds a listener to a free port of the range.
pub(crate) fn bind_any() -> anyhow::Result<(TcpListener, u16)> {
    let mut random = rand::rng();
    for _ in 0..TRIES {
        let port = random.random_range(PORTS);
        if let Ok(listener) = TcpListener::bind(loopback(port)) {
            return Ok((listener, port));
        }
    }
    anyhow::bail!(
        "no free loopback port between {} and {}",
        PORTS.start,
        PORTS.end
    )
}
