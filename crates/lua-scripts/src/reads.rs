//! Plain reads, each one command and bounded: records, counters, markers and the two indexes.

mod members;
mod server;

use fred::types::Value;
use seckill_key_layout::{BucketKeys, SOLDOUT_CHANNEL, current_version_key, hash_slot};
use seckill_state_machine::{
    ActivityId, ActivityVersion, RequestId, ReservationId, TimestampMs, UserId,
};

use crate::record::Fields;
use crate::{CachedResult, Error, Meta, Redis, ReservationRecord, Stock};

pub use server::Server;

/// Keys that one step of a scan looks at. 500 keys cost the server about 0.2 ms.
pub const SCAN_STEP: u32 = 500;

/// What the server answers about a key without an expiry.
const IMMORTAL: i64 = -1;

/// What the server answers about a key that is not there.
const MISSING: i64 = -2;

/// When a key expires.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Expiry {
    /// The key is not there.
    Missing,
    /// It would live for ever (I10 is broken).
    Never,
    /// At an instant.
    At(TimestampMs),
}

/// A bucket's sorted sets of reservation ids.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Index {
    /// By the time of the next send.
    SendPending,
    /// By the time at which a still open reservation must be checked.
    ReservationExpiry,
}

/// One member of an index.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct IndexMember {
    /// Its score, a time in milliseconds.
    pub score: i64,
    /// A reservation id, unless the index is damaged.
    pub member: String,
}

/// Where a scan goes on; opaque.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ScanCursor(String);

impl ScanCursor {
    /// The beginning.
    #[must_use]
    pub fn start() -> Self {
        Self("0".to_owned())
    }
}

/// One step of a scan.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BucketPage {
    /// Names of keys of the bucket; the same one may come twice.
    pub keys: Vec<String>,
    /// Where to go on; `None` at the end.
    pub next: Option<ScanCursor>,
}

impl Redis {
    async fn bucket_command(
        &self,
        name: &'static str,
        keys: &BucketKeys,
        arguments: Vec<Value>,
    ) -> Result<Value, Error> {
        self.command(name, self.slot(keys), arguments).await
    }

    async fn hash(
        &self,
        what: &'static str,
        keys: &BucketKeys,
        key: String,
    ) -> Result<Option<Fields>, Error> {
        let reply = self
            .bucket_command("HGETALL", keys, vec![key.into()])
            .await?;
        let fields = Fields::from_pairs(what, reply)?;
        Ok((!fields.is_empty()).then_some(fields))
    }

    /// A reservation.
    ///
    /// # Errors
    /// Without an answer, or when the record is damaged.
    pub async fn reservation(
        &self,
        keys: &BucketKeys,
        id: &ReservationId,
    ) -> Result<Option<ReservationRecord>, Error> {
        let fields = self.hash("reservation", keys, keys.reservation(id)).await?;
        fields.as_ref().map(ReservationRecord::read).transpose()
    }

    /// A bucket's settings.
    ///
    /// # Errors
    /// Without an answer, or when the record is damaged.
    pub async fn meta(&self, keys: &BucketKeys) -> Result<Option<Meta>, Error> {
        let fields = self.hash("meta", keys, keys.meta()).await?;
        fields.as_ref().map(Meta::read).transpose()
    }

    /// A bucket's counters.
    ///
    /// # Errors
    /// Without an answer, or when the record is damaged.
    pub async fn stock(&self, keys: &BucketKeys) -> Result<Option<Stock>, Error> {
        let fields = self.hash("stock", keys, keys.stock()).await?;
        fields.as_ref().map(Stock::read).transpose()
    }

    /// The reservation that a user's marker names.
    ///
    /// # Errors
    /// Without an answer, or when the marker names no reservation id.
    pub async fn marker(
        &self,
        keys: &BucketKeys,
        user: &UserId,
    ) -> Result<Option<ReservationId>, Error> {
        let reply = self
            .bucket_command("GET", keys, vec![keys.user(user).into()])
            .await?;
        optional_text("user marker", reply)?
            .map(ReservationId::parse)
            .transpose()
            .map_err(|error| Error::malformed("user marker", error.to_string()))
    }

    /// The remembered answer to a request.
    ///
    /// # Errors
    /// Without an answer, or when the remembered one is damaged.
    pub async fn cached_request(
        &self,
        keys: &BucketKeys,
        request_id: &RequestId,
    ) -> Result<Option<CachedResult>, Error> {
        let arguments = vec![keys.request(request_id).into(), request_id.as_str().into()];
        let reply = self.bucket_command("HGET", keys, arguments).await?;
        optional_text("cached result", reply)?
            .map(|packed| packed.parse())
            .transpose()
    }

