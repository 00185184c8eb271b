//! What the callers were told, kept call by call and added up at the end.
//!
//! Nothing is judged while the sale runs: a repeat may be answered before its first attempt. The
//! sum is a pure function of all answers, so that its arithmetic is tested without a server.

use std::collections::{BTreeMap, BTreeSet};

use seckill_proto::v1::{AnswerSource, ReserveCode, ReserveResponse};

use super::plan::{Plan, Step};

/// Characters of a reservation id.
const RESERVATION_ID_LEN: usize = 26;

/// Errors that are kept in words; the others are only counted. Ten are enough to see a pattern.
const ERRORS_KEPT: usize = 10;

/// The final answer of one call.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Answer {
    /// A business outcome.
    Code {
        /// Which.
        code: ReserveCode,
        /// The reservation that it names.
        reservation_id: Option<[u8; RESERVATION_ID_LEN]>,
        /// Whether the front called it the answer of an earlier call.
        replay: bool,
        /// Whether the front answered by itself, from its sold-out mark: such a refusal is not
        /// remembered, and a repeat is decided by the script.
        local: bool,
    },
    /// Refused for its form.
    Invalid,
    /// Anything else.
    Error,
}

/// All answers of a sale.
#[derive(Debug)]
pub struct Answers {
    first: Vec<Option<Answer>>,
    repeat: Vec<Option<Answer>>,
    invalid: Vec<Answer>,
    accepted_so_far: u64,
    error_count: u64,
    errors: Vec<String>,
}

impl Answers {
    /// Room for the answers of a plan.
    #[must_use]
    pub fn new(plan: &Plan) -> Self {
        let requests = plan.requests() as usize;
        Self {
            first: vec![None; requests],
            repeat: vec![None; requests],
            invalid: Vec::new(),
            accepted_so_far: 0,
            error_count: 0,
            errors: Vec::new(),
        }
    }

    /// Keeps the answer of a step.
    pub fn record(&mut self, step: Step, answer: Answer) {
        let code = match answer {
            Answer::Code { code, .. } => Some(code),
            Answer::Invalid | Answer::Error => None,
        };
        match step {
            Step::First(request) => {
                self.accepted_so_far += u64::from(code == Some(ReserveCode::Accepted));
                if let Some(slot) = self.first.get_mut(request as usize) {
                    *slot = Some(answer);
                }
            }
            Step::Repeat(request) => {
                if let Some(slot) = self.repeat.get_mut(request as usize) {
                    *slot = Some(answer);
                }
            }
            Step::Invalid(_) => self.invalid.push(answer),
        }
    }

    /// Keeps what an error said.
    pub fn explain(&mut self, error: impl FnOnce() -> String) {
        self.error_count += 1;
        if self.errors.len() < ERRORS_KEPT {
            self.errors.push(error());
        }
    }

    /// First attempts that were accepted so far.
    #[must_use]
    pub const fn accepted_so_far(&self) -> u64 {
        self.accepted_so_far
    }

    /// Errors so far.
    #[must_use]
    pub const fn error_count(&self) -> u64 {
        self.error_count
    }

    /// Adds up everything.
    #[must_use]
    pub fn tally(&self, plan: &Plan) -> Tally {
        let mut tally = Tally {
            error_samples: self.errors.clone(),
            ..Tally::default()
        };
        let mut holders = BTreeMap::new();
        for (request, (first, repeat)) in self.first.iter().zip(&self.repeat).enumerate() {
            let before = tally.accepted;
            tally.add_request(*first, *repeat);
            if tally.accepted > before {
                let buyer = u32::try_from(request).map_or(0, |request| plan.buyer(request));
                *holders.entry(buyer).or_insert(0u64) += 1;
            }
        }
        for answer in &self.invalid {
            tally.count(*answer);
            match answer {
                Answer::Invalid => tally.invalid += 1,
                Answer::Code { .. } | Answer::Error => tally.errors += 1,
            }
        }
        tally.accepted_twice = holders.values().filter(|held| **held > 1).count() as u64;
        tally
    }
}

/// The sums. `calls` is the sum of `by_code`, and also of the classes `accepted`, `replayed`,
/// `user_already_reserved`, `sold_out`, `other`, `invalid` and `errors`.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Tally {
    /// Calls that ended in an answer of any kind.
    pub calls: u64,
    /// Requests that hold a reservation, each counted once however often it was sent.
    pub accepted: u64,
    /// Further answers of an accepted request, and refusals that were answered from memory.
    pub replayed: u64,
    /// Refused because the buyer already holds a reservation.
    pub user_already_reserved: u64,
    /// Refused because nothing is left.
    pub sold_out: u64,
    /// Refused for another reason of the sale.
    pub other: u64,
    /// Refused for their form, as they had to be.
    pub invalid: u64,
    /// Answers that must not be.
    pub errors: u64,
    /// Repeats that were told something else than their first attempt.
    pub inconsistent: u64,
    /// Buyers who were accepted more than once.
    pub accepted_twice: u64,
    /// Accepted requests of which not exactly one answer was the fresh one. Only faults can lose
    /// the fresh one.
    pub unclear_replays: u64,
    /// Repeats that had both answers.
    pub repeats: u64,
    /// Calls by the name of their outcome.
    pub by_code: BTreeMap<&'static str, u64>,
    /// What the callers hold.
    pub reservation_ids: BTreeSet<[u8; RESERVATION_ID_LEN]>,
    /// The first errors in words.
    pub error_samples: Vec<String>,
}

