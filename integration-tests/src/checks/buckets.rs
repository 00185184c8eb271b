//! A bucket's keys, sorted out of a dump by their names alone.

use std::collections::BTreeMap;

use seckill_test_support::{Content, Dump};

use super::Fields;

/// One bucket as Redis holds it.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Bucket {
    /// `a:<activity>:s:<sku>:v:<version>:b:<bucket>`
    pub tag: String,
    /// The settings.
    pub meta: Fields,
    /// The counters.
    pub stock: Fields,
    /// Reservations by id.
    pub reservations: BTreeMap<String, Fields>,
    /// Reservation ids by user.
    pub markers: BTreeMap<String, String>,
}

impl Bucket {
    /// What its keys begin with.
    #[must_use]
    pub fn prefix(&self) -> String {
        format!("seckill:{{{}}}:", self.tag)
    }

    /// Activity, SKU, version and bucket, as they stand in the tag.
    #[must_use]
    pub fn scope(&self) -> [&str; 4] {
        let mut parts = self.tag.split(':').skip(1).step_by(2);
        std::array::from_fn(|_| parts.next().unwrap_or(""))
    }
}

/// What a bucket's key begins with; `None` for keys that belong to no bucket.
pub(super) fn prefix_of(key: &str) -> Option<&str> {
    let end = key.strip_prefix("seckill:{")?.find("}:")?;
    key.get(..end + "seckill:{".len() + "}:".len())
}

/// All buckets of a dump.
#[must_use]
pub fn buckets(dump: &Dump) -> Vec<Bucket> {
    let mut found: BTreeMap<&str, Bucket> = BTreeMap::new();
    for (key, entry) in &dump.0 {
        let Some(prefix) = prefix_of(key) else {
            continue;
        };
        let tag = &prefix["seckill:{".len()..prefix.len() - "}:".len()];
        let bucket = found.entry(tag).or_insert_with(|| Bucket {
            tag: tag.to_owned(),
            ..Bucket::default()
        });
        let suffix = &key[prefix.len()..];
        match &entry.content {
            Content::Hash(fields) if suffix == "meta" => bucket.meta = fields.clone(),
            Content::Hash(fields) if suffix == "stock" => bucket.stock = fields.clone(),
            Content::Hash(fields) => {
                if let Some(id) = suffix.strip_prefix("resv:") {
                    bucket.reservations.insert(id.to_owned(), fields.clone());
                }
            }
            Content::Text(id) => {
                if let Some(user) = suffix.strip_prefix("user:") {
                    bucket.markers.insert(user.to_owned(), id.clone());
                }
            }
            _ => {}
        }
    }
    found.into_values().collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_tag_holds_its_scope() {
        let bucket = Bucket {
            tag: "a:A-1:s:S_2:v:7:b:3".to_owned(),
            ..Bucket::default()
        };
        assert_eq!(bucket.scope(), ["A-1", "S_2", "7", "3"]);
        let key = format!("{}user:u", bucket.prefix());
        assert_eq!(prefix_of(&key), Some(bucket.prefix().as_str()));
        assert_eq!(prefix_of("seckill:activity:A-1:current_version"), None);
    }
}
