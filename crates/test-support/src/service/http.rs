//! A `GET` over HTTP/1.1, for health endpoints.

use std::net::SocketAddr;
use std::time::Duration;

use anyhow::{Context, bail};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::time::timeout;

/// A health endpoint answers within this time, or it does not count as answering.
const DEADLINE: Duration = Duration::from_secs(5);

/// An answer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HttpReply {
    /// The status code.
    pub status: u16,
    /// The body, without its headers.
    pub body: String,
}

/// Asks for a page and reads the answer to its end.
///
/// # Errors
///
/// When nothing that looks like HTTP comes back within five seconds.
pub async fn http_get(address: SocketAddr, path: &str) -> anyhow::Result<HttpReply> {
    let exchange = async {
        let mut stream = TcpStream::connect(address).await?;
        let request =
            format!("GET {path} HTTP/1.1\r\nHost: {address}\r\nConnection: close\r\n\r\n");
        stream.write_all(request.as_bytes()).await?;
        let mut answer = Vec::new();
        stream.read_to_end(&mut answer).await?;
        anyhow::Ok(answer)
    };
    match timeout(DEADLINE, exchange).await {
        Ok(answer) => parse(&answer?),
        Err(_) => bail!("no answer from {address} within {DEADLINE:?}"),
    }
}

fn parse(answer: &[u8]) -> anyhow::Result<HttpReply> {
    let answer = String::from_utf8_lossy(answer);
    let (head, body) = answer
        .split_once("\r\n\r\n")
        .with_context(|| format!("no HTTP answer: {answer:?}"))?;
    let status = head
        .split_whitespace()
        .nth(1)
        .and_then(|code| code.parse().ok())
        .with_context(|| format!("no status: {head:?}"))?;
    Ok(HttpReply {
        status,
        body: body.to_owned(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn answers_are_split_into_status_and_body() {
        let reply = parse(b"HTTP/1.1 503 Service Unavailable\r\nA: b\r\n\r\n{}\n").unwrap();
        assert_eq!((reply.status, reply.body.as_str()), (503, "{}\n"));
        assert!(parse(b"").is_err());
        assert!(parse(b"SSH-2.0\r\n\r\n").is_err());
    }
}
