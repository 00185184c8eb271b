//! One call to the front, with everything a well-behaved caller does about faults.
//!
//! A fault is never an answer: whatever leaves the outcome open is repeated under the same ids, marked
//! as a repeat, until the front says what became of it or the time is up (I9).

use std::time::{Duration, Instant};

use anyhow::Context as _;
use seckill_proto::v1::reservation_service_client::ReservationServiceClient;
use seckill_proto::v1::{ReserveRequest, ReserveResponse};
use seckill_state_machine::Scope;
use tonic::transport::{Channel, Endpoint};
use tonic::{Code, Status};

use super::answers::Answer;
use super::plan::{Plan, Step};

/// Longest wait for one attempt: far above what a front under full load needs, so that only a lost
/// answer runs into it.
const ATTEMPT_LIMIT: Duration = Duration::from_secs(10);

/// Longest time for one call with all its repeats. A front that was killed is back within seconds;
/// a minute also covers one that comes up while two cores are busy.
pub const CALL_LIMIT: Duration = Duration::from_secs(60);

/// First pause before a repeat.
const PAUSE_MIN: Duration = Duration::from_millis(20);

/// Longest pause before a repeat.
const PAUSE_MAX: Duration = Duration::from_millis(500);

/// Kinds of malformed calls, taken in turn.
const INVALID_KINDS: u32 = 5;

/// The longest id the front takes, and one more.
const TOO_LONG: usize = 129;

/// Opens lazily connecting channels, spread over the fronts in turn.
///
/// # Errors
/// When an address is none.
pub fn channels(fronts: &[String], connections: usize) -> anyhow::Result<Vec<Channel>> {
    let mut channels = Vec::with_capacity(connections);
    for front in fronts.iter().cycle().take(connections) {
        let endpoint = Endpoint::from_shared(format!("http://{front}"))
            .with_context(|| format!("reading the front address {front}"))?
            .timeout(ATTEMPT_LIMIT)
            .connect_timeout(ATTEMPT_LIMIT)
            .tcp_nodelay(true);
        channels.push(endpoint.connect_lazy());
    }
    Ok(channels)
}

/// What a call ended with.
#[derive(Debug)]
pub struct Outcome {
    /// The answer.
    pub answer: Answer,
    /// From the first attempt to the answer.
    pub took: Duration,
    /// Why attempts were repeated, one entry for each repeat.
    pub faults: Vec<String>,
    /// What an error said.
    pub error: Option<String>,
    /// Whether the front had no answer at all within the limit.
    pub gave_up: bool,
}

/// The user id of a buyer.
#[must_use]
pub fn user_name(buyer: u32) -> String {
    format!("u{buyer}")
}

/// Writes the requests of one activity.
#[derive(Debug, Clone)]
pub struct Writer {
    scope: Scope,
}

impl Writer {
    /// For this activity version.
    #[must_use]
    pub const fn new(scope: Scope) -> Self {
        Self { scope }
    }

    /// The call of a step.
    #[must_use]
    pub fn request(&self, plan: &Plan, step: Step) -> ReserveRequest {
        match step {
            Step::First(request) => self.well_formed(plan, request, false),
            Step::Repeat(request) => self.well_formed(plan, request, true),
            Step::Invalid(number) => self.malformed(number),
        }
    }

    fn well_formed(&self, plan: &Plan, request: u32, repeat: bool) -> ReserveRequest {
        self.call(
            user_name(plan.buyer(request)),
            format!("q{request}"),
            repeat,
        )
    }

    fn call(&self, user_id: String, request_id: String, repeat: bool) -> ReserveRequest {
        ReserveRequest {
            activity_id: self.scope.activity_id.as_str().to_owned(),
            sku_id: self.scope.sku_id.as_str().to_owned(),
            user_id,
            request_id,
            activity_version: self.scope.version.get(),
            quantity: 1,
            activity_token: String::new(),
            repeat,
        }
    }

    /// A call that no front may pass on. None names a buyer or request of the plan.
    fn malformed(&self, number: u32) -> ReserveRequest {
        let good = self.call(
            format!("invalid-{number}"),
            format!("invalid-{number}"),
            false,
        );
        match number % INVALID_KINDS {
            0 => ReserveRequest {
                user_id: String::new(),
                ..good
            },
            1 => ReserveRequest {
                user_id: "a}b|c:d".to_owned(),
                ..good
            },
            2 => ReserveRequest {
                request_id: "q".repeat(TOO_LONG),
                ..good
            },
            3 => ReserveRequest {
                activity_version: 0,
                ..good
            },
            _ => ReserveRequest {
                sku_id: "{}".to_owned(),
                request_id: String::new(),
                ..good
            },
        }
    }
}

