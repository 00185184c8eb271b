//! RocketMQ's remoting protocol, as far as faults and clean-up need it.
//!
//! A frame is its length, the length of its header (with the kind of serialisation in the top byte),
//! the header and a body. Both kinds of header are understood: JSON, which the clients here use, and
//! RocketMQ's own.

use std::collections::BTreeMap;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

use anyhow::{Context, bail, ensure};
use bytes::{Buf, BufMut, Bytes, BytesMut};
use serde_json::json;

use crate::proxy::{Dir, Frame, FrameAction};

/// A message to a topic, alone.
pub const SEND_MESSAGE: i32 = 10;
/// The same with shorter field names.
pub const SEND_MESSAGE_V2: i32 = 310;
/// Several messages to a topic.
pub const SEND_BATCH_MESSAGE: i32 = 320;
/// A consumer's request for messages.
pub const PULL_MESSAGE: i32 = 11;
/// A consumer's acknowledgement: the offset that it has reached.
pub const UPDATE_CONSUMER_OFFSET: i32 = 15;
/// A client's sign of life.
pub const HEART_BEAT: i32 = 34;
/// A consumer hands a message back for redelivery.
pub const CONSUMER_SEND_MSG_BACK: i32 = 36;
/// Where a topic's queues are.
pub const GET_ROUTE_INFO_BY_TOPIC: i32 = 105;
/// Which brokers there are.
pub const GET_BROKER_CLUSTER_INFO: i32 = 106;

/// Stored, but not on disk within the broker's time limit.
pub const FLUSH_DISK_TIMEOUT: i32 = 10;
/// Stored, but there is no replica.
pub const SLAVE_NOT_AVAILABLE: i32 = 11;
/// Stored, but not by the replica within the broker's time limit.
pub const FLUSH_SLAVE_TIMEOUT: i32 = 12;

/// A busy broker answers a question about itself within this time.
const CALL_DEADLINE: Duration = Duration::from_secs(10);

/// Longer than any answer about topics and groups.
const FRAME_MAX: u32 = 64 << 20;

const RESPONSE_FLAG: i32 = 1;

/// How a header is written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Serialization {
    /// As a JSON object.
    Json,
    /// In RocketMQ's own binary form.
    Binary,
}

/// One request or response.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RemotingCommand {
    /// How the header is written.
    pub serialization: Serialization,
    /// The request's or the response's code.
    pub code: i32,
    /// The language of the sender, in binary form; a JSON header names it.
    pub language: u8,
    /// The protocol's version.
    pub version: i16,
    /// The number that a response repeats from its request.
    pub opaque: i32,
    /// Bit 0: a response; bit 1: no response is wanted.
    pub flag: i32,
    /// A text for people.
    pub remark: Option<String>,
    /// The fields of the header.
    pub ext_fields: BTreeMap<String, String>,
    /// What follows the header.
    pub body: Bytes,
}

/// RocketMQ's number for "other" among the languages.
const LANGUAGE_OTHER: u8 = 7;

impl RemotingCommand {
    /// A request with a JSON header.
    #[must_use]
    pub fn request(code: i32, fields: &[(&str, &str)]) -> Self {
        let fields = fields.iter();
        Self {
            serialization: Serialization::Json,
            code,
            language: LANGUAGE_OTHER,
            version: 493,
            opaque: 1,
            flag: 0,
            remark: None,
            ext_fields: fields
                .map(|(name, value)| ((*name).to_owned(), (*value).to_owned()))
                .collect(),
            body: Bytes::new(),
        }
    }

    /// The broker's answer to this request, as a fake broker would give it.
    #[must_use]
    pub fn response(&self, code: i32) -> Self {
        Self {
            code,
            flag: RESPONSE_FLAG,
            remark: None,
            ext_fields: BTreeMap::new(),
            body: Bytes::new(),
            ..self.clone()
        }
    }

    /// Whether it is an answer.
    #[must_use]
    pub const fn is_response(&self) -> bool {
        self.flag & RESPONSE_FLAG != 0
    }

    /// Whether it is a request that sends one or more messages.
    #[must_use]
    pub const fn is_send(&self) -> bool {
        !self.is_response()
            && matches!(
                self.code,
                SEND_MESSAGE | SEND_MESSAGE_V2 | SEND_BATCH_MESSAGE
            )
    }

    /// Reads a whole frame.
    ///
    /// # Errors
    ///
    /// When it is not one.
    pub fn parse(frame: &[u8]) -> anyhow::Result<Self> {
        let mut rest = frame;
        ensure!(rest.len() >= 8, "a frame of {} bytes", frame.len());
        let total = usize::try_from(rest.get_u32())?;
        ensure!(total + 4 == frame.len(), "a length of {total}");
        let marked = rest.get_u32();
        let header_len = usize::try_from(marked & 0x00ff_ffff)?;
        ensure!(header_len <= rest.len(), "a header of {header_len} bytes");
        let (header, body) = rest.split_at(header_len);
        let mut command = match marked >> 24 {
            0 => parse_json(header)?,
            1 => parse_binary(header)?,
            other => bail!("serialisation {other}"),
        };
        command.body = Bytes::copy_from_slice(body);
        Ok(command)
    }

