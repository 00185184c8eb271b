//! The report as a person reads it, and where to look next.

use std::fmt::Write as _;
use std::path::Path;

use seckill_key_layout::BucketKeys;
use seckill_state_machine::{ActivityId, ActivityVersion, BucketId, Scope, SkuId};

use super::report::{Report, Verdict};
use crate::output::table;

/// Differences that are shown; the report's file holds all of them.
const DIFFERENCES_SHOWN: usize = 20;

/// Where the report and the settings are.
#[derive(Debug, Clone, Copy)]
pub struct Looking<'a> {
    /// The report's file.
    pub report_file: Option<&'a Path>,
    /// The folder of the run files, beside which the settings lie.
    pub run_dir: Option<&'a Path>,
}

/// The report in words.
#[must_use]
pub fn describe(report: &Report, looking: &Looking<'_>) -> String {
    let mut text = String::new();
    // Writing to a string cannot fail.
    let _ = writeln!(text, "{}\n", codes(report));
    let _ = writeln!(
        text,
        "latency   p50 {:.1}  p95 {:.1}  p99 {:.1}  p99.9 {:.1}  max {:.1} ms",
        report.p50_ms, report.p95_ms, report.p99_ms, report.p999_ms, report.max_ms
    );
    let _ = writeln!(
        text,
        "time      {:.1} s for {} calls ({:.0}/s), {:.1} s to settle, {:.1} s to audit, {:.1} s in all",
        report.reserve_seconds,
        report.calls,
        report.calls_per_second,
        report.settle_seconds,
        report.audit_seconds,
        report.total_seconds
    );
    let _ = writeln!(
        text,
        "answers   {} accepted, {} replayed, {} already reserved, {} sold out, {} malformed, {} errors",
        report.accepted,
        report.replayed,
        report.user_already_reserved,
        report.sold_out,
        report.invalid,
        report.errors
    );
    let _ = writeln!(
        text,
        "repeats   {} requests sent twice, {} told something else; {} attempts retried after faults",
        report.repeats, report.inconsistent_repeats, report.retries
    );
    for (reason, count) in &report.retry_reasons {
        let _ = writeln!(text, "          {count} times {reason}");
    }
    if let Some(kill) = report.front_killed {
        let _ = writeln!(
            text,
            "front     {} killed after {} acceptances, {} ready {} ms later",
            kill.pid, kill.accepted, kill.successor, kill.ready_after_ms
        );
    }
    let _ = writeln!(
        text,
        "stores    {} orders, {} available, {} reserved, {} oversold, {} duplicates, {} unsettled",
        report.orders,
        report.available,
        report.reserved,
        report.oversold,
        report.duplicate_orders,
        report.unsettled
    );
    text.push_str(&audit(&report.audit));
    for sample in &report.error_samples {
        let _ = writeln!(text, "error     {sample}");
    }
    for failure in &report.failures {
        let _ = writeln!(text, "FAILED    {failure}");
    }
    if report.failures.is_empty() {
        let _ = writeln!(
            text,
            "\n{} accepted = {} orders: every unit is accounted for.",
            report.accepted, report.orders
        );
    }
    text.push_str(&next(report, looking));
    text
}

fn codes(report: &Report) -> String {
    let rows = report
        .by_code
        .iter()
        .map(|(code, count)| [(*code).to_owned(), count.to_string()]);
    table(["OUTCOME", "CALLS"], rows)
}

fn audit(verdict: &Verdict) -> String {
    match verdict {
        Verdict::Fine(_) => "audit     ok\n".to_owned(),
        Verdict::NotDone(reason) => format!("audit     not done: {reason}\n"),
        Verdict::Differences(found) => {
            let shown: Vec<String> = found
                .iter()
                .take(DIFFERENCES_SHOWN)
                .map(|difference| format!("          {difference}\n"))
                .collect();
            let rest = match found.len().checked_sub(DIFFERENCES_SHOWN) {
                Some(rest @ 1..) => format!("          and {rest} more\n"),
                _ => String::new(),
            };
            format!(
                "audit     {} differences\n{}{rest}",
                found.len(),
                shown.concat()
            )
        }
    }
}

/// Commands that show the same with other tools than this one.
fn next(report: &Report, looking: &Looking<'_>) -> String {
    let mut text = String::from("\nWhere to look next:\n");
    let settings = looking
        .run_dir
        .and_then(Path::parent)
        .map(|folder| folder.join("stack.env"));
    if let Some(settings) = settings.filter(|file| file.is_file()) {
        let _ = writeln!(text, "  set -a; . {}; set +a", settings.display());
    }
    let activity = &report.activity_id;
    if let Some(stock) = stock_key(report) {
        let _ = writeln!(
            text,
            "  redis-cli -u \"$SECKILL_REDIS_URL\" hgetall '{stock}'"
        );
    }
    let _ = writeln!(
        text,
        "  psql \"$SECKILL_DATABASE_URL\" -c \"select count(*) from orders where activity_id = '{activity}'\""
    );
    let _ = writeln!(text, "  seckillctl activity show --activity-id {activity}");
    let _ = writeln!(
        text,
        "  seckillctl audit --activity-id {activity} --require-settled"
    );
    if let Some(file) = looking.report_file {
        let _ = writeln!(text, "  {}", file.display());
    }
    text
}

fn stock_key(report: &Report) -> Option<String> {
    let scope = Scope {
        activity_id: ActivityId::parse(report.activity_id.clone()).ok()?,
        sku_id: SkuId::parse(report.sku_id.clone()).ok()?,
        version: ActivityVersion::new(report.activity_version).ok()?,
    };
    Some(BucketKeys::new(&scope.bucket(BucketId::ZERO)).stock())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_summary_names_what_failed_and_where_to_look() {
        let report = Report {
            activity_id: "act".to_owned(),
            sku_id: "sku".to_owned(),
            activity_version: 1,
            failures: vec!["3 errors".to_owned()],
            ..Report::default()
        };
        let text = describe(
            &report,
            &Looking {
                report_file: None,
                run_dir: None,
            },
        );
        assert!(text.contains("FAILED    3 errors"), "{text}");
        assert!(
            text.contains("hgetall 'seckill:{a:act:s:sku:v:1:b:0}:stock'"),
            "{text}"
        );
        assert!(!text.contains("accounted for"), "{text}");
    }
}