impl Tally {
    fn count(&mut self, answer: Answer) {
        let name = match answer {
            Answer::Code { code, .. } => short_name(code),
            Answer::Invalid => "INVALID_ARGUMENT",
            Answer::Error => "ERROR",
        };
        self.calls += 1;
        *self.by_code.entry(name).or_insert(0) += 1;
    }

    /// Adds the one or two calls of a request.
    fn add_request(&mut self, first: Option<Answer>, repeat: Option<Answer>) {
        let (mut accepted, mut fresh) = (0, 0);
        for answer in [first, repeat].into_iter().flatten() {
            self.count(answer);
            match answer {
                Answer::Code {
                    code: ReserveCode::Accepted,
                    reservation_id,
                    replay,
                    ..
                } => {
                    accepted += 1;
                    fresh += u64::from(!replay);
                    match reservation_id {
                        Some(id) => drop(self.reservation_ids.insert(id)),
                        None => self.inconsistent += 1,
                    }
                }
                Answer::Code { replay: true, .. } => self.replayed += 1,
                Answer::Code {
                    code: ReserveCode::UserAlreadyReserved,
                    ..
                } => {
                    self.user_already_reserved += 1;
                }
                Answer::Code {
                    code: ReserveCode::SoldOut,
                    ..
                } => self.sold_out += 1,
                Answer::Code { .. } => self.other += 1,
                // A well-formed call was called malformed.
                Answer::Invalid | Answer::Error => self.errors += 1,
            }
        }
        self.accepted += u64::from(accepted > 0);
        self.replayed += u64::from(accepted > 1);
        self.unclear_replays += u64::from(accepted > 0 && fresh != 1);
        if let (Some(first), Some(repeat)) = (first, repeat) {
            self.repeats += 1;
            self.inconsistent += u64::from(!first.agrees_with(repeat));
        }
    }
}

impl Answer {
    /// Whether a repeat was told the same. Errors are counted on their own.
    ///
    /// What one names, the other must name: no acceptance may appear or vanish. Only between two
    /// refusals, one of them local, may the reason differ: a buyer who holds a unit and asks for
    /// another is "sold out" to the front and "already reserved" to the script.
    fn agrees_with(self, other: Self) -> bool {
        let (
            Self::Code {
                code,
                reservation_id,
                local,
                ..
            },
            Self::Code {
                code: other_code,
                reservation_id: other_id,
                local: other_local,
                ..
            },
        ) = (self, other)
        else {
            return true;
        };
        let refusals = code != ReserveCode::Accepted && other_code != ReserveCode::Accepted;
        (code == other_code && reservation_id == other_id) || (refusals && (local || other_local))
    }

    /// Reads the front's answer; `None` when it means nothing.
    #[must_use]
    pub fn read(response: &ReserveResponse) -> Option<Self> {
        let code = response.code();
        let reservation_id = match response.reservation_id.as_str() {
            "" => None,
            text => Some(text.as_bytes().try_into().ok()?),
        };
        let local = response.source() == AnswerSource::Front;
        match code {
            ReserveCode::Unspecified => None,
            _ => Some(Self::Code {
                code,
                reservation_id,
                replay: response.replay,
                local,
            }),
        }
    }
}

fn short_name(code: ReserveCode) -> &'static str {
    let name = code.as_str_name();
    name.strip_prefix("RESERVE_CODE_").unwrap_or(name)
}

#[cfg(test)]
mod tests {
    use super::super::plan::Mix;
    use super::*;

    const A: &str = "aaaaaaaaaaaaaaaaaaaaaaaaaa";
    const B: &str = "bbbbbbbbbbbbbbbbbbbbbbbbbb";

    fn plan() -> Plan {
        Plan::new(Mix {
            buyers: 4,
            repeat_percent: 100,
            second_percent: 25,
            invalid: 1,
            seed: 1,
        })
    }

    fn response(code: i32, id: &str, replay: bool) -> ReserveResponse {
        let reservation_id = id.to_owned();
        ReserveResponse {
            code,
            reservation_id,
            replay,
            ..ReserveResponse::default()
        }
    }

    fn answer(code: ReserveCode, id: &str, replay: bool) -> Answer {
        Answer::read(&response(code.into(), id, replay)).unwrap()
    }

    fn local(code: ReserveCode) -> Answer {
        let source = AnswerSource::Front.into();
        Answer::read(&ReserveResponse {
            source,
            ..response(code.into(), "", false)
        })
        .unwrap()
    }

