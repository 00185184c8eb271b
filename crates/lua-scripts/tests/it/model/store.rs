//! Keys of one type each, with absolute expiry.

use std::collections::BTreeMap;

use seckill_key_layout::{BucketKeys, KeyKind};
use seckill_state_machine::ReservationStatus;
use seckill_test_support::{Content, Dump, Entry};

/// The default retention, in milliseconds.
pub const WEEK_MS: i64 = 7 * 24 * 3_600_000;

/// A call that fails whole.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Damaged;

pub type Fields = BTreeMap<String, String>;

/// The fields of a hash; none when it is absent.
pub fn hash(dump: &Dump, key: &str) -> Result<Fields, Damaged> {
    match dump.get(key) {
        None => Ok(Fields::new()),
        Some(Content::Hash(fields)) => Ok(fields.clone()),
        Some(_) => Err(Damaged),
    }
}

pub fn text(dump: &Dump, key: &str) -> Result<Option<String>, Damaged> {
    match dump.get(key) {
        None => Ok(None),
        Some(Content::Text(text)) => Ok(Some(text.clone())),
        Some(_) => Err(Damaged),
    }
}

pub fn members(dump: &Dump, key: &str) -> Result<Fields, Damaged> {
    match dump.get(key) {
        None => Ok(Fields::new()),
        Some(Content::SortedSet(members)) => Ok(members.clone()),
        Some(_) => Err(Damaged),
    }
}

/// Writes a content; the expiry is set where the key is new, and kept where it is not.
fn put(dump: &mut Dump, key: &str, content: Content, expiry_if_new: i64) {
    let expires_at_ms = match dump.0.get(key) {
        Some(entry) => entry.expires_at_ms,
        None => Some(expiry_if_new),
    };
    dump.0.insert(
        key.to_owned(),
        Entry {
            content,
            expires_at_ms,
        },
    );
}

pub fn set_fields(dump: &mut Dump, key: &str, changes: &[(&str, String)], expiry_if_new: i64) {
    let mut fields = dump.hash(key);
    for (field, value) in changes {
        fields.insert((*field).to_owned(), value.clone());
    }
    put(dump, key, Content::Hash(fields), expiry_if_new);
}

pub fn set_text(dump: &mut Dump, key: &str, text: &str, expiry: i64) {
    dump.0.remove(key);
    put(dump, key, Content::Text(text.to_owned()), expiry);
}

pub fn add_member(dump: &mut Dump, key: &str, member: &str, score: i64, expiry_if_new: i64) {
    let mut all = members(dump, key).expect("its type was checked");
    all.insert(member.to_owned(), score.to_string());
    put(dump, key, Content::SortedSet(all), expiry_if_new);
}

/// Removes a member, and the set with its last one.
pub fn remove_member(dump: &mut Dump, key: &str, member: &str) {
    let mut all = members(dump, key).expect("its type was checked");
    all.remove(member);
    if all.is_empty() {
        dump.0.remove(key);
    } else {
        put(dump, key, Content::SortedSet(all), 0);
    }
}

/// Gives a key that has no expiry one.
pub fn ensure_expiry(dump: &mut Dump, key: &str, expiry: i64) {
    if let Some(entry) = dump.0.get_mut(key) {
        entry.expires_at_ms.get_or_insert(expiry);
    }
}

/// A stored state: known, absent, or a word that makes the answer unreadable.
pub fn stored_status(fields: &Fields) -> Result<Option<ReservationStatus>, Damaged> {
    match fields.get("status").map(String::as_str) {
        None | Some("") => Ok(None),
        Some(word) => word.parse().map(Some).map_err(|_| Damaged),
    }
}

pub fn is(fields: &Fields, field: &str, value: &str) -> bool {
    fields.get(field).is_some_and(|found| found == value)
}

/// A canonical non-negative integer of at most 15 digits.
pub fn number(text: Option<&String>) -> Option<i64> {
    let text = text?;
    let value: i64 = text.parse().ok()?;
    ((0..1_000_000_000_000_000).contains(&value) && value.to_string() == *text).then_some(value)
}

/// Whether any key of the bucket holds something of another type than it should.
pub fn has_wrong_type(dump: &Dump, keys: &BucketKeys) -> bool {
    dump.0.iter().any(|(key, entry)| {
        let Some(kind) = keys.kind_of(key) else {
            return false;
        };
        !matches!(
            (kind, &entry.content),
            (
                KeyKind::Meta | KeyKind::Stock | KeyKind::Request(_) | KeyKind::Reservation(_),
                Content::Hash(_)
            ) | (KeyKind::User(_) | KeyKind::SoldOut, Content::Text(_))
                | (
                    KeyKind::SendPending | KeyKind::ReservationExpiry,
                    Content::SortedSet(_)
                )
        )
    })
}

/// I3: the counters add up, and `reserved` is what the reservations hold.
pub fn holders_match(dump: &Dump, keys: &BucketKeys) -> bool {
    let stock = dump.hash(&keys.stock());
    let [Some(initial), Some(available), Some(reserved)] =
        ["initial", "available", "reserved"].map(|name| number(stock.get(name)))
    else {
        return false;
    };
    let held: i64 = dump
        .0
        .keys()
        .filter(|key| matches!(keys.kind_of(key), Some(KeyKind::Reservation(_))))
        .map(|key| dump.hash(key))
        .filter(|fields| {
            let status = stored_status(fields).ok().flatten();
            status.is_none_or(ReservationStatus::holds_units)
        })
        .map(|fields| number(fields.get("quantity")).unwrap_or(i64::MAX / 64))
        .sum();
    initial == available + reserved && reserved == held
}
