//! A minimal Redis client for looking from outside.
//!
//! Tests inspect the server independently of the client library under test, and send commands that it
//! does not offer (`DEBUG`, `CONFIG`, `CLUSTER`). Only RESP2 replies are understood; nothing here asks
//! for RESP3.

use std::fmt;
use std::net::SocketAddr;

use anyhow::{Context, bail};
use bytes::{Buf, BytesMut};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

/// A reply of the server. Texts that are not UTF-8 have their foreign bytes escaped.
#[derive(Clone, PartialEq, Eq)]
pub enum Value {
    /// No value.
    Nil,
    /// A status such as `OK`.
    Status(String),
    /// An error reply.
    Error(String),
    /// A number.
    Int(i64),
    /// A text.
    Text(String),
    /// An array.
    List(Vec<Self>),
}

impl Value {
    /// The text of a status or a bulk string; a number in decimal.
    ///
    /// # Panics
    ///
    /// When it is none of these.
    #[must_use]
    #[track_caller]
    pub fn text(&self) -> String {
        match self {
            Self::Status(text) | Self::Text(text) => text.clone(),
            Self::Int(number) => number.to_string(),
            other => panic!("expected a text, got {other:?}"),
        }
    }

    /// The number, also when it came as a text.
    ///
    /// # Panics
    ///
    /// When it is not a number.
    #[must_use]
    #[track_caller]
    pub fn int(&self) -> i64 {
        match self {
            Self::Int(number) => *number,
            Self::Text(text) => match text.parse() {
                Ok(number) => number,
                Err(_) => panic!("expected a number, got {text:?}"),
            },
            other => panic!("expected a number, got {other:?}"),
        }
    }

    /// The elements of an array.
    ///
    /// # Panics
    ///
    /// When it is not an array.
    #[must_use]
    #[track_caller]
    pub fn list(&self) -> &[Self] {
        match self {
            Self::List(items) => items,
            other => panic!("expected an array, got {other:?}"),
        }
    }

    /// The texts of an array.
    ///
    /// # Panics
    ///
    /// When it is not an array of texts.
    #[must_use]
    #[track_caller]
    pub fn texts(&self) -> Vec<String> {
        self.list().iter().map(Self::text).collect()
    }

    /// Whether there is no value.
    #[must_use]
    pub const fn is_nil(&self) -> bool {
        matches!(self, Self::Nil)
    }

    /// The message of an error reply.
    #[must_use]
    pub fn error(&self) -> Option<&str> {
        match self {
            Self::Error(message) => Some(message),
            _ => None,
        }
    }
}

impl fmt::Debug for Value {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Nil => f.write_str("nil"),
            Self::Status(text) => write!(f, "+{text}"),
            Self::Error(text) => write!(f, "-{text}"),
            Self::Int(number) => write!(f, "{number}"),
            Self::Text(text) => write!(f, "{text:?}"),
            Self::List(items) => f.debug_list().entries(items).finish(),
        }
    }
}

/// The text of some bytes, with bytes that are not UTF-8 escaped.
fn readable(bytes: &[u8]) -> String {
    std::str::from_utf8(bytes).map_or_else(|_| bytes.escape_ascii().to_string(), str::to_owned)
}

/// A command as the array of bulk strings that servers expect.
pub fn encode_command<A: AsRef<[u8]>>(arguments: &[A], out: &mut Vec<u8>) {
    out.extend_from_slice(format!("*{}\r\n", arguments.len()).as_bytes());
    for argument in arguments {
        let argument = argument.as_ref();
        out.extend_from_slice(format!("${}\r\n", argument.len()).as_bytes());
        out.extend_from_slice(argument);
        out.extend_from_slice(b"\r\n");
    }
}