/// Calls until there is an answer, or no time for another attempt within `limit`.
pub async fn call(
    client: &mut ReservationServiceClient<Channel>,
    mut request: ReserveRequest,
    limit: Duration,
) -> Outcome {
    let started = Instant::now();
    let mut faults = Vec::new();
    let mut pause = PAUSE_MIN;
    loop {
        let result = client.reserve(request.clone()).await;
        let fault = match read(result.map(tonic::Response::into_inner)) {
            Read::Answer(answer) => {
                return Outcome {
                    answer,
                    took: started.elapsed(),
                    faults,
                    error: None,
                    gave_up: false,
                };
            }
            Read::Wrong(error) => return failed(started, faults, error),
            Read::Fault(fault) => fault,
        };
        if started.elapsed() + pause > limit {
            let error = format!("no answer in {limit:?}: {fault}");
            return Outcome {
                gave_up: true,
                ..failed(started, faults, error)
            };
        }
        // The random part keeps hundreds of callers from returning at one instant.
        let part = rand::random_range(0.5..1.0);
        tokio::time::sleep(pause.mul_f64(part)).await;
        pause = (pause * 2).min(PAUSE_MAX);
        faults.push(fault);
        request.repeat = true;
    }
}

fn failed(started: Instant, faults: Vec<String>, error: String) -> Outcome {
    Outcome {
        answer: Answer::Error,
        took: started.elapsed(),
        faults,
        error: Some(error),
        gave_up: false,
    }
}

enum Read {
    Answer(Answer),
    Fault(String),
    Wrong(String),
}

fn read(result: Result<ReserveResponse, Status>) -> Read {
    match result {
        Ok(response) => match Answer::read(&response) {
            // Says itself that the same request may get another answer.
            Some(_) if response.retryable => Read::Fault(format!("{:?}", response.code())),
            Some(answer) => Read::Answer(answer),
            None => Read::Wrong(format!(
                "an answer without a meaning: code {}",
                response.code
            )),
        },
        Err(status) if status.code() == Code::InvalidArgument => Read::Answer(Answer::Invalid),
        Err(status) if is_fault(&status) => Read::Fault(describe(&status)),
        Err(status) => Read::Wrong(describe(&status)),
    }
}

/// Whether the outcome is open or nothing was decided, so that a repeat is right. A connection that
/// broke shows up as `UNKNOWN`, `INTERNAL` or `CANCELLED`, depending on where in a frame it did.
fn is_fault(status: &Status) -> bool {
    match status.code() {
        Code::Unavailable
        | Code::DeadlineExceeded
        | Code::ResourceExhausted
        | Code::Cancelled
        | Code::Aborted
        | Code::Unknown => true,
        Code::Internal => std::error::Error::source(status).is_some(),
        _ => false,
    }
}

fn describe(status: &Status) -> String {
    format!("{:?}: {}", status.code(), status.message())
}

#[cfg(test)]
mod tests {
    use seckill_proto::v1::ReserveCode;
    use seckill_state_machine::{ActivityId, ActivityVersion, RequestId, SkuId, UserId};

    use super::super::plan::Mix;
    use super::*;

    fn writer() -> Writer {
        Writer::new(Scope {
            activity_id: ActivityId::parse("act").unwrap(),
            sku_id: SkuId::parse("sku").unwrap(),
            version: ActivityVersion::new(1).unwrap(),
        })
    }

    #[test]
    fn a_repeat_has_the_ids_of_its_first_attempt_and_says_that_it_is_one() {
        let mix = Mix {
            buyers: 3,
            repeat_percent: 0,
            second_percent: 100,
            invalid: 0,
            seed: 1,
        };
        let plan = Plan::new(mix);
        let first = writer().request(&plan, Step::First(4));
        let repeat = writer().request(&plan, Step::Repeat(4));
        assert!(repeat.repeat && !first.repeat);
        assert_eq!(
            ReserveRequest {
                repeat: false,
                ..repeat
            },
            first
        );
        assert_eq!(
            (first.user_id.as_str(), first.request_id.as_str()),
            ("u1", "q4")
        );
    }

    #[test]
    fn every_malformed_call_breaks_a_rule() {
        for number in 0..INVALID_KINDS {
            let call = writer().malformed(number);
            let sound = UserId::parse(call.user_id).is_ok()
                && RequestId::parse(call.request_id).is_ok()
                && SkuId::parse(call.sku_id).is_ok()
                && call.activity_version > 0;
            assert!(!sound, "{number}");
        }
    }

    #[test]
    fn only_an_open_outcome_is_repeated() {
        let fault = |status| matches!(read(Err(status)), Read::Fault(_));
        assert!(fault(Status::unavailable("SYSTEM_BUSY")));
        assert!(fault(Status::unknown("transport error")));
        assert!(fault(Status::deadline_exceeded("")));
        assert!(!fault(Status::internal("a bug")));
        assert!(!fault(Status::permission_denied("")));
        let invalid = read(Err(Status::invalid_argument("")));
        assert!(matches!(invalid, Read::Answer(Answer::Invalid)));
        let missing = ReserveResponse {
            code: ReserveCode::ConfigMissing.into(),
            retryable: true,
            ..ReserveResponse::default()
        };
        assert!(matches!(read(Ok(missing)), Read::Fault(_)));
        assert!(matches!(
            read(Ok(ReserveResponse::default())),
            Read::Wrong(_)
        ));
    }
}
