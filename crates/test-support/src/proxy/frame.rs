//! One message on the wire, with what a hook wants to know of it.

use bytes::Bytes;

use super::Framing;
use crate::remoting::RemotingCommand;
use crate::resp::{Value, parse_value};

/// One whole message.
#[derive(Debug, Clone)]
pub struct Frame {
    framing: Framing,
    connection: u64,
    bytes: Bytes,
}

impl Frame {
    pub(super) const fn new(framing: Framing, connection: u64, bytes: Bytes) -> Self {
        Self {
            framing,
            connection,
            bytes,
        }
    }

    /// The number of its connection, from 1 in the order of acceptance.
    #[must_use]
    pub const fn connection(&self) -> u64 {
        self.connection
    }

    /// Its bytes.
    #[must_use]
    pub const fn bytes(&self) -> &Bytes {
        &self.bytes
    }

    /// Whether it contains these bytes anywhere.
    #[must_use]
    pub fn contains(&self, needle: &[u8]) -> bool {
        !needle.is_empty() && self.bytes.windows(needle.len()).any(|part| part == needle)
    }

    /// A Redis command's name in upper case; `None` for replies and other protocols.
    #[must_use]
    pub fn redis_command(&self) -> Option<String> {
        if self.framing != Framing::Resp {
            return None;
        }
        match parse_value(&self.bytes) {
            Ok(Some((Value::List(items), _))) => match items.first()? {
                Value::Text(name) => Some(name.to_ascii_uppercase()),
                _ => None,
            },
            _ => None,
        }
    }

    /// A Redis reply or command as a value; `None` for RESP3 types and other protocols.
    #[must_use]
    pub fn redis_value(&self) -> Option<Value> {
        if self.framing != Framing::Resp {
            return None;
        }
        parse_value(&self.bytes)
            .ok()
            .flatten()
            .map(|(value, _)| value)
    }

    /// The type of a PostgreSQL message; 0 for the untyped ones at a connection's start.
    #[must_use]
    pub fn postgres_type(&self) -> Option<u8> {
        if self.framing != Framing::Postgres {
            return None;
        }
        self.bytes.first().copied()
    }

    /// The text of a PostgreSQL `Query` or `Parse`.
    #[must_use]
    pub fn postgres_query(&self) -> Option<&str> {
        let body = self.bytes.get(5..)?;
        let mut fields = body.split(|byte| *byte == 0);
        let text = match self.postgres_type()? {
            b'Q' => fields.next()?,
            b'P' => fields.nth(1)?,
            _ => return None,
        };
        std::str::from_utf8(text).ok()
    }

    /// A request or response of RocketMQ; `None` for other protocols.
    #[must_use]
    pub fn remoting(&self) -> Option<RemotingCommand> {
        if self.framing != Framing::Remoting {
            return None;
        }
        RemotingCommand::parse(&self.bytes).ok()
    }
}
