//! Where one message ends and the next begins, for each protocol that the proxy understands.
//!
//! A decoder is fed whatever the socket gives and yields whole frames; their concatenation is always
//! exactly the input. A stream that breaks its protocol is passed on unframed from there on, and
//! counted: a test may send rubbish on purpose.

#[cfg(test)]
mod tests;

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use bytes::{Bytes, BytesMut};

use super::Dir;

/// The protocol on the wire.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Framing {
    /// Nothing is known: every piece that arrives is a frame.
    Raw,
    /// Redis: commands one way, replies and pushes (RESP2 and RESP3) the other.
    Resp,
    /// PostgreSQL's protocol, version 3.
    Postgres,
    /// RocketMQ's remoting protocol.
    Remoting,
}

/// A length beyond which a frame is taken for rubbish: RocketMQ's and Redis's own messages in these
/// tests stay below 16 MiB.
const FRAME_MAX: usize = 64 << 20;

/// Asks for encryption; answered by one byte without a header.
const SSL_REQUEST: u32 = 80_877_103;
/// The same for GSSAPI.
const GSSENC_REQUEST: u32 = 80_877_104;

/// What both directions of one PostgreSQL connection must know of each other.
#[derive(Debug, Default)]
pub(super) struct Handshake {
    /// Requests whose answer is a single byte.
    one_byte_answers: AtomicU32,
}

/// Finds the end of the first frame.
enum Scan {
    /// The frame has this length.
    Complete(usize),
    /// More bytes are needed.
    Incomplete,
    /// This is not the expected protocol.
    Malformed,
}

/// Cuts one direction of one connection into frames.
#[derive(Debug)]
pub(super) struct Decoder {
    framing: Framing,
    dir: Dir,
    buffer: BytesMut,
    handshake: Arc<Handshake>,
    /// PostgreSQL's client: whether its first, untyped message is still to come.
    before_startup: bool,
    resp: RespScan,
    broken: bool,
}

impl Decoder {
    pub(super) fn new(framing: Framing, dir: Dir, handshake: &Arc<Handshake>) -> Self {
        Self {
            framing,
            dir,
            buffer: BytesMut::new(),
            handshake: Arc::clone(handshake),
            before_startup: true,
            resp: RespScan::default(),
            broken: false,
        }
    }

    /// Adds what has arrived.
    pub(super) fn push(&mut self, bytes: &[u8]) {
        self.buffer.extend_from_slice(bytes);
    }

    /// The next frame; the flag says that the stream is not of the expected protocol.
    pub(super) fn next(&mut self) -> Option<Bytes> {
        if self.buffer.is_empty() {
            return None;
        }
        let len = match self.scan() {
            Scan::Complete(len) => len,
            Scan::Incomplete => return None,
            Scan::Malformed => {
                self.broken = true;
                self.buffer.len()
            }
        };
        self.resp = RespScan::default();
        Some(self.buffer.split_to(len).freeze())
    }

    /// Whether the stream has left its protocol; it stays unframed from then on.
    pub(super) const fn is_broken(&self) -> bool {
        self.broken
    }

    /// What is left when the stream ends in the middle of a frame.
    pub(super) fn rest(&mut self) -> Bytes {
        self.buffer.split().freeze()
    }

    fn scan(&mut self) -> Scan {
        if self.broken {
            return Scan::Complete(self.buffer.len());
        }
        match self.framing {
            Framing::Raw => Scan::Complete(self.buffer.len()),
            Framing::Resp => self.resp.advance(&self.buffer, self.dir),
            Framing::Remoting => length_prefixed(&self.buffer, 0, 4, 4),
            Framing::Postgres => self.scan_postgres(),
        }
    }

    fn scan_postgres(&mut self) -> Scan {
        match self.dir {
            Dir::ToClient => {
                let pending = &self.handshake.one_byte_answers;
                let answer = self.buffer.first() != Some(&b'E');
                if pending.load(Ordering::Acquire) > 0 && answer {
                    pending.fetch_sub(1, Ordering::AcqRel);
                    return Scan::Complete(1);
                }
                length_prefixed(&self.buffer, 1, 0, 4)
            }
            Dir::ToServer if self.before_startup => {
                let scan = length_prefixed(&self.buffer, 0, 0, 8);
                if let Scan::Complete(_) = scan {
                    match be_u32(&self.buffer, 4) {
                        // Announced before the request is passed on, so before any answer to it.
                        Some(SSL_REQUEST | GSSENC_REQUEST) => {
                            let pending = &self.handshake.one_byte_answers;
                            pending.fetch_add(1, Ordering::AcqRel);
                        }
                        _ => self.before_startup = false,
                    }
                }
                scan
            }
            Dir::ToServer => length_prefixed(&self.buffer, 1, 0, 4),
        }
    }
}

