//! What waits for somebody although the installation stands: parked messages and open differences.
//!
//! Neither is a fault of the installation, so that they only earn a warning here; `reconcile report` and
//! `dlq list` are what ends with 1.

use seckill_order_store::{Store, Waiting};

use super::ASK_LIMIT;
use super::finding::{Area, Finding, Grade, some_of, unless};

/// Asks for both and judges them.
pub async fn check(store: &Store) -> Vec<Finding> {
    let asked = async {
        (
            store.waiting_letters().await,
            store.waiting_differences().await,
        )
    };
    let Ok((letters, differences)) = tokio::time::timeout(ASK_LIMIT, asked).await else {
        return vec![unanswered("dead letters", "no answer in time")];
    };
    let mut findings = vec![match letters {
        Ok(letters) => judge_letters(&letters),
        Err(error) => unanswered("dead letters", &error.to_string()),
    }];
    match differences {
        Ok(differences) => findings.extend(judge_differences(&differences)),
        Err(error) => findings.push(unanswered("differences", &error.to_string())),
    }
    findings
}

fn unanswered(check: &str, why: &str) -> Finding {
    Finding::of(
        Grade::Warn,
        Area::Waiting,
        check,
        format!("not checked: {why}"),
        "an answer",
        "mend the dependency and run the doctor again",
    )
}

fn judge(check: &str, waiting: &[&Waiting], hint: &str) -> Finding {
    let count: u64 = waiting.iter().map(|waiting| waiting.count).sum();
    let kinds: Vec<String> = waiting
        .iter()
        .map(|waiting| format!("{} {}", waiting.count, waiting.kind))
        .collect();
    let found = match kinds.as_slice() {
        [] => "none".to_owned(),
        kinds => format!("{count}: {}", some_of(kinds)),
    };
    Finding::of(
        unless(count == 0, Grade::Warn),
        Area::Waiting,
        check,
        found,
        "none",
        hint,
    )
}

fn judge_letters(letters: &[Waiting]) -> Finding {
    let letters: Vec<&Waiting> = letters.iter().collect();
    judge(
        "dead letters",
        &letters,
        "`seckillctl dlq list` shows them; `dlq replay` once their cause is gone, or `dlq discard`",
    )
}

fn judge_differences(differences: &[Waiting]) -> [Finding; 2] {
    let (mended, personal): (Vec<&Waiting>, Vec<&Waiting>) =
        differences.iter().partition(|waiting| waiting.is_mended);
    [
        judge(
            "differences for a person",
            &personal,
            "`seckillctl reconcile plan` says what would mend each, `reconcile apply` does it",
        ),
        judge(
            "differences being mended",
            &mended,
            "the reconciler mends them by itself: see that one runs, then `seckillctl reconcile plan`",
        ),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;

    fn waiting(kind: &str, is_mended: bool, count: u64) -> Waiting {
        Waiting {
            kind: kind.to_owned(),
            is_mended,
            count,
        }
    }

    #[test]
    fn what_waits_is_counted_by_kind_and_told_apart_by_who_acts() {
        let found = judge_letters(&[waiting("undecodable", false, 3), waiting("lost", false, 1)]);
        assert_eq!(
            (found.verdict, found.found.as_str()),
            (Grade::Warn, "4: 3 undecodable; 1 lost")
        );
        assert_eq!(judge_letters(&[]).verdict, Grade::Ok);
        let [personal, mended] = judge_differences(&[
            waiting("duplicate_order", false, 2),
            waiting("not_settled", true, 5),
        ]);
        assert_eq!(personal.found, "2: 2 duplicate_order");
        assert_eq!(mended.found, "5: 5 not_settled");
        let none = judge_differences(&[]).map(|found| found.verdict);
        assert_eq!(none, [Grade::Ok, Grade::Ok]);
    }
}
