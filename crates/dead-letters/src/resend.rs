//! What operators do about a parked message: send it again, or give it up.
//!
//! | a crash here | leaves | who repairs |
//! | --- | --- | --- |
//! | before the send | the letter, `OPEN` | the operator, by the same command |
//! | sent, not marked | the letter, `OPEN`, and its message on the way | the same command sends it once more; consumers drop what they have done already |
//! | sent, parked again, then marked | nothing: the mark counts how often the letter had been parked when it was read, and a letter that came back stays `OPEN` | |
//!
//! **Invariant:** a letter is `REPLAYED` only after the broker's plain OK; after any other answer it
//! stays `OPEN`, since nobody knows whether the message was stored.

use bytes::Bytes;
use seckill_message_bus::{IncomingMessage, OutgoingMessage, Producer, SendOutcome, Topic};
use seckill_order_store::{Error, KeptLetter, LetterStatus, Store};

/// Who acts, and why; both are kept with the letter.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Operator<'a> {
    /// Who.
    pub actor: &'a str,
    /// Why.
    pub reason: &'a str,
}

/// What became of a letter.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Fate {
    /// Sent again, and the broker has it.
    Replayed,
    /// Somebody has sent it again before.
    AlreadyReplayed,
    /// Sent again, and parked again before it could be marked.
    CameBack,
    /// The broker may have it or not, with the reason; the letter stays open.
    Unknown(String),
    /// Given up.
    Discarded,
    /// Somebody has given it up before.
    AlreadyDiscarded,
    /// Nothing was done, and why.
    Refused(&'static str),
}

impl Fate {
    /// The word by which scripts know it.
    #[must_use]
    pub const fn word(&self) -> &'static str {
        match self {
            Self::Replayed => "replayed",
            Self::AlreadyReplayed => "already_replayed",
            Self::CameBack => "parked_again",
            Self::Unknown(_) => "unknown",
            Self::Discarded => "discarded",
            Self::AlreadyDiscarded => "already_discarded",
            Self::Refused(_) => "refused",
        }
    }

    /// What there is to say beside the word.
    #[must_use]
    pub fn detail(&self) -> &str {
        match self {
            Self::CameBack => "its consumers could not process it this time either",
            Self::Unknown(why) => why,
            Self::Refused(why) => why,
            Self::Replayed | Self::AlreadyReplayed | Self::Discarded | Self::AlreadyDiscarded => "",
        }
    }

    /// Whether the letter is where the operator wanted it.
    #[must_use]
    pub const fn is_done(&self) -> bool {
        match self {
            Self::Replayed | Self::AlreadyReplayed | Self::Discarded | Self::AlreadyDiscarded => {
                true
            }
            Self::CameBack | Self::Unknown(_) | Self::Refused(_) => false,
        }
    }
}

/// The message of a letter as it would be sent in this namespace.
///
/// # Errors
/// The fate of a letter that is not sent: it was replayed (unless `again`) or discarded, or it is of
/// no topic of this system.
pub fn replayable(
    letter: &KeptLetter,
    namespace: &str,
    again: bool,
) -> Result<OutgoingMessage, Fate> {
    match letter.parked.status {
        LetterStatus::Replayed if !again => return Err(Fate::AlreadyReplayed),
        LetterStatus::Discarded => return Err(Fate::Refused("it was discarded")),
        LetterStatus::Open | LetterStatus::Replayed => {}
    }
    let kept = &letter.letter;
    let topic = Topic::named(&kept.topic, namespace).ok_or(Fate::Refused(
        "its topic is none of this system in this namespace",
    ))?;
    if kept.body.is_empty() {
        return Err(Fate::Refused("its body is empty, which no broker takes"));
    }
    // Parked again, it must be the same letter, whose key is one of these two.
    let message_id = kept
        .message_key
        .clone()
        .unwrap_or_else(|| kept.broker_message_id.clone());
    let body = Bytes::from(kept.body.clone());
    Ok(OutgoingMessage::again(
        topic,
        message_id,
        body,
        &kept.properties,
    ))
}

/// Whether a letter can be given up.
///
/// # Errors
/// The fate of a letter that cannot.
pub fn discardable(letter: &KeptLetter) -> Result<(), Fate> {
    match letter.parked.status {
        LetterStatus::Open => Ok(()),
        LetterStatus::Replayed => Err(Fate::Refused("it was replayed")),
        LetterStatus::Discarded => Err(Fate::AlreadyDiscarded),
    }
}

/// Sends a letter to its topic once more, under its own id and with its own body and properties.
///
/// # Errors
/// Store errors: the letter then stays as it is, whatever was sent.
pub async fn replay(
    store: &Store,
    producer: &Producer,
    letter: &KeptLetter,
    message: OutgoingMessage,
    by: Operator<'_>,
) -> Result<Fate, Error> {
    if let SendOutcome::Unknown(why) = producer.send(message).await {
        return Ok(Fate::Unknown(why));
    }
    let parked = &letter.parked;
    let Operator { actor, reason } = by;
    let outcome = Fate::Replayed.word();
    let is_marked = store
        .mark_replayed(parked.id, parked.times_parked, actor, reason, outcome)
        .await?;
    if is_marked {
        return Ok(Fate::Replayed);
    }
    let status = store.letter(parked.id).await?.map(|now| now.parked.status);
    Ok(match status {
        Some(LetterStatus::Discarded) => Fate::Refused("somebody discarded it meanwhile"),
        _ => Fate::CameBack,
    })
}