    /// Writes a whole frame.
    #[must_use]
    pub fn encode(&self) -> Bytes {
        let (mark, header) = match self.serialization {
            Serialization::Json => (0_u32, self.json_header()),
            Serialization::Binary => (1 << 24, self.binary_header()),
        };
        let mut frame = BytesMut::new();
        frame.put_u32(length(4 + header.len() + self.body.len()));
        frame.put_u32(mark | length(header.len()));
        frame.put_slice(&header);
        frame.put_slice(&self.body);
        frame.freeze()
    }

    fn json_header(&self) -> Vec<u8> {
        let mut header = json!({
            "code": self.code,
            "flag": self.flag,
            "language": "OTHER",
            "opaque": self.opaque,
            "serializeTypeCurrentRPC": "JSON",
            "version": self.version,
            "extFields": self.ext_fields,
        });
        if let Some(remark) = &self.remark {
            header["remark"] = json!(remark);
        }
        header.to_string().into_bytes()
    }

    fn binary_header(&self) -> Vec<u8> {
        let mut header = Vec::new();
        header.put_i16(i16::try_from(self.code).unwrap_or(i16::MAX));
        header.put_u8(self.language);
        header.put_i16(self.version);
        header.put_i32(self.opaque);
        header.put_i32(self.flag);
        let remark = self.remark.as_deref().unwrap_or_default();
        header.put_u32(length(remark.len()));
        header.put_slice(remark.as_bytes());
        let mut fields = Vec::new();
        for (name, value) in &self.ext_fields {
            fields.put_u16(u16::try_from(name.len()).unwrap_or(u16::MAX));
            fields.put_slice(name.as_bytes());
            fields.put_u32(length(value.len()));
            fields.put_slice(value.as_bytes());
        }
        header.put_u32(length(fields.len()));
        header.put_slice(&fields);
        header
    }
}

/// Frames here are far below 4 GiB.
fn length(len: usize) -> u32 {
    u32::try_from(len).unwrap_or(u32::MAX)
}

fn parse_json(header: &[u8]) -> anyhow::Result<RemotingCommand> {
    let header: serde_json::Value = serde_json::from_slice(header).context("a JSON header")?;
    let number = |name: &str| i32::try_from(header[name].as_i64().unwrap_or_default());
    let mut ext_fields = BTreeMap::new();
    if let Some(fields) = header["extFields"].as_object() {
        for (name, value) in fields {
            // Most values are texts; a number or a truth value keeps its spelling.
            let text = value
                .as_str()
                .map_or_else(|| value.to_string(), str::to_owned);
            ext_fields.insert(name.clone(), text);
        }
    }
    Ok(RemotingCommand {
        serialization: Serialization::Json,
        code: number("code")?,
        language: LANGUAGE_OTHER,
        version: i16::try_from(number("version")?)?,
        opaque: number("opaque")?,
        flag: number("flag")?,
        remark: header["remark"].as_str().map(str::to_owned),
        ext_fields,
        body: Bytes::new(),
    })
}

/// Takes bytes from the front, or fails where a panic of `Buf` would hide what was cut short.
fn take<'a>(rest: &mut &'a [u8], len: usize) -> anyhow::Result<&'a [u8]> {
    ensure!(rest.len() >= len, "a header that is cut short");
    let (taken, left) = rest.split_at(len);
    *rest = left;
    Ok(taken)
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

fn parse_binary(header: &[u8]) -> anyhow::Result<RemotingCommand> {
    let mut rest = header;
    let mut fixed = take(&mut rest, 13)?;
    let code = i32::from(fixed.get_i16());
    let language = fixed.get_u8();
    let version = fixed.get_i16();
    let (opaque, flag) = (fixed.get_i32(), fixed.get_i32());
    let remark_len = usize::try_from(take(&mut rest, 4)?.get_u32())?;
    let remark = text(take(&mut rest, remark_len)?);
    let fields_len = usize::try_from(take(&mut rest, 4)?.get_u32())?;
    let mut fields = take(&mut rest, fields_len)?;
    let mut ext_fields = BTreeMap::new();
    while !fields.is_empty() {
        let name_len = usize::from(take(&mut fields, 2)?.get_u16());
        let name = text(take(&mut fields, name_len)?);
        let value_len = usize::try_from(take(&mut fields, 4)?.get_u32())?;
        ext_fields.insert(name, text(take(&mut fields, value_len)?));
    }
    Ok(RemotingCommand {
        serialization: Serialization::Binary,
        code,
        language,
        version,
        opaque,
        flag,
        remark: (!remark.is_empty()).then_some(remark),
        ext_fields,
        body: Bytes::new(),
    })
}

