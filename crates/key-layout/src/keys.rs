//! Key names, as `design` fixes them: `seckill:{a:<activity>:s:<sku>:v:<version>:b:<bucket>}:<suffix>`.

use seckill_state_machine::{
    ActivityId, BucketCount, BucketId, BucketScope, RequestId, ReservationId, Scope, UserId,
};

use crate::{fnv1a_32, fnv1a_64, hash_slot};

/// Hashes that the cached request results of one bucket are spread over, so that none grows big:
/// a million results are about 3,900 fields each.
pub const REQUEST_SHARDS: u32 = 256;

/// The Pub/Sub channel on which a bucket's tag is published when its units went back on sale.
pub const SOLDOUT_CHANNEL: &str = "seckill:soldout";

/// The request shard of a request id, 0 to 255.
#[must_use]
pub fn request_shard(request_id: &RequestId) -> u32 {
    fnv1a_32(request_id.as_str().as_bytes()) % REQUEST_SHARDS
}

/// The one bucket of a user, fixed for the version.
#[must_use]
pub fn bucket_of_user(scope: &Scope, user_id: &UserId, buckets: BucketCount) -> BucketId {
    let parts = [
        scope.activity_id.as_str(),
        scope.sku_id.as_str(),
        user_id.as_str(),
    ];
    let index = fnv1a_64(&parts) % u64::from(buckets.get());
    // The remainder is below the bucket count, so neither fallback can be reached.
    u32::try_from(index)
        .ok()
        .and_then(|index| BucketId::new(index).ok())
        .unwrap_or(BucketId::ZERO)
}

/// The pointer to an activity's current version. Control plane only: it lives in another slot.
#[must_use]
pub fn current_version_key(activity_id: &ActivityId) -> String {
    format!("seckill:activity:{activity_id}:current_version")
}

/// What a key of a bucket holds.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum KeyKind {
    /// The activity's settings.
    Meta,
    /// The counters.
    Stock,
    /// One shard of cached request results.
    Request(u32),
    /// A user's marker.
    User(UserId),
    /// One reservation.
    Reservation(ReservationId),
    /// Reservations whose order request must be sent.
    SendPending,
    /// Reservations by the time they must be checked.
    ReservationExpiry,
    /// The sold-out mark.
    SoldOut,
}

/// The key names of one bucket.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BucketKeys {
    scope: BucketScope,
    tag: String,
    prefix: String,
}

impl BucketKeys {
    /// The names for a bucket.
    #[must_use]
    pub fn new(scope: &BucketScope) -> Self {
        let tag = format!(
            "a:{}:s:{}:v:{}:b:{}",
            scope.scope.activity_id, scope.scope.sku_id, scope.scope.version, scope.bucket_id
        );
        let prefix = format!("seckill:{{{tag}}}:");
        Self {
            scope: scope.clone(),
            tag,
            prefix,
        }
    }

    /// The bucket.
    #[must_use]
    pub const fn scope(&self) -> &BucketScope {
        &self.scope
    }

    /// The hash tag without its braces: the payload of the sold-out channel.
    #[must_use]
    pub fn tag(&self) -> &str {
        &self.tag
    }

    /// The cluster slot that all these keys share.
    #[must_use]
    pub fn slot(&self) -> u16 {
        hash_slot(&self.prefix)
    }

    fn key(&self, suffix: &str) -> String {
        let mut key = String::with_capacity(self.prefix.len() + suffix.len());
        key.push_str(&self.prefix);
        key.push_str(suffix);
        key
    }

    /// `…:meta`
    #[must_use]
    pub fn meta(&self) -> String {
        self.key("meta")
    }

    /// `…:stock`
    #[must_use]
    pub fn stock(&self) -> String {
        self.key("stock")
    }

    /// `…:req:<000..255>` for a request id.
    #[must_use]
    pub fn request(&self, request_id: &RequestId) -> String {
        self.request_shard(request_shard(request_id))
    }

    /// `…:req:<000..255>` by number.
    #[must_use]
    pub fn request_shard(&self, shard: u32) -> String {
        format!("{}req:{shard:03}", self.prefix)
    }

    /// `…:user:<user_id>`
    #[must_use]
    pub fn user(&self, user_id: &UserId) -> String {
        format!("{}user:{user_id}", self.prefix)
    }

    /// `…:resv:<reservation_id>`
    #[must_use]
    pub fn reservation(&self, reservation_id: &ReservationId) -> String {
        format!("{}resv:{reservation_id}", self.prefix)
    }

    /// `…:send_pending`
    #[must_use]
    pub fn send_pending(&self) -> String {
        self.key("send_pending")
    }

