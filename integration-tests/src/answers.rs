//! What callers were told, to hold later answers against.

use std::collections::BTreeMap;
use std::sync::{Mutex, PoisonError};

use seckill_proto::v1::{ReserveCode, ReserveResponse};

/// Remembers each accepted request and fails when a later answer to it names another reservation.
#[derive(Debug, Default)]
pub struct AnswerBook {
    accepted: Mutex<BTreeMap<(String, String), String>>,
}

impl AnswerBook {
    /// An empty book.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Notes an answer.
    ///
    /// # Panics
    ///
    /// When the same request was accepted before under another reservation.
    pub fn note(&self, user_id: &str, request_id: &str, answer: &ReserveResponse) {
        if answer.code != i32::from(ReserveCode::Accepted) {
            return;
        }
        let key = (user_id.to_owned(), request_id.to_owned());
        let mut accepted = self.accepted.lock().unwrap_or_else(PoisonError::into_inner);
        let first = accepted
            .entry(key)
            .or_insert_with(|| answer.reservation_id.clone());
        assert_eq!(
            *first, answer.reservation_id,
            "{user_id}/{request_id} got two reservations"
        );
    }

    /// The reservations of all accepted requests, by user and request.
    #[must_use]
    pub fn accepted(&self) -> BTreeMap<(String, String), String> {
        self.accepted
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .clone()
    }
}