    /// Members of an index that are due at `until`, in the order of (score, member), after the given
    /// one: members that stay cannot hide those behind them.
    ///
    /// # Errors
    /// Without an answer.
    pub async fn due(
        &self,
        keys: &BucketKeys,
        index: Index,
        until: TimestampMs,
        after: Option<&IndexMember>,
        limit: usize,
    ) -> Result<Vec<IndexMember>, Error> {
        let mut found: Vec<IndexMember> = Vec::new();
        let lowest = after.map_or_else(|| "-inf".to_owned(), |member| member.score.to_string());
        let mut offset = 0;
        // Members of one score are ordered by name, so the page starts at `after`'s score and skips
        // what is not behind it. Each round reads `limit` members, and only those of that very
        // score are skipped.
        while found.len() < limit {
            let page = self
                .range(keys, index, &lowest, until, offset, limit)
                .await?;
            offset += page.len();
            let last = page.len() < limit;
            found.extend(
                page.into_iter()
                    .filter(|member| after.is_none_or(|after| member > after)),
            );
            if last {
                break;
            }
        }
        found.truncate(limit);
        Ok(found)
    }

    async fn range(
        &self,
        keys: &BucketKeys,
        index: Index,
        lowest: &str,
        until: TimestampMs,
        offset: usize,
        limit: usize,
    ) -> Result<Vec<IndexMember>, Error> {
        let arguments = vec![
            index_key(keys, index).into(),
            lowest.into(),
            Value::Integer(until.get()),
            "WITHSCORES".into(),
            "LIMIT".into(),
            offset.to_string().into(),
            limit.to_string().into(),
        ];
        let reply = self
            .bucket_command("ZRANGEBYSCORE", keys, arguments)
            .await?;
        let flat: Vec<String> = reply
            .convert()
            .map_err(|error| Error::malformed("index", error.to_string()))?;
        flat.chunks_exact(2)
            .map(|pair| index_member(&pair[0], &pair[1]))
            .collect()
    }

    /// How many members an index has.
    ///
    /// # Errors
    /// Without an answer.
    pub async fn index_len(&self, keys: &BucketKeys, index: Index) -> Result<u64, Error> {
        let arguments = vec![index_key(keys, index).into()];
        let reply = self.bucket_command("ZCARD", keys, arguments).await?;
        reply
            .as_u64()
            .ok_or_else(|| Error::malformed("index length", "no number"))
    }

    /// One step over the key names of a bucket, for the audit and the slow pass alone. The step
    /// looks at [`SCAN_STEP`] keys of the whole node, so a page may well be empty.
    ///
    /// # Errors
    /// Without an answer.
    pub async fn scan_bucket(
        &self,
        keys: &BucketKeys,
        cursor: ScanCursor,
        step: u32,
    ) -> Result<BucketPage, Error> {
        let arguments = vec![
            cursor.0.into(),
            "MATCH".into(),
            keys.scan_pattern().into(),
            "COUNT".into(),
            Value::Integer(i64::from(step)),
        ];
        let reply = self.bucket_command("SCAN", keys, arguments).await?;
        let (next, names): (String, Vec<String>) = reply
            .convert()
            .map_err(|error| Error::malformed("scan page", error.to_string()))?;
        Ok(BucketPage {
            keys: names,
            next: (next != "0").then_some(ScanCursor(next)),
        })
    }

    /// Whether a key of a bucket exists and would live for ever (I10). For the audit, which asks it
    /// of every key; calls in flight at the same time share their round trips.
    ///
    /// # Errors
    /// Without an answer.
    pub async fn is_immortal(&self, keys: &BucketKeys, name: &str) -> Result<bool, Error> {
        let reply = self.bucket_command("PTTL", keys, vec![name.into()]).await?;
        let left: i64 = reply
            .convert()
            .map_err(|error| Error::malformed("time to live", error.to_string()))?;
        Ok(left == IMMORTAL)
    }

