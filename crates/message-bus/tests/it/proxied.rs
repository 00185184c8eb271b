//! A way to the broker with a fault proxy in it.
//!
//! Clients learn the broker's address from the name server, so a proxy stands there, too, and writes
//! the broker proxy's address into its answers; both have ports of five digits.

use std::sync::Arc;

use bytes::Bytes;
use seckill_message_bus::BusConfig;
use seckill_test_support::{Dir, FaultProxy, FrameAction, Framing, TestStack};

use crate::harness::Bus;

pub struct Proxied {
    pub config: BusConfig,
    pub broker: Arc<FaultProxy>,
    _namesrv: FaultProxy,
}

impl Proxied {
    pub async fn start(bus: &Bus) -> Self {
        let namesrv_addr = TestStack::shared().namesrv_addr();
        // Its true upstream is known with the first route.
        let broker = Arc::new(FaultProxy::start(namesrv_addr, Framing::Remoting).await);
        let namesrv = FaultProxy::start(namesrv_addr, Framing::Remoting).await;
        let own = broker.addr().to_string();
        let proxy = Arc::clone(&broker);
        namesrv.on_frame(move |dir, _, frame| {
            let Some(true_addr) = broker_addr(frame.bytes()).filter(|_| dir == Dir::ToClient)
            else {
                return FrameAction::Forward;
            };
            proxy.set_upstream(true_addr.parse().unwrap());
            FrameAction::Replace(replaced(frame.bytes(), &true_addr, &own))
        });
        Self {
            config: BusConfig {
                namesrv: namesrv.addr().to_string(),
                ..bus.config.clone()
            },
            broker,
            _namesrv: namesrv,
        }
    }
}

/// The first quoted `127.0.0.1:<five digits>` of an answer.
fn broker_addr(frame: &Bytes) -> Option<String> {
    const MARK: &[u8] = b"\"127.0.0.1:";
    let at = position(frame, MARK)? + 1;
    let len = MARK.len() - 1 + 5;
    String::from_utf8(frame.get(at..at + len)?.to_vec()).ok()
}

fn replaced(frame: &Bytes, old: &str, new: &str) -> Bytes {
    assert_eq!(old.len(), new.len());
    let mut bytes = frame.to_vec();
    while let Some(at) = position(&bytes, old.as_bytes()) {
        bytes[at..at + new.len()].copy_from_slice(new.as_bytes());
    }
    bytes.into()
}

/// Whether a frame is a broker's answer to a send: only those name an offset and a message.
pub fn is_send_answer(frame: &Bytes) -> bool {
    [&b"\"queueOffset\""[..], b"\"msgId\"", b"\"queueId\""]
        .iter()
        .all(|name| position(frame, name).is_some())
}

/// The same answer with another code. A frame is the length of the rest, the length of the header
/// (its top byte tells the format, 0 for JSON), the header, the body.
pub fn with_code(frame: &Bytes, code: u32) -> Bytes {
    let header_len = u32::from_be_bytes(frame[4..8].try_into().unwrap());
    assert!(header_len >> 24 == 0, "the header is not JSON");
    let end = 8 + usize::try_from(header_len).unwrap();
    let header = std::str::from_utf8(&frame[8..end]).unwrap();
    assert!(header.contains("\"code\":0"), "{header}");
    let header = header.replacen("\"code\":0", &format!("\"code\":{code}"), 1);
    let body = &frame[end..];
    let total = u32::try_from(4 + header.len() + body.len()).unwrap();
    let mut out = total.to_be_bytes().to_vec();
    out.extend(u32::try_from(header.len()).unwrap().to_be_bytes());
    out.extend(header.as_bytes());
    out.extend(body);
    out.into()
}

fn position(haystack: &[u8], needle: &[u8]) -> Option<usize> {
    haystack
        .windows(needle.len())
        .position(|part| part == needle)
}
