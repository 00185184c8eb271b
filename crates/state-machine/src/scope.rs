//! What a key, a stock row or a message belongs to.

use std::fmt;

use serde::{Deserialize, Serialize};

use crate::{ActivityId, ActivityVersion, BucketId, SkuId};

/// One version of one activity's sale of one SKU.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct Scope {
    /// The activity.
    pub activity_id: ActivityId,
    /// The SKU on sale.
    pub sku_id: SkuId,
    /// The edition.
    pub version: ActivityVersion,
}

impl Scope {
    /// One bucket of this scope.
    #[must_use]
    pub fn bucket(&self, bucket_id: BucketId) -> BucketScope {
        BucketScope {
            scope: self.clone(),
            bucket_id,
        }
    }
}

impl fmt::Display for Scope {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}/v{}", self.activity_id, self.sku_id, self.version)
    }
}

/// One bucket: one Redis hash slot and one stock row in PostgreSQL.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct BucketScope {
    /// The version the bucket belongs to.
    #[serde(flatten)]
    pub scope: Scope,
    /// Which bucket.
    pub bucket_id: BucketId,
}

impl fmt::Display for BucketScope {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/b{}", self.scope, self.bucket_id)
    }
}