    /// When each of some keys of a bucket expires, in the order asked; at most [`SCAN_STEP`] names, as
    /// one step of a scan finds them. They share their round trips.
    ///
    /// # Errors
    /// Without an answer, or with too many names.
    pub async fn expiries(
        &self,
        keys: &BucketKeys,
        names: &[String],
    ) -> Result<Vec<Expiry>, Error> {
        if names.len() > SCAN_STEP as usize {
            let reason = format!("{} keys", names.len());
            return Err(Error::malformed("key list", reason));
        }
        let reads = names.iter().map(|name| async move {
            let arguments = vec![name.as_str().into()];
            let reply = self.bucket_command("PEXPIRETIME", keys, arguments).await?;
            match reply.as_i64() {
                Some(MISSING) => Ok(Expiry::Missing),
                Some(IMMORTAL) => Ok(Expiry::Never),
                Some(at) => Ok(Expiry::At(TimestampMs::new(at))),
                None => Err(Error::malformed("expiry", "no number")),
            }
        });
        futures::future::try_join_all(reads).await
    }

    /// The server that holds a bucket.
    ///
    /// # Errors
    /// Without an answer.
    pub async fn who_serves(&self, keys: &BucketKeys) -> Result<Server, Error> {
        let sections = vec!["server".into(), "replication".into()];
        let reply = self.bucket_command("INFO", keys, sections).await?;
        Server::parse(&optional_text("server info", reply)?.unwrap_or_default())
    }

    /// The clock of the server that holds a bucket.
    ///
    /// # Errors
    /// Without an answer.
    pub async fn server_time(&self, keys: &BucketKeys) -> Result<TimestampMs, Error> {
        let reply = self.bucket_command("TIME", keys, Vec::new()).await?;
        server_time(reply)
    }

    /// Tells the fronts that units of a bucket are on sale again.
    ///
    /// # Errors
    /// Without an answer.
    pub async fn publish_soldout_cleared(&self, keys: &BucketKeys) -> Result<(), Error> {
        let arguments = vec![SOLDOUT_CHANNEL.into(), keys.tag().into()];
        self.command("PUBLISH", None, arguments).await.map(|_| ())
    }

    /// The version of an activity that is on sale.
    ///
    /// # Errors
    /// Without an answer, or when the pointer is damaged.
    pub async fn current_version(
        &self,
        activity_id: &ActivityId,
    ) -> Result<Option<ActivityVersion>, Error> {
        let key = current_version_key(activity_id);
        let slot = hash_slot(&key);
        let reply = self.command("GET", Some(slot), vec![key.into()]).await?;
        optional_text("current version", reply)?
            .map(|version| {
                version
                    .parse()
                    .ok()
                    .and_then(|version| ActivityVersion::new(version).ok())
                    .ok_or_else(|| Error::malformed("current version", "no version"))
            })
            .transpose()
    }

    /// Points an activity at the version that is on sale. It overwrites whatever is there: the caller
    /// must look afterwards whether the version is still the one on sale.
    ///
    /// # Errors
    /// Without an answer.
    pub async fn set_current_version(
        &self,
        activity_id: &ActivityId,
        version: ActivityVersion,
        expire_at: TimestampMs,
    ) -> Result<(), Error> {
        let key = current_version_key(activity_id);
        let slot = hash_slot(&key);
        let arguments = vec![
            key.into(),
            version.to_string().into(),
            "PXAT".into(),
            Value::Integer(expire_at.get()),
        ];
        self.command("SET", Some(slot), arguments).await.map(|_| ())
    }
}

/// Reads the answer of TIME.
pub(crate) fn server_time(reply: Value) -> Result<TimestampMs, Error> {
    let (seconds, micros): (i64, i64) = reply
        .convert()
        .map_err(|error| Error::malformed("server time", error.to_string()))?;
    Ok(TimestampMs::new(seconds * 1_000 + micros / 1_000))
}

pub(crate) fn index_key(keys: &BucketKeys, index: Index) -> String {
    match index {
        Index::SendPending => keys.send_pending(),
        Index::ReservationExpiry => keys.reservation_expiry(),
    }
}

fn index_member(member: &str, score: &str) -> Result<IndexMember, Error> {
    let score: f64 = score
        .parse()
        .map_err(|_| Error::malformed("index", "a score is no number"))?;
    // Scores are times of at most 15 digits, which a double holds exactly.
    #[expect(
        clippy::cast_possible_truncation,
        reason = "a score beyond the range saturates, and is then no due time"
    )]
    let score = score as i64;
    Ok(IndexMember {
        score,
        member: member.to_owned(),
    })
}

fn optional_text(what: &'static str, reply: Value) -> Result<Option<String>, Error> {
    if reply.is_null() {
        return Ok(None);
    }
    reply
        .into_string()
        .map(Some)
        .ok_or_else(|| Error::malformed(what, "no text"))
}