/// Gives a letter up. The reservation inside keeps its compensation task, so that its units come back.
///
/// # Errors
/// Store errors.
pub async fn discard(store: &Store, id: i64, by: Operator<'_>) -> Result<Fate, Error> {
    if store.discard(id, by.actor, by.reason).await? {
        return Ok(Fate::Discarded);
    }
    let Some(now) = store.letter(id).await? else {
        return Ok(Fate::Refused("there is no such letter"));
    };
    Ok(match discardable(&now) {
        Err(fate) => fate,
        Ok(()) => Fate::Refused("it was parked again meanwhile"),
    })
}

/// A letter as the message that it was, for whoever decodes it.
#[must_use]
pub fn as_message(letter: &KeptLetter) -> IncomingMessage {
    let kept = &letter.letter;
    IncomingMessage {
        message_id: kept.message_key.clone(),
        topic: kept.topic.clone(),
        queue_id: kept.queue_id,
        queue_offset: kept.queue_offset,
        broker_message_id: kept.broker_message_id.clone(),
        body: Bytes::from(kept.body.clone()),
        properties: kept.properties.clone(),
        reconsume_times: kept.attempts.saturating_sub(1),
        born_at_ms: kept.born_at_ms.map_or(0, |at| at.get()),
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use seckill_order_store::{DeadLetter, ParkedLetter};
    use seckill_state_machine::TimestampMs;

    use super::*;

    fn letter(status: LetterStatus, topic: &str, key: Option<&str>) -> KeptLetter {
        let properties = [("message_id", "m"), ("UNIQ_KEY", "m"), ("traceparent", "t")];
        let at = TimestampMs::new(1);
        KeptLetter {
            parked: ParkedLetter {
                id: 1,
                topic: topic.to_owned(),
                consumer_group: "g".to_owned(),
                message_key: key.map(ToOwned::to_owned),
                body_bytes: 1,
                reason: "undecodable".to_owned(),
                error: String::new(),
                attempts: 1,
                bucket: None,
                reservation_id: None,
                parked_at_ms: at,
                last_parked_at_ms: at,
                times_parked: 1,
                status,
                action: None,
            },
            letter: DeadLetter {
                topic: topic.to_owned(),
                consumer_group: "g".to_owned(),
                message_key: key.map(ToOwned::to_owned),
                broker_message_id: "7F".to_owned(),
                queue_id: 0,
                queue_offset: 0,
                born_at_ms: None,
                body: vec![1],
                properties: properties
                    .map(|(name, value)| (name.to_owned(), value.to_owned()))
                    .into_iter()
                    .collect::<BTreeMap<_, _>>(),
                reason: "undecodable".to_owned(),
                error: String::new(),
                attempts: 1,
                bucket: None,
                request: None,
            },
        }
    }

    #[test]
    fn a_letter_travels_under_its_own_id_and_without_what_brokers_add() {
        let topic = "t-seckill-order-request";
        let sent = replayable(&letter(LetterStatus::Open, topic, Some("m")), "t", false).unwrap();
        assert_eq!(
            (sent.topic, sent.message_id.as_str()),
            (Topic::OrderRequest, "m")
        );
        let names: Vec<&str> = sent
            .properties
            .iter()
            .map(|(name, _)| name.as_ref())
            .collect();
        assert_eq!(names, ["message_id", "traceparent"]);
        let nameless = replayable(&letter(LetterStatus::Open, topic, None), "t", false).unwrap();
        assert_eq!(nameless.message_id, "7F");
    }

    #[test]
    fn what_is_not_to_be_sent_says_why() {
        let topic = "seckill-order-request";
        let fate = |status, topic, again| {
            replayable(&letter(status, topic, Some("m")), "", again)
                .map(|_| "sent")
                .unwrap_or_else(|fate| fate.word())
        };
        assert_eq!(
            fate(LetterStatus::Replayed, topic, false),
            "already_replayed"
        );
        assert_eq!(fate(LetterStatus::Replayed, topic, true), "sent");
        assert_eq!(fate(LetterStatus::Discarded, topic, true), "refused");
        assert_eq!(fate(LetterStatus::Open, "other", false), "refused");
        assert_eq!(
            fate(LetterStatus::Open, "t-seckill-order-request", false),
            "refused"
        );
        let mut empty = letter(LetterStatus::Open, topic, Some("m"));
        empty.letter.body.clear();
        assert_eq!(replayable(&empty, "", false).unwrap_err().word(), "refused");
    }

    #[test]
    fn only_an_open_letter_can_be_given_up() {
        let fate = |status| discardable(&letter(status, "x", None)).map_err(|fate| fate.word());
        assert_eq!(fate(LetterStatus::Open), Ok(()));
        assert_eq!(fate(LetterStatus::Discarded), Err("already_discarded"));
        assert_eq!(fate(LetterStatus::Replayed), Err("refused"));
    }
}
