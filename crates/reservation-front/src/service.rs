//! The gRPC service: from the wire to the domain and back.

use std::sync::Arc;

use seckill_proto::v1::reservation_service_server::ReservationService;
use seckill_proto::{ReservationQuery, ReserveCall, v1};
use tonic::metadata::MetadataMap;
use tonic::{Request, Response, Status};

use crate::deadline::CallDeadline;
use crate::faults::invalid;
use crate::query::Querying;
use crate::reserve::Reserving;
use crate::trace::traceparent;

/// Set by gRPC clients that repeat a call by themselves.
const PREVIOUS_ATTEMPTS: &str = "grpc-previous-rpc-attempts";

/// The service.
pub(crate) struct Front {
    reserving: Arc<Reserving>,
    querying: Querying,
    own_budget: std::time::Duration,
}

impl Front {
    pub(crate) const fn new(
        reserving: Arc<Reserving>,
        querying: Querying,
        own_budget: std::time::Duration,
    ) -> Self {
        Self {
            reserving,
            querying,
            own_budget,
        }
    }

    fn deadline<T>(&self, request: &Request<T>) -> CallDeadline {
        let noted = request.extensions().get::<CallDeadline>().copied();
        noted.unwrap_or_else(|| CallDeadline::of(None, self.own_budget))
    }
}

fn is_repeat(metadata: &MetadataMap) -> bool {
    metadata
        .get(PREVIOUS_ATTEMPTS)
        .and_then(|value| value.to_str().ok())
        .and_then(|text| text.parse::<u32>().ok())
        .is_some_and(|attempts| attempts > 0)
}

#[tonic::async_trait]
impl ReservationService for Front {
    async fn reserve(
        &self,
        request: Request<v1::ReserveRequest>,
    ) -> Result<Response<v1::ReserveResponse>, Status> {
        let deadline = self.deadline(&request);
        let traceparent = traceparent(request.metadata());
        let repeated = is_repeat(request.metadata());
        let mut call = ReserveCall::try_from(request.into_inner()).map_err(invalid)?;
        call.repeat |= repeated;
        let response = self.reserving.reserve(call, traceparent, deadline).await?;
        Ok(Response::new(response))
    }

    async fn get_reservation(
        &self,
        request: Request<v1::GetReservationRequest>,
    ) -> Result<Response<v1::GetReservationResponse>, Status> {
        let deadline = self.deadline(&request);
        let query = ReservationQuery::try_from(request.into_inner()).map_err(invalid)?;
        let response = self.querying.find(&query, deadline).await?;
        Ok(Response::new(response))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_positive_number_of_attempts_marks_a_repeat() {
        let given = |value: &str| {
            let mut metadata = MetadataMap::new();
            metadata.insert(PREVIOUS_ATTEMPTS, value.parse().unwrap());
            is_repeat(&metadata)
        };
        assert!(given("1"));
        assert!(given("3"));
        assert!(!given("0"));
        assert!(!given("x"));
        assert!(!is_repeat(&MetadataMap::new()));
    }
}