    /// `…:reservation_expiry`
    #[must_use]
    pub fn reservation_expiry(&self) -> String {
        self.key("reservation_expiry")
    }

    /// `…:soldout`
    #[must_use]
    pub fn soldout(&self) -> String {
        self.key("soldout")
    }

    /// A pattern that matches all keys of this bucket, for the audit's bounded SCAN.
    #[must_use]
    pub fn scan_pattern(&self) -> String {
        self.key("*")
    }

    /// Whether a key name is in this bucket's namespace, whatever it holds.
    #[must_use]
    pub fn owns(&self, key: &str) -> bool {
        key.starts_with(&self.prefix)
    }

    /// What a key of this bucket holds; `None` for a key that is not this bucket's or has a name
    /// that no version of this program writes.
    #[must_use]
    pub fn kind_of(&self, key: &str) -> Option<KeyKind> {
        let suffix = key.strip_prefix(&self.prefix)?;
        match suffix {
            "meta" => return Some(KeyKind::Meta),
            "stock" => return Some(KeyKind::Stock),
            "send_pending" => return Some(KeyKind::SendPending),
            "reservation_expiry" => return Some(KeyKind::ReservationExpiry),
            "soldout" => return Some(KeyKind::SoldOut),
            _ => {}
        }
        let (family, name) = suffix.split_once(':')?;
        match family {
            "req" => {
                let shard = name.parse().ok().filter(|shard| *shard < REQUEST_SHARDS)?;
                (name.len() == 3).then_some(KeyKind::Request(shard))
            }
            "user" => UserId::parse(name).ok().map(KeyKind::User),
            "resv" => ReservationId::parse(name).ok().map(KeyKind::Reservation),
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use seckill_state_machine::{ActivityVersion, SkuId};

    use super::*;

    fn keys() -> BucketKeys {
        let scope = Scope {
            activity_id: ActivityId::parse("A-1").unwrap(),
            sku_id: SkuId::parse("S_2").unwrap(),
            version: ActivityVersion::new(7).unwrap(),
        };
        BucketKeys::new(&scope.bucket(BucketId::new(3).unwrap()))
    }

    #[test]
    fn names_are_those_of_the_contract() {
        let keys = keys();
        assert_eq!(keys.tag(), "a:A-1:s:S_2:v:7:b:3");
        assert_eq!(keys.meta(), "seckill:{a:A-1:s:S_2:v:7:b:3}:meta");
        assert_eq!(
            keys.request_shard(7),
            "seckill:{a:A-1:s:S_2:v:7:b:3}:req:007"
        );
        assert_eq!(
            current_version_key(&ActivityId::parse("A-1").unwrap()),
            "seckill:activity:A-1:current_version"
        );
    }

    #[test]
    fn all_keys_of_a_bucket_share_one_slot() {
        let keys = keys();
        let user = UserId::parse("u1").unwrap();
        let reservation = ReservationId::parse("abcdefghijklmnopqrstuvwxyz").unwrap();
        let names = [
            keys.meta(),
            keys.stock(),
            keys.request(&RequestId::parse("q1").unwrap()),
            keys.user(&user),
            keys.reservation(&reservation),
            keys.send_pending(),
            keys.reservation_expiry(),
            keys.soldout(),
        ];
        assert!(names.iter().all(|name| hash_slot(name) == keys.slot()));
        assert!(names.iter().all(|name| keys.kind_of(name).is_some()));
        assert_eq!(keys.kind_of(&keys.user(&user)), Some(KeyKind::User(user)));
        assert_eq!(
            keys.kind_of(&keys.reservation(&reservation)),
            Some(KeyKind::Reservation(reservation))
        );
    }

    #[test]
    fn foreign_keys_have_no_kind() {
        let keys = keys();
        for key in [
            "",
            "seckill:{a:A-1:s:S_2:v:8:b:3}:meta",
            &keys.key("req:256"),
            &keys.key("x"),
        ] {
            assert_eq!(keys.kind_of(key), None, "{key}");
        }
        assert!(keys.owns(&keys.key("x")) && keys.owns(&keys.meta()));
        assert!(!keys.owns("seckill:{a:A-1:s:S_2:v:8:b:3}:meta"));
    }

    proptest! {
        #[test]
        fn shards_and_buckets_stay_in_range(user in "[A-Za-z0-9_-]{1,128}", count in 1u32..=4_096) {
            let buckets = BucketCount::new(count).unwrap();
            let user_id = UserId::parse(user.clone()).unwrap();
            prop_assert!(bucket_of_user(&keys().scope().scope, &user_id, buckets).get() < count);
            prop_assert!(request_shard(&RequestId::parse(user).unwrap()) < REQUEST_SHARDS);
        }
    }
}