fn be_u32(bytes: &[u8], at: usize) -> Option<u32> {
    let field = bytes.get(at..at + 4)?;
    field.try_into().ok().map(u32::from_be_bytes)
}

/// A frame whose length stands at `at`; `extra` bytes are not counted by it, and `least` is the
/// smallest value that it can have.
fn length_prefixed(buffer: &[u8], at: usize, extra: usize, least: usize) -> Scan {
    let Some(len) = be_u32(buffer, at) else {
        return Scan::Incomplete;
    };
    let Ok(len) = usize::try_from(len) else {
        return Scan::Malformed;
    };
    if len < least || len > FRAME_MAX {
        return Scan::Malformed;
    }
    let total = at + len + extra;
    if buffer.len() < total {
        return Scan::Incomplete;
    }
    Scan::Complete(total)
}

/// How far the first RESP value has been scanned, so that one that arrives in many pieces is not
/// scanned from its start for each of them.
#[derive(Debug)]
struct RespScan {
    at: usize,
    /// Values that are still to come until the outermost one is complete.
    missing: u64,
}

impl Default for RespScan {
    fn default() -> Self {
        Self { at: 0, missing: 1 }
    }
}

impl RespScan {
    fn advance(&mut self, buffer: &[u8], dir: Dir) -> Scan {
        while self.missing > 0 {
            let Some(rest) = buffer.get(self.at..) else {
                return Scan::Incomplete;
            };
            let Some(line_len) = rest.windows(2).position(|pair| pair == b"\r\n") else {
                // An endless line is no RESP; the longest legal ones are error messages.
                let endless = rest.len() > FRAME_MAX;
                return if endless {
                    Scan::Malformed
                } else {
                    Scan::Incomplete
                };
            };
            let Some((kind, line)) = rest[..line_len].split_first() else {
                return Scan::Malformed;
            };
            let after_line = self.at + line_len + 2;
            match value_of(*kind, line, dir, self.at == 0) {
                Some(Item::Line) => self.at = after_line,
                Some(Item::Bulk(len)) => {
                    let end = after_line + len + 2;
                    if buffer.len() < end {
                        return Scan::Incomplete;
                    }
                    self.at = end;
                }
                Some(Item::Aggregate(count)) => {
                    self.at = after_line;
                    self.missing += count;
                }
                None => return Scan::Malformed,
            }
            self.missing -= 1;
        }
        Scan::Complete(self.at)
    }
}

/// What a RESP type line announces.
enum Item {
    /// The line is the value.
    Line,
    /// So many bytes and a line end follow.
    Bulk(usize),
    /// So many values follow.
    Aggregate(u64),
}

fn value_of(kind: u8, line: &[u8], dir: Dir, is_first: bool) -> Option<Item> {
    let number = || std::str::from_utf8(line).ok()?.parse::<i64>().ok();
    // A negative length stands for "no value".
    let count = || number().map(|count| u64::try_from(count).unwrap_or(0));
    match kind {
        b'$' | b'!' | b'=' => {
            let number = number()?;
            let Ok(len) = usize::try_from(number) else {
                return Some(Item::Line);
            };
            (len <= FRAME_MAX).then_some(Item::Bulk(len))
        }
        b'*' | b'~' | b'>' => count().map(Item::Aggregate),
        b'%' => count()?.checked_mul(2).map(Item::Aggregate),
        // Attributes precede the value that they describe.
        b'|' => count()?.checked_mul(2)?.checked_add(1).map(Item::Aggregate),
        b'+' | b'-' | b':' | b'_' | b'#' | b',' | b'(' => Some(Item::Line),
        // A person's command, typed without RESP.
        b'A'..=b'Z' | b'a'..=b'z' if dir == Dir::ToServer && is_first => Some(Item::Line),
        _ => None,
    }
}
