//! What went through the broker's proxy: order requests and whether the broker took them, and copies
//! of messages to send once more.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::{Arc, Mutex, PoisonError};

use seckill_test_support::remoting::RemotingCommand;
use seckill_test_support::{Dir, FaultProxy, Frame, FrameAction};

use crate::clock::{Clock, Moment};

/// Copies that are kept, oldest out first: 5,000 of about a kilobyte.
const COPIES_MAX: usize = 5_000;

/// Sends whose answer may be outstanding. Those of connections that were cut never get one.
const OPEN_MAX: usize = 10_000;

/// The topic of order requests, behind any namespace.
const REQUESTS: &str = "seckill-order-request";

/// How the id of an order request begins, before the reservation's id; by the contract.
const MESSAGE_ID_PREFIX: &[u8] = b"reserve-order:";

/// Characters of a reservation's id.
const RESERVATION_ID_LEN: usize = 26;

/// A message, or a batch of them, as it was sent.
#[derive(Debug, Clone)]
pub(crate) struct Copy {
    pub(crate) at: Moment,
    pub(crate) topic: String,
    pub(crate) request: RemotingCommand,
}

#[derive(Debug, Default)]
struct Record {
    copies: VecDeque<Copy>,
    /// Reservation ids of sends without an answer so far, by connection and number.
    open: BTreeMap<(u64, i32), Vec<String>>,
    /// Reservations whose order request the broker has confirmed.
    confirmed: BTreeSet<String>,
    sends: u64,
}

/// Looks at every frame between the services and the broker.
#[derive(Debug, Clone)]
pub(crate) struct Recorder {
    record: Arc<Mutex<Record>>,
}

impl Recorder {
    /// Installs itself in the proxy, where it stays.
    pub(crate) fn install(proxy: &FaultProxy, clock: Clock) -> Self {
        let record = Arc::new(Mutex::new(Record::default()));
        let inside = Arc::clone(&record);
        proxy.on_frame(move |dir, _, frame| {
            let mut record = inside.lock().unwrap_or_else(PoisonError::into_inner);
            record.note(dir, frame, clock.now());
            FrameAction::Forward
        });
        Self { record }
    }

    fn with<T>(&self, read: impl FnOnce(&Record) -> T) -> T {
        read(&self.record.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// One of the copies that are older than a moment, chosen by a number.
    pub(crate) fn copy(&self, older_than: Moment, pick: u64) -> Option<Copy> {
        self.with(|record| {
            let old = record.copies.partition_point(|copy| copy.at < older_than);
            let index = pick.checked_rem(u64::try_from(old).ok()?)?;
            record.copies.get(usize::try_from(index).ok()?).cloned()
        })
    }

    /// Reservations whose order request the broker has confirmed.
    pub(crate) fn confirmed(&self) -> BTreeSet<String> {
        self.with(|record| record.confirmed.clone())
    }

    /// Messages and batches that were sent.
    pub(crate) fn sends(&self) -> u64 {
        self.with(|record| record.sends)
    }
}

impl Record {
    fn note(&mut self, dir: Dir, frame: &Frame, now: Moment) {
        let Some(command) = frame.remoting() else {
            return;
        };
        let key = (frame.connection(), command.opaque);
        match dir {
            Dir::ToServer if command.is_send() => {
                self.sends += 1;
                self.sent(key, frame.bytes(), command, now);
            }
            Dir::ToClient if command.is_response() => {
                if let Some(ids) = self.open.remove(&key)
                    && command.code == 0
                {
                    self.confirmed.extend(ids);
                }
            }
            Dir::ToServer | Dir::ToClient => {}
        }
    }

    fn sent(&mut self, key: (u64, i32), bytes: &[u8], request: RemotingCommand, now: Moment) {
        let topic = topic_of(&request).to_owned();
        if topic.ends_with(REQUESTS) {
            if self.open.len() >= OPEN_MAX {
                // Numbers of connections grow, so the first one is the oldest.
                self.open.pop_first();
            }
            self.open.insert(key, reservation_ids(bytes));
        }
        if self.copies.len() >= COPIES_MAX {
            self.copies.pop_front();
        }
        self.copies.push_back(Copy {
            at: now,
            topic,
            request,
        });
    }
}

/// The topic stands under its name or, in the shorter form of the request, under a letter.
fn topic_of(request: &RemotingCommand) -> &str {
    let fields = &request.ext_fields;
    let topic = fields.get("topic").or_else(|| fields.get("b"));
    topic.map_or("", String::as_str)
}

/// The reservations whose order requests a frame carries, alone or in a batch.
fn reservation_ids(bytes: &[u8]) -> Vec<String> {
    let mut ids = BTreeSet::new();
    let starts = bytes.windows(MESSAGE_ID_PREFIX.len()).enumerate();
    for (at, _) in starts.filter(|(_, window)| *window == MESSAGE_ID_PREFIX) {
        let from = at + MESSAGE_ID_PREFIX.len();
        if let Some(id) = bytes.get(from..from + RESERVATION_ID_LEN) {
            ids.insert(String::from_utf8_lossy(id).into_owned());
        }
    }
    ids.into_iter().collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_are_found_wherever_they_stand() {
        let one = "abcdefghijklmnopqrstuvwxyz";
        let frame =
            format!("..KEYS\u{1}reserve-order:{one}:v1\u{2}reserve-order:{one}:v1..reserve-");
        assert_eq!(reservation_ids(frame.as_bytes()), [one]);
        assert!(reservation_ids(b"reserve-order:short").is_empty());
    }

    #[test]
    fn a_topic_has_two_names() {
        for name in ["topic", "b"] {
            let request = RemotingCommand::request(310, &[(name, "t-seckill-order-request")]);
            assert!(topic_of(&request).ends_with(REQUESTS));
        }
    }
}
