//! What must hold at any time, looked at while everything breaks.
//!
//! PostgreSQL answers in one statement, so in one snapshot; a bucket of Redis in one script, so
//! between two writes. Both are asked past the proxies. A look that finds nobody there is no finding.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use seckill_test_support::{RedisConnection, Value};
use tokio::time::timeout;
use tokio_util::sync::CancellationToken;

use crate::installation::Installation;
use crate::load::Load;
use crate::oracle::queries;
use crate::random::Random;

/// Between two looks at each store.
const EVERY: Duration = Duration::from_millis(500);

/// A look may meet a server that is just going.
const LOOK_LIMIT: Duration = Duration::from_secs(5);

/// The counters of a bucket, and the units that its reservations hold.
const BUCKET: &str = "
    local stock = redis.call('HMGET', ARGV[1] .. 'stock', 'initial', 'available', 'reserved')
    local held = 0
    for _, key in ipairs(redis.call('KEYS', ARGV[1] .. 'resv:*')) do
        local found = redis.call('HMGET', key, 'status', 'quantity')
        if found[1] ~= 'RELEASED' and found[1] ~= 'ORDER_CANCELLED' then
            held = held + tonumber(found[2])
        end
    end
    return {stock[1] or '', stock[2] or '', stock[3] or '', held}";

/// Looks again and again.
#[derive(Clone)]
pub(crate) struct Watch {
    installation: Arc<Installation>,
    load: Load,
    seen: Arc<Mutex<Seen>>,
}

#[derive(Debug, Default, Clone)]
pub(crate) struct Seen {
    pub(crate) looks: u64,
    pub(crate) violations: Vec<String>,
}

impl Watch {
    pub(crate) fn new(installation: Arc<Installation>, load: Load) -> Self {
        Self {
            installation,
            load,
            seen: Arc::default(),
        }
    }

    /// Looks until it is told to end.
    pub(crate) async fn run(self, seed: u64, end: CancellationToken) {
        let mut random = Random::fork(seed, "watch");
        while timeout(EVERY, end.cancelled()).await.is_err() {
            let found = timeout(LOOK_LIMIT, self.look_at_postgres()).await;
            self.note(found);
            let found = timeout(LOOK_LIMIT, self.look_at_bucket(&mut random)).await;
            self.note(found);
        }
    }

    fn note(&self, found: Result<anyhow::Result<Vec<String>>, tokio::time::error::Elapsed>) {
        // Nobody there, or nobody in time: the next look will tell.
        let Ok(Ok(violations)) = found else { return };
        let mut seen = self.seen.lock().unwrap_or_else(PoisonError::into_inner);
        seen.looks += 1;
        for violation in violations {
            // The same finding again and again is one.
            if !seen.violations.contains(&violation) {
                seen.violations.push(violation);
            }
        }
    }

    /// What was seen so far.
    pub(crate) fn seen(&self) -> Seen {
        self.seen
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .clone()
    }

    /// I1 and I2 in one snapshot.
    async fn look_at_postgres(&self) -> anyhow::Result<Vec<String>> {
        let mut violations = Vec::new();
        for (rule, query) in queries::AT_ANY_TIME {
            let rows = queries::texts(self.installation.database().url(), query).await?;
            let found = rows
                .into_iter()
                .map(|row| format!("{rule}: {}", row.join("/")));
            violations.extend(found);
        }
        Ok(violations)
    }

    /// I3 for one bucket between two scripts.
    async fn look_at_bucket(&self, random: &mut Random) -> anyhow::Result<Vec<String>> {
        let offers = self.load.all_offers();
        let Some(offer) = random.pick(&offers) else {
            return Ok(Vec::new());
        };
        let prefix = offer.sale.key(u32::try_from(random.below(3))?, "");
        let address = self.installation.redis.primary().address();
        let mut connection = RedisConnection::open(address).await?;
        let reply = connection.call(&["EVAL", BUCKET, "0", &prefix]).await?;
        Ok(violation(&prefix, &reply).into_iter().collect())
    }
}

/// `[initial, available, reserved, held]`; empty texts where the sale has no such bucket.
fn violation(prefix: &str, reply: &Value) -> Option<String> {
    let Value::List(items) = reply else {
        return None;
    };
    let numbers: Vec<i64> = items
        .iter()
        .filter_map(|item| match item {
            Value::Int(number) => Some(*number),
            Value::Text(text) => text.parse().ok(),
            _ => None,
        })
        .collect();
    let [initial, available, reserved, held] = numbers[..] else {
        return None;
    };
    let is_conserved = initial == available + reserved && reserved == held;
    let is_positive = available >= 0 && reserved >= 0;
    (!is_conserved || !is_positive)
        .then(|| format!("I3 {prefix}: {initial} = {available} + {reserved}, {held} held"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn reply(numbers: [&str; 3], held: i64) -> Value {
        let mut items: Vec<Value> = numbers.map(|text| Value::Text(text.to_owned())).into();
        items.push(Value::Int(held));
        Value::List(items)
    }

    #[test]
    fn a_bucket_that_loses_or_doubles_a_unit_is_seen() {
        assert_eq!(violation("b", &reply(["5", "3", "2"], 2)), None);
        assert!(violation("b", &reply(["5", "4", "2"], 2)).is_some());
        assert!(violation("b", &reply(["5", "3", "2"], 1)).is_some());
        assert!(violation("b", &reply(["5", "6", "-1"], -1)).is_some());
        assert_eq!(violation("b", &reply(["", "", ""], 0)), None);
    }
}
