//! `preheat_bucket`: writes a bucket's meta and stock where they are absent, and nothing else.

use fred::types::Value;
use seckill_key_layout::BucketKeys;
use seckill_state_machine::{ActivitySettings, SCHEMA_VERSION, TimestampMs};

use super::{Kind, Script, elements, integer, override_arg, text};
use crate::{Error, Redis};

const WHAT: &str = "preheat_bucket reply";

/// One bucket of an activity version that PostgreSQL calls `PREPARED`.
#[derive(Debug, Clone, Copy)]
pub struct PreheatBucket<'a> {
    /// The bucket; its scope must be that of the settings.
    pub keys: &'a BucketKeys,
    /// The activity's settings.
    pub settings: &'a ActivitySettings,
    /// A clock for tests; `None` asks Redis.
    pub now_override: Option<TimestampMs>,
}

/// What the script did.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum PreheatReply {
    /// What was absent was written; both `false` means that both were there.
    Preheated {
        /// Meta was written.
        meta_written: bool,
        /// Stock was written.
        stock_written: bool,
    },
    /// Stock is missing although the activity is past `PREPARED`: rebuild instead.
    NotPrepared {
        /// The state in meta.
        state: String,
    },
    /// The retention lies in the past: keys written now would vanish at once.
    RetentionPassed,
    /// The settings cannot be written, for example a stock of more than 15 digits.
    BadArgument {
        /// Which.
        detail: String,
    },
}

impl PreheatBucket<'_> {
    /// The units that this bucket gets.
    #[must_use]
    pub fn initial(&self) -> u64 {
        let bucket = self.keys.scope().bucket_id;
        self.settings
            .bucket_count
            .share(self.settings.total_stock, bucket)
    }
}

impl Script for PreheatBucket<'_> {
    type Reply = PreheatReply;
    const KIND: Kind = Kind::PreheatBucket;
    const KEYS: usize = 2;
    const ARGS: usize = 15;

    fn keys(&self, out: &mut Vec<Value>) {
        out.extend([self.keys.meta().into(), self.keys.stock().into()]);
    }

    fn args(&self, out: &mut Vec<Value>) {
        let bucket = self.keys.scope();
        let settings = self.settings;
        out.extend([
            bucket.scope.activity_id.as_str().into(),
            bucket.scope.sku_id.as_str().into(),
            Value::Integer(i64::from(bucket.bucket_id.get())),
            bucket.scope.version.to_string().into(),
            Value::Integer(settings.starts_at_ms.get()),
            Value::Integer(settings.ends_at_ms.get()),
            Value::Integer(settings.retention_until_ms.get()),
            Value::Integer(i64::from(SCHEMA_VERSION)),
            Value::Integer(i64::from(settings.bucket_count.get())),
            Value::Integer(i64::from(settings.limit_per_user)),
            Value::Integer(i64::from(settings.max_quantity.get())),
            Value::Integer(settings.reservation_ttl_ms),
            Value::Integer(i64::from(settings.secret_version)),
            self.initial().to_string().into(),
            override_arg(self.now_override),
        ]);
    }

    fn parse(reply: Value) -> Result<PreheatReply, Error> {
        let mut reply = elements(WHAT, reply, 2)?.into_iter();
        let code = integer(WHAT, &reply.next().unwrap_or(Value::Null))?;
        let detail = text(WHAT, reply.next().unwrap_or(Value::Null))?;
        Ok(match code {
            0 => PreheatReply::Preheated {
                meta_written: detail.contains("meta"),
                stock_written: detail.contains("stock"),
            },
            1 => PreheatReply::NotPrepared { state: detail },
            2 => PreheatReply::RetentionPassed,
            3 => PreheatReply::BadArgument { detail },
            _ => return Err(Error::malformed(WHAT, format!("unknown code {code}"))),
        })
    }
}

impl Redis {
    /// Writes a bucket's absent keys.
    ///
    /// # Errors
    /// When there is no answer of the script; see [`crate::ErrorKind`].
    pub async fn preheat_bucket(&self, call: &PreheatBucket<'_>) -> Result<PreheatReply, Error> {
        self.run(call, call.keys).await
    }
}
