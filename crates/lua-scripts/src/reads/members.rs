//! Whether an index names a reservation.

use seckill_key_layout::BucketKeys;
use seckill_state_machine::ReservationId;

use super::{Index, index_key};
use crate::{Error, Redis};

impl Redis {
    /// Whether a reservation is a member of an index.
    ///
    /// # Errors
    /// Without an answer.
    pub async fn is_indexed(
        &self,
        keys: &BucketKeys,
        index: Index,
        id: &ReservationId,
    ) -> Result<bool, Error> {
        let arguments = vec![index_key(keys, index).into(), id.as_str().into()];
        let score = self.bucket_command("ZSCORE", keys, arguments).await?;
        Ok(!score.is_null())
    }
}