/// Sends one request to a name server or broker and awaits its answer. It blocks: answers about
/// topics and addresses come within milliseconds.
///
/// # Errors
///
/// When nobody listens or nothing comes back.
pub fn call(address: SocketAddr, request: &RemotingCommand) -> anyhow::Result<RemotingCommand> {
    let doing = || format!("request {} to {address}", request.code);
    let mut stream = TcpStream::connect_timeout(&address, CALL_DEADLINE).with_context(doing)?;
    stream.set_read_timeout(Some(CALL_DEADLINE))?;
    stream.write_all(&request.encode()).with_context(doing)?;
    let mut prefix = [0; 4];
    stream.read_exact(&mut prefix).with_context(doing)?;
    let len = u32::from_be_bytes(prefix);
    ensure!(len <= FRAME_MAX, "an answer of {len} bytes");
    let mut frame = vec![0; 4 + usize::try_from(len)?];
    frame[..4].copy_from_slice(&prefix);
    stream.read_exact(&mut frame[4..]).with_context(doing)?;
    RemotingCommand::parse(&frame)
}

/// The texts in quotes in a body that is almost JSON: the servers write numbers as keys.
pub(crate) fn quoted(body: &[u8]) -> Vec<String> {
    let body = String::from_utf8_lossy(body);
    body.split('"')
        .skip(1)
        .step_by(2)
        .map(str::to_owned)
        .collect()
}

/// A hook that makes a broker answer sends with another code, such as [`FLUSH_DISK_TIMEOUT`].
///
/// With `stored` the broker gets the messages and only its answer changes; without, the proxy answers
/// in its place and the messages are lost.
pub fn answer_sends_with(
    code: i32,
    stored: bool,
) -> impl FnMut(Dir, u64, &Frame) -> FrameAction + Send + 'static {
    let mut sends = std::collections::BTreeSet::new();
    move |dir, _, frame| {
        let Some(command) = frame.remoting() else {
            return FrameAction::Forward;
        };
        let key = (frame.connection(), command.opaque);
        match dir {
            Dir::ToServer if command.is_send() && stored => {
                sends.insert(key);
                FrameAction::Forward
            }
            Dir::ToServer if command.is_send() => {
                let mut answer = command.response(code);
                answer.ext_fields = lost_message_fields();
                FrameAction::ReplyWith(answer.encode())
            }
            Dir::ToClient if command.is_response() && sends.remove(&key) => {
                let changed = RemotingCommand { code, ..command };
                FrameAction::Replace(changed.encode())
            }
            _ => FrameAction::Forward,
        }
    }
}

/// The fields of a send's answer that clients insist on.
fn lost_message_fields() -> BTreeMap<String, String> {
    let zeros = "0".repeat(32);
    [
        ("msgId", zeros.as_str()),
        ("queueId", "0"),
        ("queueOffset", "0"),
    ]
    .map(|(name, value)| (name.to_owned(), value.to_owned()))
    .into()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sample(serialization: Serialization) -> RemotingCommand {
        RemotingCommand {
            serialization,
            opaque: 77,
            remark: Some("a remark".to_owned()),
            body: Bytes::from_static(b"body"),
            ..RemotingCommand::request(SEND_MESSAGE_V2, &[("b", "topic"), ("e", "3")])
        }
    }

    #[test]
    fn both_kinds_of_header_survive_a_round_trip() {
        for serialization in [Serialization::Json, Serialization::Binary] {
            let command = sample(serialization);
            assert_eq!(RemotingCommand::parse(&command.encode()).unwrap(), command);
            assert!(command.is_send());
            let response = command.response(FLUSH_DISK_TIMEOUT);
            let parsed = RemotingCommand::parse(&response.encode()).unwrap();
            assert!(parsed.is_response() && !parsed.is_send());
            assert_eq!((parsed.code, parsed.opaque), (FLUSH_DISK_TIMEOUT, 77));
        }
    }

    #[test]
    fn a_frame_that_is_cut_short_is_refused() {
        for serialization in [Serialization::Json, Serialization::Binary] {
            let frame = sample(serialization).encode();
            for len in 0..frame.len() {
                assert!(RemotingCommand::parse(&frame[..len]).is_err(), "{len}");
            }
        }
    }

    #[test]
    fn quoted_texts_are_found_in_almost_json() {
        let body = br#"{"brokerAddrs":{0:"127.0.0.1:24000"},"n":1}"#;
        assert_eq!(quoted(body), ["brokerAddrs", "127.0.0.1:24000", "n"]);
    }
}
