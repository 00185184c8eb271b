//! I10: every key of a sale expires.

use seckill_test_support::Dump;

pub(super) fn without_expiry(dump: &Dump) -> Vec<String> {
    let keys = dump.keys_without_expiry().into_iter();
    keys.map(|key| format!("I10 {key} never expires")).collect()
}
