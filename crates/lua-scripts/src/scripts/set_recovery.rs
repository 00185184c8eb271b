//! `set_recovery`: says in a bucket's meta whether it is in recovery.

use fred::types::Value;
use seckill_key_layout::BucketKeys;

use super::{Kind, Script, elements, integer, text};
use crate::{Error, Recovery, Redis};

const WHAT: &str = "set_recovery reply";

/// What the script reads as "whatever is there".
const ANY: &str = "any";

/// Whether the bucket is in recovery from now on.
#[derive(Debug, Clone, Copy)]
pub struct SetRecovery<'a> {
    /// The bucket.
    pub keys: &'a BucketKeys,
    /// What meta shall say.
    pub recovery: Recovery,
    /// Write only over this; `None` writes over anything. Who closes a window expects
    /// [`Recovery::Window`], so as not to end a rebuild that has begun meanwhile.
    pub expected: Option<Recovery>,
}

/// What the script did.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum SetRecoveryReply {
    /// It was written.
    Set,
    /// It was there already.
    Unchanged,
    /// There is no meta: preheat or rebuild first.
    ConfigMissing,
    /// Meta names another activity, SKU, version or bucket: operators must look.
    ScopeMismatch,
    /// Meta says something else than expected.
    Moved {
        /// What it says.
        found: String,
    },
}

impl Script for SetRecovery<'_> {
    type Reply = SetRecoveryReply;
    const KIND: Kind = Kind::SetRecovery;
    const KEYS: usize = 1;
    const ARGS: usize = 6;

    fn keys(&self, out: &mut Vec<Value>) {
        out.push(self.keys.meta().into());
    }

    fn args(&self, out: &mut Vec<Value>) {
        let bucket = self.keys.scope();
        out.extend([
            bucket.scope.activity_id.as_str().into(),
            bucket.scope.sku_id.as_str().into(),
            bucket.scope.version.to_string().into(),
            Value::Integer(i64::from(bucket.bucket_id.get())),
            self.recovery.as_str().into(),
            self.expected.map_or(ANY, Recovery::as_str).into(),
        ]);
    }

    fn parse(reply: Value) -> Result<SetRecoveryReply, Error> {
        let mut reply = elements(WHAT, reply, 2)?.into_iter();
        let code = integer(WHAT, &reply.next().unwrap_or(Value::Null))?;
        let found = text(WHAT, reply.next().unwrap_or(Value::Null))?;
        Ok(match code {
            0 => SetRecoveryReply::Set,
            1 => SetRecoveryReply::Unchanged,
            2 => SetRecoveryReply::ConfigMissing,
            3 => SetRecoveryReply::ScopeMismatch,
            4 => SetRecoveryReply::Moved { found },
            _ => return Err(Error::malformed(WHAT, format!("unknown code {code}"))),
        })
    }
}

impl Redis {
    /// Says whether a bucket is in recovery.
    ///
    /// # Errors
    /// When there is no answer of the script; see [`crate::ErrorKind`].
    pub async fn set_recovery(&self, call: &SetRecovery<'_>) -> Result<SetRecoveryReply, Error> {
        self.run(call, call.keys).await
    }
}