    fn tally(answers: &[(Step, Answer)]) -> Tally {
        let plan = plan();
        let mut kept = Answers::new(&plan);
        for (step, answer) in answers {
            kept.record(*step, *answer);
        }
        let tally = kept.tally(&plan);
        let classes = [
            tally.accepted,
            tally.replayed,
            tally.user_already_reserved,
            tally.sold_out,
            tally.other,
            tally.invalid,
            tally.errors,
        ];
        assert_eq!(classes.iter().sum::<u64>(), tally.calls);
        assert_eq!(tally.by_code.values().sum::<u64>(), tally.calls);
        tally
    }

    #[test]
    fn an_accepted_request_counts_once_whichever_answer_was_the_fresh_one() {
        let fresh = answer(ReserveCode::Accepted, A, false);
        let replay = answer(ReserveCode::Accepted, A, true);
        for (first, repeat) in [(fresh, replay), (replay, fresh)] {
            let tally = tally(&[(Step::Repeat(0), repeat), (Step::First(0), first)]);
            assert_eq!(
                (tally.accepted, tally.replayed, tally.inconsistent),
                (1, 1, 0)
            );
            assert_eq!((tally.unclear_replays, tally.reservation_ids.len()), (0, 1));
        }
    }

    #[test]
    fn a_repeat_with_another_reservation_is_inconsistent() {
        let first = answer(ReserveCode::Accepted, A, false);
        let other = answer(ReserveCode::Accepted, B, true);
        let refused = answer(ReserveCode::SoldOut, "", false);
        assert_eq!(
            tally(&[(Step::First(0), first), (Step::Repeat(0), other)]).inconsistent,
            1
        );
        assert_eq!(
            tally(&[(Step::First(0), first), (Step::Repeat(0), refused)]).inconsistent,
            1
        );
    }

    #[test]
    fn two_fresh_acceptances_of_one_request_are_unclear() {
        let fresh = answer(ReserveCode::Accepted, A, false);
        let tally = tally(&[(Step::First(0), fresh), (Step::Repeat(0), fresh)]);
        assert_eq!(tally.unclear_replays, 1);
    }

    #[test]
    fn a_buyer_accepted_under_two_request_ids_is_found() {
        let plan = plan();
        let second = plan.requests() - 1;
        let buyer = plan.buyer(second);
        let tally = tally(&[
            (Step::First(buyer), answer(ReserveCode::Accepted, A, false)),
            (Step::First(second), answer(ReserveCode::Accepted, B, false)),
        ]);
        assert_eq!((tally.accepted, tally.accepted_twice), (2, 1));
    }

    #[test]
    fn refusals_and_malformed_calls_are_classed_apart() {
        let tally = tally(&[
            (Step::First(0), answer(ReserveCode::SoldOut, "", false)),
            (Step::Repeat(0), answer(ReserveCode::SoldOut, "", true)),
            (
                Step::First(1),
                answer(ReserveCode::UserAlreadyReserved, A, false),
            ),
            (
                Step::First(2),
                answer(ReserveCode::ActivityEnded, "", false),
            ),
            (Step::First(3), Answer::Error),
            (Step::Invalid(0), Answer::Invalid),
        ]);
        assert_eq!(
            (tally.sold_out, tally.replayed, tally.user_already_reserved),
            (1, 1, 1)
        );
        assert_eq!(
            (tally.other, tally.invalid, tally.errors, tally.calls),
            (1, 1, 1, 6)
        );
        assert_eq!(tally.by_code["SOLD_OUT"], 2);
    }

    #[test]
    fn an_accepted_malformed_call_is_an_error() {
        let accepted = answer(ReserveCode::Accepted, A, false);
        let tally = tally(&[
            (Step::Invalid(0), accepted),
            (Step::First(0), Answer::Invalid),
        ]);
        assert_eq!((tally.errors, tally.invalid, tally.accepted), (2, 0, 0));
    }

    #[test]
    fn only_a_local_refusal_may_change_its_reason() {
        let sold_out = answer(ReserveCode::SoldOut, "", false);
        let already = answer(ReserveCode::UserAlreadyReserved, A, false);
        let accepted = answer(ReserveCode::Accepted, A, false);
        let first_and_repeat = |first, repeat| {
            tally(&[(Step::First(0), first), (Step::Repeat(0), repeat)]).inconsistent
        };
        assert_eq!(first_and_repeat(local(ReserveCode::SoldOut), already), 0);
        assert_eq!(first_and_repeat(already, local(ReserveCode::SoldOut)), 0);
        assert_eq!(first_and_repeat(sold_out, already), 1);
        assert_eq!(first_and_repeat(local(ReserveCode::SoldOut), accepted), 1);
    }

    #[test]
    fn an_answer_without_a_meaning_is_none() {
        for (code, id) in [(0, ""), (9, ""), (1, "short")] {
            assert_eq!(
                Answer::read(&response(code, id, false)),
                None,
                "{code} {id}"
            );
        }
    }
}
