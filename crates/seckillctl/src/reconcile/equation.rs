//! The sum at the end of a sale: what is left in Redis and what was ordered is what there was.

use seckill_activity_control::{AuditReport, Difference};
use seckill_state_machine::ActivityState;
use serde::Serialize;

/// One bucket's line.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Line {
    bucket_id: u32,
    /// Units that the bucket was given, by PostgreSQL.
    initial: Option<u64>,
    /// Units on sale in Redis; none when Redis has nothing of the bucket.
    redis_left: Option<u64>,
    /// Units of active orders in PostgreSQL.
    ordered: Option<u64>,
    /// Units of reservations that are neither ordered nor released.
    on_their_way: Option<u64>,
    /// `initial - redis_left - ordered`; none when a side is missing.
    difference: Option<i128>,
}

impl Line {
    fn holds(&self) -> bool {
        self.difference == Some(0)
    }
}

/// One version's sum, and every difference behind one that does not hold.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Equation {
    scope: String,
    state: ActivityState,
    /// Redis's side has expired as planned: only PostgreSQL's can be added up.
    redis_expired: bool,
    pub holds: bool,
    pub buckets: Vec<Line>,
    pub differences: Vec<Difference>,
}

impl From<AuditReport> for Equation {
    fn from(report: AuditReport) -> Self {
        let expired = report.redis_expired;
        let buckets: Vec<Line> = report
            .buckets
            .iter()
            .map(|bucket| {
                let initial = bucket.postgres.map(|book| book.total);
                let ordered = bucket.postgres.map(|book| book.ordered);
                // What has expired was left over: PostgreSQL knows how much.
                let redis_left = match expired {
                    true => bucket.postgres.map(|book| book.available),
                    false => bucket.redis.map(|redis| redis.available),
                };
                let sides = initial.zip(redis_left).zip(ordered);
                Line {
                    bucket_id: bucket.bucket_id.get(),
                    initial,
                    redis_left,
                    ordered,
                    on_their_way: bucket.redis.map(|redis| redis.open),
                    difference: sides.map(|((initial, left), ordered)| {
                        i128::from(initial) - i128::from(left) - i128::from(ordered)
                    }),
                }
            })
            .collect();
        Self {
            scope: report.scope.to_string(),
            state: report.state,
            redis_expired: expired,
            holds: report.differences.is_empty() && buckets.iter().all(Line::holds),
            buckets,
            differences: report.differences,
        }
    }
}

impl Equation {
    /// The sum in lines.
    #[must_use]
    pub fn describe(&self) -> String {
        let verdict = match (self.holds, self.redis_expired) {
            (true, false) => "left + ordered = initial",
            (true, true) => "left + ordered = initial, in PostgreSQL: Redis has expired as planned",
            (false, _) => "THE SUM DOES NOT HOLD",
        };
        let mut text = format!("{} {}: {verdict}\n", self.scope, self.state);
        let heading = [
            "BUCKET",
            "INITIAL",
            "REDIS LEFT",
            "ORDERED",
            "ON THEIR WAY",
            "DIFFERENCE",
        ];
        let rows = self.buckets.iter().map(|line| {
            use crate::output::or_none;
            [
                line.bucket_id.to_string(),
                or_none(line.initial),
                or_none(line.redis_left),
                or_none(line.ordered),
                or_none(line.on_their_way),
                or_none(line.difference),
            ]
        });
        text.push_str(&crate::output::table(heading, rows));
        if !self.differences.is_empty() {
            let lines: Vec<String> = self.differences.iter().map(ToString::to_string).collect();
            text.push_str(&format!("\n{}", lines.join("\n")));
        }
        text
    }
}

#[cfg(test)]
mod tests {
    use seckill_activity_control::{BookFigures, BucketFigures, RedisFigures};
    use seckill_state_machine::{ActivityId, ActivityVersion, BucketId, Scope, SkuId};

    use super::*;

    fn report(available: u64, open: u64, redis: bool, expired: bool) -> AuditReport {
        AuditReport {
            scope: Scope {
                activity_id: ActivityId::parse("act").unwrap(),
                sku_id: SkuId::parse("sku").unwrap(),
                version: ActivityVersion::new(1).unwrap(),
            },
            state: ActivityState::Closed,
            redis_expired: expired,
            buckets: vec![BucketFigures {
                bucket_id: BucketId::ZERO,
                redis: redis.then_some(RedisFigures {
                    initial: 10,
                    available,
                    open,
                    ordered: 4,
                }),
                postgres: Some(BookFigures {
                    total: 10,
                    available: 6,
                    ordered: 4,
                    orders: 4,
                }),
            }],
            decisions: 4,
            differences: Vec::new(),
        }
    }

    #[test]
    fn the_sum_holds_only_when_nothing_is_missing_too_much_or_on_its_way() {
        let holds = |report| Equation::from(report).holds;
        assert!(holds(report(6, 0, true, false)));
        assert!(!holds(report(5, 1, true, false)));
        assert!(!holds(report(7, 0, true, false)));
        assert!(!holds(report(6, 0, false, false)));
        assert!(holds(report(0, 0, false, true)));
        let short = Equation::from(report(5, 1, true, false));
        assert_eq!(short.buckets[0].difference, Some(1));
        assert!(short.describe().contains("DOES NOT HOLD"));
    }
}
