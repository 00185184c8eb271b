//! `set_activity_state`: writes PostgreSQL's state of an activity into a bucket's meta.

use fred::types::Value;
use seckill_key_layout::BucketKeys;
use seckill_state_machine::ActivityState;

use super::{Kind, Script, elements, integer, text};
use crate::{Error, Redis};

const WHAT: &str = "set_activity_state reply";

/// The state that PostgreSQL holds.
#[derive(Debug, Clone, Copy)]
pub struct SetActivityState<'a> {
    /// The bucket.
    pub keys: &'a BucketKeys,
    /// The state to write.
    pub state: ActivityState,
}

/// What the script did.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum SetActivityStateReply {
    /// The state was written.
    Updated {
        /// The state before.
        from: String,
    },
    /// It was there already.
    Unchanged,
    /// There is no meta: preheat or rebuild first.
    MetaMissing,
    /// Meta names another activity, SKU, version or bucket: operators must look.
    ScopeMismatch,
    /// The step is never right: out of `CLOSED`, or back to `PREPARED`.
    Refused {
        /// The state in meta.
        state: String,
    },
}

impl Script for SetActivityState<'_> {
    type Reply = SetActivityStateReply;
    const KIND: Kind = Kind::SetActivityState;
    const KEYS: usize = 1;
    const ARGS: usize = 5;

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
            self.state.as_str().into(),
        ]);
    }

    fn parse(reply: Value) -> Result<SetActivityStateReply, Error> {
        let mut reply = elements(WHAT, reply, 2)?.into_iter();
        let code = integer(WHAT, &reply.next().unwrap_or(Value::Null))?;
        let state = text(WHAT, reply.next().unwrap_or(Value::Null))?;
        Ok(match code {
            0 => SetActivityStateReply::Updated { from: state },
            1 => SetActivityStateReply::Unchanged,
            2 => SetActivityStateReply::MetaMissing,
            3 => SetActivityStateReply::ScopeMismatch,
            4 => SetActivityStateReply::Refused { state },
            _ => return Err(Error::malformed(WHAT, format!("unknown code {code}"))),
        })
    }
}

impl Redis {
    /// Writes an activity's state into one bucket.
    ///
    /// # Errors
    /// When there is no answer of the script; see [`crate::ErrorKind`].
    pub async fn set_activity_state(
        &self,
        call: &SetActivityState<'_>,
    ) -> Result<SetActivityStateReply, Error> {
        self.run(call, call.keys).await
    }
}
