//! The purchase's trace: the caller's if it is valid, else a new one.

use seckill_state_machine::Traceparent;
use tonic::metadata::MetadataMap;

const TRACEPARENT: &str = "traceparent";

/// Takes the caller's trace context, or begins a trace. A malformed, repeated or all-zero one is
/// dropped, never passed on, and never a reason to refuse a call.
pub(crate) fn traceparent(metadata: &MetadataMap) -> Option<Traceparent> {
    let mut values = metadata.get_all(TRACEPARENT).iter();
    let only = values.next().filter(|_| values.next().is_none());
    only.and_then(|value| value.to_str().ok())
        .and_then(|text| Traceparent::parse(text).ok())
        .or_else(new_trace)
}

fn new_trace() -> Option<Traceparent> {
    // Zero ids are invalid; a random one is zero once in 2^64 traces, which then has no context.
    Traceparent::from_ids(rand::random(), rand::random()).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    const GOOD: &str = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-00";

    fn given(values: &[&str]) -> Traceparent {
        let mut metadata = MetadataMap::new();
        for value in values {
            metadata.append(TRACEPARENT, value.parse().unwrap());
        }
        traceparent(&metadata).unwrap()
    }

    #[test]
    fn a_valid_one_is_taken_and_every_other_replaced() {
        assert_eq!(given(&[GOOD]).as_str(), GOOD);
        let zero_trace = format!("00-{}-b7ad6b7169203331-01", "0".repeat(32));
        let zero_span = format!("00-0af7651916cd43dd8448eb211c80319c-{}-01", "0".repeat(16));
        let upper = GOOD.to_uppercase();
        let long = format!("{GOOD}-{}", "x".repeat(1_000));
        let wrong: [&[&str]; 9] = [
            &[],
            &[""],
            &[&zero_trace],
            &[&zero_span],
            &["ff-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-00"],
            &[&upper],
            &[&long],
            &[&GOOD[..40]],
            &[GOOD, GOOD],
        ];
        for values in wrong {
            let fresh = given(values);
            assert_ne!(fresh.trace_id(), &GOOD[3..35], "{values:?}");
        }
        assert_ne!(given(&[]), given(&[]));
    }
}
