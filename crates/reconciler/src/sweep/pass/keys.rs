//! A step of the scan over a bucket's keys. Redis is read before PostgreSQL here, so that what Redis
//! says to be decided must be decided there already.

use std::collections::HashSet;

use futures::StreamExt;
use seckill_key_layout::KeyKind;
use seckill_lua_scripts::{
    Error as RedisError, ErrorKind, Index, ReservationRecord, SCAN_STEP, ScanCursor,
};
use seckill_order_store::Error as StoreError;
use seckill_settlement::Class;
use seckill_state_machine::{ReservationId, UserId};
use seckill_telemetry::user_id_hash;

use super::{CALLS_IN_FLIGHT, Pass, Read, Sides, of, record};
use crate::finding::Finding;
use crate::sweep::{Error, judge};

/// What one key came to.
enum Key {
    Reservation(Box<(ReservationId, Read, Vec<Finding>)>),
    User(UserId, Option<Finding>),
    SoldOut,
    Foreign(Finding),
    Other,
}

impl Pass {
    /// One step; where to go on, unless it was the last.
    pub(super) async fn keys_page(
        &mut self,
        sides: &Sides,
        cursor: ScanCursor,
    ) -> Result<Option<ScanCursor>, Error> {
        let page = sides
            .redis
            .scan_bucket(&self.keys, cursor, SCAN_STEP)
            .await?;
        let names: HashSet<String> = page.keys.into_iter().collect();
        let read: Vec<Result<(Key, Option<Finding>), RedisError>> = futures::stream::iter(names)
            .map(|name| self.key(sides, name))
            .buffer_unordered(CALLS_IN_FLIGHT)
            .collect()
            .await;
        let mut records = Vec::new();
        for read in read {
            let (key, immortal) = read?;
            immortal
                .into_iter()
                .for_each(|found| self.found.push(found));
            match key {
                Key::Reservation(reservation) => {
                    let (id, read, found) = *reservation;
                    if let Some(record) = self.count(id, read, found) {
                        records.push(record);
                    }
                }
                Key::User(user, Some(found)) if !self.found.is_marked(&user) => {
                    self.found.push(found);
                }
                Key::SoldOut => self.soldout = true,
                Key::Foreign(found) => self.found.push(found),
                Key::User(..) | Key::Other => {}
            }
        }
        self.times(sides, &records).await?;
        self.undecided(sides, &records).await?;
        Ok(page.next)
    }

    /// Reservations from the future. The clock is read after them, so that none is for being new.
    async fn times(&mut self, sides: &Sides, records: &[ReservationRecord]) -> Result<(), Error> {
        if records.is_empty() {
            return Ok(());
        }
        let now = sides.store.clock().await?;
        let ahead = records
            .iter()
            .filter_map(|record| judge::ahead(record, now));
        ahead.for_each(|found| self.found.push(found));
        Ok(())
    }

    async fn key(&self, sides: &Sides, name: String) -> Result<(Key, Option<Finding>), RedisError> {
        let immortal = sides.redis.is_immortal(&self.keys, &name).await?;
        let kind = self.keys.kind_of(&name);
        let mut about = None;
        let key = match &kind {
            Some(KeyKind::Reservation(id)) if self.counted.contains(id) => Key::Other,
            Some(KeyKind::Reservation(id)) => {
                about = Some(id.clone());
                self.reservation(sides, id).await?
            }
            Some(KeyKind::User(user)) => {
                let (found, named) = self.user(sides, user).await?;
                about = named;
                Key::User(user.clone(), found)
            }
            Some(KeyKind::SoldOut) => Key::SoldOut,
            Some(_) => Key::Other,
            None => Key::Foreign(foreign(&name)),
        };
        let immortal = (immortal && kind.is_some()).then(|| Finding {
            reservation_id: about,
            ..Finding::of_bucket(Class::KeyWithoutExpiry, family(&name), "").about(name)
        });
        Ok((key, immortal))
    }

    async fn reservation(&self, sides: &Sides, id: &ReservationId) -> Result<Key, RedisError> {
        let read = record(&sides.redis, &self.keys, id).await?;
        let mut found = Vec::new();
        if let Ok(Some(record)) = &read {
            found.extend(self.answer(sides, record).await?);
            if !record.status.is_settled() {
                found.extend(self.open(sides, record).await?);
            }
        }
        Ok(Key::Reservation(Box::new((id.clone(), read, found))))
    }

    /// What an open reservation needs so that somebody comes back to it and nobody buys twice.
    async fn open(
        &self,
        sides: &Sides,
        record: &ReservationRecord,
    ) -> Result<Vec<Finding>, RedisError> {
        let id = &record.reservation_id;
        let member = async |index| match sides.redis.is_indexed(&self.keys, index, id).await {
            // A damaged index is told by its own walk.
            Err(error) if error.kind() == ErrorKind::Broken => Ok(true),
            answer => answer,
        };
        let in_expiry = member(Index::ReservationExpiry).await?;
        let in_send_pending = !record.status.awaits_send() || member(Index::SendPending).await?;
        let mut found = judge::indexed(record, in_expiry, in_send_pending);
        found.extend(self.marker(sides, record).await?);
        Ok(found)
    }

