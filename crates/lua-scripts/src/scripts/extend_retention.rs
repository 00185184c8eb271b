//! `extend_retention`: lengthens the life of keys of a bucket.

use fred::types::Value;
use seckill_key_layout::BucketKeys;
use seckill_state_machine::TimestampMs;

use super::{Kind, Script, elements, integer, override_arg};
use crate::{Error, Redis};

const WHAT: &str = "extend_retention reply";

/// Keys of one call. Each costs the server two commands of about a microsecond, so that a call stays
/// below a millisecond.
pub const EXTEND_KEYS_MAX: usize = 256;

/// Keys of a bucket that shall live at least until an instant.
///
/// Extend meta first, in a call of its own or with others: what is written from then on lives as long.
/// Then page through the bucket with [`Redis::scan_bucket`].
#[derive(Debug, Clone, Copy)]
pub struct ExtendRetention<'a> {
    /// The bucket.
    pub keys: &'a BucketKeys,
    /// Full names of keys of the bucket, 1 to [`EXTEND_KEYS_MAX`].
    pub names: &'a [String],
    /// Until when; nothing happens when it lies in the past.
    pub until: TimestampMs,
    /// A clock for tests; `None` asks Redis.
    pub now_override: Option<TimestampMs>,
}

impl ExtendRetention<'_> {
    fn check(&self) -> Result<(), Error> {
        if self.names.is_empty() || self.names.len() > EXTEND_KEYS_MAX {
            let count = self.names.len();
            return Err(Error::malformed("key list", format!("{count} keys")));
        }
        match self.names.iter().find(|name| !self.keys.owns(name)) {
            Some(_) => Err(Error::malformed("key list", "a key of another bucket")),
            None => Ok(()),
        }
    }

    fn with_meta(&self) -> bool {
        self.names.contains(&self.keys.meta())
    }
}

impl Script for ExtendRetention<'_> {
    type Reply = u64;
    const KIND: Kind = Kind::ExtendRetention;
    const KEYS: usize = 1;
    const ARGS: usize = 3;

    fn keys(&self, out: &mut Vec<Value>) {
        let meta = self.keys.meta();
        if self.with_meta() {
            out.push(meta.as_str().into());
        }
        let others = self.names.iter().filter(|name| **name != meta);
        out.extend(others.map(|name| Value::from(name.clone())));
    }

    fn args(&self, out: &mut Vec<Value>) {
        out.extend([
            Value::Integer(self.until.get()),
            Value::Integer(i64::from(self.with_meta())),
            override_arg(self.now_override),
        ]);
    }

    fn parse(reply: Value) -> Result<u64, Error> {
        let reply = elements(WHAT, reply, 2)?;
        let lengthened = integer(WHAT, &reply[1])?;
        u64::try_from(lengthened).map_err(|_| Error::malformed(WHAT, "a negative count"))
    }
}

impl Redis {
    /// Lengthens the life of keys and says of how many; one without any expiry gets one, an absent one
    /// is skipped, and none is ever shortened.
    ///
    /// # Errors
    /// When the list of names is empty, too long or names another bucket's key, or when there is no
    /// answer of the script; see [`crate::ErrorKind`].
    pub async fn extend_retention(&self, call: &ExtendRetention<'_>) -> Result<u64, Error> {
        call.check()?;
        self.run(call, call.keys).await
    }
}