/// Reads one value from the front; the rest is left. `None` while bytes are missing.
pub fn parse_value(input: &[u8]) -> anyhow::Result<Option<(Value, usize)>> {
    let Some(end) = input.windows(2).position(|pair| pair == b"\r\n") else {
        return Ok(None);
    };
    let (kind, line) = input[..end].split_first().context("an empty line")?;
    let line = readable(line);
    let after = end + 2;
    let value = match kind {
        b'+' => Value::Status(line),
        b'-' => Value::Error(line),
        b':' => Value::Int(line.parse()?),
        b'$' => return parse_bulk(input, line.parse()?, after),
        b'*' => return parse_list(input, line.parse()?, after),
        other => bail!("unknown reply type {:?}", char::from(*other)),
    };
    Ok(Some((value, after)))
}

fn parse_bulk(input: &[u8], len: i64, start: usize) -> anyhow::Result<Option<(Value, usize)>> {
    let Ok(len) = usize::try_from(len) else {
        return Ok(Some((Value::Nil, start)));
    };
    let end = start + len;
    if input.len() < end + 2 {
        return Ok(None);
    }
    Ok(Some((Value::Text(readable(&input[start..end])), end + 2)))
}

fn parse_list(input: &[u8], len: i64, start: usize) -> anyhow::Result<Option<(Value, usize)>> {
    if len < 0 {
        return Ok(Some((Value::Nil, start)));
    }
    let mut items = Vec::new();
    let mut at = start;
    for _ in 0..len {
        let Some((item, used)) = parse_value(&input[at..])? else {
            return Ok(None);
        };
        items.push(item);
        at += used;
    }
    Ok(Some((Value::List(items), at)))
}

/// One connection to a server.
#[derive(Debug)]
pub struct RedisConnection {
    stream: TcpStream,
    input: BytesMut,
}

impl RedisConnection {
    /// Connects.
    ///
    /// # Errors
    ///
    /// When nobody listens.
    pub async fn open(address: SocketAddr) -> anyhow::Result<Self> {
        let stream = TcpStream::connect(address)
            .await
            .with_context(|| format!("connecting to Redis at {address}"))?;
        stream.set_nodelay(true)?;
        Ok(Self {
            stream,
            input: BytesMut::new(),
        })
    }

    /// Sends one command and awaits its reply; an error reply is a value, too.
    ///
    /// # Errors
    ///
    /// When the connection is lost.
    pub async fn call<A: AsRef<[u8]>>(&mut self, arguments: &[A]) -> anyhow::Result<Value> {
        let mut out = Vec::new();
        encode_command(arguments, &mut out);
        self.stream.write_all(&out).await?;
        self.read().await
    }

    /// Sends commands together and awaits all replies.
    ///
    /// # Errors
    ///
    /// When the connection is lost.
    pub async fn pipeline<A: AsRef<[u8]>>(
        &mut self,
        commands: &[Vec<A>],
    ) -> anyhow::Result<Vec<Value>> {
        let mut out = Vec::new();
        for command in commands {
            encode_command(command, &mut out);
        }
        // Writing and reading take turns: with both sides only writing, full socket buffers would
        // hold each other up.
        let (mut reader, mut writer) = self.stream.split();
        let input = &mut self.input;
        let write = async { writer.write_all(&out).await.map_err(anyhow::Error::from) };
        let read = async {
            let mut replies = Vec::with_capacity(commands.len());
            while replies.len() < commands.len() {
                replies.push(read_value(&mut reader, input).await?);
            }
            Ok(replies)
        };
        let ((), replies) = tokio::try_join!(write, read)?;
        Ok(replies)
    }

    /// Awaits one more reply, such as a message of a subscription.
    ///
    /// # Errors
    ///
    /// When the connection is lost.
    pub async fn read(&mut self) -> anyhow::Result<Value> {
        read_value(&mut self.stream, &mut self.input).await
    }
}

async fn read_value(
    stream: &mut (impl AsyncReadExt + Unpin),
    input: &mut BytesMut,
) -> anyhow::Result<Value> {
    loop {
        if let Some((value, used)) = parse_value(input)? {
            input.advance(used);
            return Ok(value);
        }
        if stream.read_buf(input).await? == 0 {
            bail!("Redis closed the connection");
        }
    }
}