    async fn answer(
        &self,
        sides: &Sides,
        record: &ReservationRecord,
    ) -> Result<Option<Finding>, RedisError> {
        let (id, request_id) = (&record.reservation_id, &record.request_id);
        match sides.redis.cached_request(&self.keys, request_id).await {
            Ok(cached) => Ok(judge::cached(record, cached.as_ref())),
            Err(error) if error.kind() == ErrorKind::Broken => Ok(Some(Finding::of(
                Class::CachedResultUnreadable,
                id,
                error.to_string(),
                "",
            ))),
            Err(error) => Err(error),
        }
    }

    /// What is wrong with a marker, and which reservation it names.
    async fn user(
        &self,
        sides: &Sides,
        user: &UserId,
    ) -> Result<(Option<Finding>, Option<ReservationId>), RedisError> {
        let named = match sides.redis.marker(&self.keys, user).await {
            Ok(Some(named)) => named,
            // Deleted since the scan saw it.
            Ok(None) => return Ok((None, None)),
            Err(error) if error.kind() == ErrorKind::Broken => {
                let what = format!("marker of user {}: {error}", user_id_hash(user));
                let found = Finding::of_bucket(Class::Unreadable, what, "");
                return Ok((Some(found), None));
            }
            Err(error) => return Err(error),
        };
        let what = match record(&sides.redis, &self.keys, &named).await? {
            Ok(None) => "names a reservation that does not exist",
            Ok(Some(record)) if record.user_id != *user => "names another buyer's reservation",
            Ok(Some(record)) if !record.status.holds_units() => {
                "names a reservation that holds nothing"
            }
            Ok(Some(_)) | Err(_) => return Ok((None, Some(named))),
        };
        let redis = format!("the marker of user {} {what}", user_id_hash(user));
        let found = Finding::of(Class::MarkerStray, &named, redis, "").about(user.as_str());
        Ok((Some(found), Some(named)))
    }

    /// Adds a reservation to what the bucket holds; hands back a sound record of an end, which
    /// PostgreSQL must know.
    fn count(
        &mut self,
        id: ReservationId,
        read: Read,
        found: Vec<Finding>,
    ) -> Option<ReservationRecord> {
        if !self.counted.insert(id.clone()) {
            return None;
        }
        let record = match read {
            Ok(record) => record?,
            Err(damage) => {
                self.unreadable += 1;
                self.found
                    .push(Finding::of(Class::Unreadable, &id, damage, ""));
                return None;
            }
        };
        if record.status.holds_units() {
            self.held = self.held.saturating_add(u64::from(record.quantity.get()));
        }
        if let Some(damage) = judge::record(self.keys.scope(), &id, &record) {
            self.found.push(damage);
            return None;
        }
        for finding in found {
            match finding.class {
                Class::MarkerMissing | Class::MarkerElsewhere => {
                    self.found.push_marker(&record.user_id, finding);
                }
                _ => self.found.push(finding),
            }
        }
        Some(record)
    }

    /// Ends, in Redis, about which PostgreSQL has decided nothing.
    async fn undecided(
        &mut self,
        sides: &Sides,
        records: &[ReservationRecord],
    ) -> Result<(), Error> {
        let suspects: Vec<(ReservationId, Finding)> = records
            .iter()
            .filter_map(|record| Some((record.reservation_id.clone(), judge::undecided(record)?)))
            .collect();
        let ids: Vec<ReservationId> = suspects.iter().map(|(id, _)| id.clone()).collect();
        // A page of the scan may come with more keys than it was asked for.
        for (ids, suspects) in ids
            .chunks(IDS_PER_QUERY)
            .zip(suspects.chunks(IDS_PER_QUERY))
        {
            let decisions = match sides.store.decisions(ids).await {
                Ok(decisions) => decisions,
                // Told with the decisions.
                Err(StoreError::Stored { .. }) => continue,
                Err(error) => return Err(error.into()),
            };
            for (id, finding) in suspects {
                if of(&decisions, id).is_none() {
                    self.found.push(finding.clone());
                }
            }
        }
        Ok(())
    }
}

/// Reservations of one question to PostgreSQL; it answers at most 1,024.
const IDS_PER_QUERY: usize = 512;

/// The family of a key, which names no user.
fn family(name: &str) -> String {
    let suffix = name.split_once("}:").map_or(name, |(_, suffix)| suffix);
    let family = suffix.split(':').next().unwrap_or(suffix);
    format!("{family} has no expiry")
}

/// A key that this program does not write may have any name, also one with a user in it.
fn foreign(name: &str) -> Finding {
    let suffix = name.split_once("}:").map_or(name, |(_, suffix)| suffix);
    let shown = match suffix.split_once(':') {
        Some((family, _)) => format!("{}:…", family.escape_debug()),
        None => suffix.escape_debug().to_string(),
    };
    Finding::of_bucket(Class::ForeignKey, shown, "").about(name)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_told_of_a_key_names_no_user() {
        let key = |suffix: &str| format!("seckill:{{a:a1:s:s1:v:1:b:0}}:{suffix}");
        assert_eq!(family(&key("user:alice")), "user has no expiry");
        assert_eq!(family(&key("stock")), "stock has no expiry");
        assert_eq!(foreign(&key("users:alice")).evidence.redis, "users:…");
        assert_eq!(foreign(&key("stocks")).evidence.redis, "stocks");
        assert_ne!(foreign(&key("x:1")).key(), foreign(&key("x:2")).key());
    }
}
