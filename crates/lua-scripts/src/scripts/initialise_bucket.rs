//! `initialise_bucket`: writes a bucket anew after a loss, closed to buyers.

use fred::types::Value;
use seckill_key_layout::BucketKeys;
use seckill_state_machine::{ActivitySettings, TimestampMs};

use super::{Kind, PreheatBucket, Script, elements, integer, optional, text};
use crate::{Error, Redis};

const WHAT: &str = "initialise_bucket reply";

/// One bucket of an activity version that PostgreSQL calls `PAUSED` or `CLOSED`.
#[derive(Debug, Clone, Copy)]
pub struct InitialiseBucket<'a> {
    /// The bucket; its scope must be that of the settings.
    pub keys: &'a BucketKeys,
    /// The activity's settings.
    pub settings: &'a ActivitySettings,
    /// Units that the reservations of the bucket hold, added up after a call without them had closed it.
    /// `None` writes no stock.
    pub held: Option<u64>,
    /// A clock for tests; `None` asks Redis.
    pub now_override: Option<TimestampMs>,
}

/// What the script did.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum InitialiseReply {
    /// The bucket is closed to buyers, or whole and on sale again.
    Initialised {
        /// Meta was written, or made to say `PAUSED` and "rebuild".
        meta_written: bool,
        /// Stock was written, with all units available that are not held.
        stock_written: bool,
        /// Stock is still to be written: what is held must be added up first.
        stock_missing: bool,
    },
    /// More units are held than the bucket ever had: operators must look.
    HeldBeyondInitial,
    /// Meta names another activity, SKU, version or bucket: operators must look.
    ScopeMismatch,
    /// The retention lies in the past: keys written now would vanish at once.
    RetentionPassed,
    /// The settings cannot be written, for example a stock of more than 15 digits.
    BadArgument {
        /// Which.
        detail: String,
    },
}

impl InitialiseBucket<'_> {
    const fn as_preheat(&self) -> PreheatBucket<'_> {
        PreheatBucket {
            keys: self.keys,
            settings: self.settings,
            now_override: self.now_override,
        }
    }
}

impl Script for InitialiseBucket<'_> {
    type Reply = InitialiseReply;
    const KIND: Kind = Kind::InitialiseBucket;
    const KEYS: usize = PreheatBucket::KEYS;
    const ARGS: usize = PreheatBucket::ARGS + 1;

    fn keys(&self, out: &mut Vec<Value>) {
        self.as_preheat().keys(out);
    }

    fn args(&self, out: &mut Vec<Value>) {
        self.as_preheat().args(out);
        let held = self.held.map(|units| units.to_string());
        out.push(optional(held.as_deref()));
    }

    fn parse(reply: Value) -> Result<InitialiseReply, Error> {
        let mut reply = elements(WHAT, reply, 3)?.into_iter();
        let code = integer(WHAT, &reply.next().unwrap_or(Value::Null))?;
        let detail = text(WHAT, reply.next().unwrap_or(Value::Null))?;
        let missing = text(WHAT, reply.next().unwrap_or(Value::Null))?;
        Ok(match code {
            0 => InitialiseReply::Initialised {
                meta_written: detail.contains("meta"),
                stock_written: detail.contains("stock"),
                stock_missing: missing == "stock",
            },
            1 => InitialiseReply::ScopeMismatch,
            2 => InitialiseReply::RetentionPassed,
            3 => InitialiseReply::BadArgument { detail },
            4 => InitialiseReply::HeldBeyondInitial,
            _ => return Err(Error::malformed(WHAT, format!("unknown code {code}"))),
        })
    }
}

impl Redis {
    /// Writes a bucket anew after a loss; a second call changes nothing.
    ///
    /// # Errors
    /// When there is no answer of the script; see [`crate::ErrorKind`].
    pub async fn initialise_bucket(
        &self,
        call: &InitialiseBucket<'_>,
    ) -> Result<InitialiseReply, Error> {
        self.run(call, call.keys).await
    }
}
