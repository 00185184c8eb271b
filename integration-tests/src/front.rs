//! Purchases over gRPC.

use std::net::SocketAddr;
use std::time::Duration;

use seckill_proto::v1::get_reservation_request::Key;
use seckill_proto::v1::reservation_service_client::ReservationServiceClient;
use seckill_proto::v1::{
    GetReservationRequest, GetReservationResponse, ReserveCode, ReserveRequest, ReserveResponse,
};
use seckill_test_support::OrFail;
use tonic::transport::{Channel, Endpoint};
use tonic::{Request, Status};

use crate::sale::Sale;

/// A connection to one front. Cloning shares it.
#[derive(Debug, Clone)]
pub struct FrontClient {
    inner: ReservationServiceClient<Channel>,
}

impl FrontClient {
    /// Connects when the first call is made.
    ///
    /// # Panics
    ///
    /// Never for a socket address.
    #[must_use]
    pub fn connect(address: SocketAddr) -> Self {
        let endpoint = Endpoint::from_shared(format!("http://{address}"))
            .or_fail("the address of a front")
            .tcp_nodelay(true);
        Self {
            inner: ReservationServiceClient::new(endpoint.connect_lazy()),
        }
    }

    /// The generated client, for requests that are not like the usual ones.
    #[must_use]
    pub fn raw(&self) -> ReservationServiceClient<Channel> {
        self.inner.clone()
    }

    /// Asks for one unit.
    ///
    /// # Errors
    ///
    /// The status of a technical answer.
    pub async fn reserve(
        &self,
        sale: &Sale,
        user_id: &str,
        request_id: &str,
    ) -> Result<ReserveResponse, Status> {
        self.send(sale.reserve(user_id, request_id)).await
    }

    /// Asks for one unit again, marked as a repeat.
    ///
    /// # Errors
    ///
    /// The status of a technical answer.
    pub async fn repeat(
        &self,
        sale: &Sale,
        user_id: &str,
        request_id: &str,
    ) -> Result<ReserveResponse, Status> {
        let mut request = sale.reserve(user_id, request_id);
        request.repeat = true;
        self.send(request).await
    }

    /// Asks for one unit with a deadline.
    ///
    /// # Errors
    ///
    /// The status of a technical answer.
    pub async fn reserve_within(
        &self,
        sale: &Sale,
        user_id: &str,
        request_id: &str,
        deadline: Duration,
    ) -> Result<ReserveResponse, Status> {
        let mut request = Request::new(sale.reserve(user_id, request_id));
        request.set_timeout(deadline);
        let response = self.inner.clone().reserve(request).await?;
        Ok(response.into_inner())
    }

    /// Sends any request.
    ///
    /// # Errors
    ///
    /// The status of a technical answer.
    pub async fn send(&self, request: ReserveRequest) -> Result<ReserveResponse, Status> {
        let response = self.inner.clone().reserve(request).await?;
        Ok(response.into_inner())
    }

    /// Asks for one unit and expects to get it; returns the reservation's id.
    ///
    /// # Panics
    ///
    /// When the answer is any other.
    pub async fn buy(&self, sale: &Sale, user_id: &str, request_id: &str) -> String {
        match self.reserve(sale, user_id, request_id).await {
            Ok(answer) if answer.code == i32::from(ReserveCode::Accepted) => answer.reservation_id,
            other => panic!("{user_id}/{request_id} was not accepted: {other:?}"),
        }
    }

    /// Asks for a reservation by its id.
    ///
    /// # Errors
    ///
    /// The status of a technical answer, or that there is none.
    pub async fn by_reservation(
        &self,
        sale: &Sale,
        user_id: &str,
        reservation_id: &str,
    ) -> Result<GetReservationResponse, Status> {
        let key = Key::ReservationId(reservation_id.to_owned());
        self.get(sale, user_id, key).await
    }

    /// Asks for a reservation by its request.
    ///
    /// # Errors
    ///
    /// The status of a technical answer, or that there is none.
    pub async fn by_request(
        &self,
        sale: &Sale,
        user_id: &str,
        request_id: &str,
    ) -> Result<GetReservationResponse, Status> {
        let key = Key::RequestId(request_id.to_owned());
        self.get(sale, user_id, key).await
    }

    async fn get(
        &self,
        sale: &Sale,
        user_id: &str,
        key: Key,
    ) -> Result<GetReservationResponse, Status> {
        let request = GetReservationRequest {
            activity_id: sale.activity_id.clone(),
            sku_id: sale.sku_id.clone(),
            user_id: user_id.to_owned(),
            activity_version: sale.version,
            key: Some(key),
        };
        let response = self.inner.clone().get_reservation(request).await?;
        Ok(response.into_inner())
    }
}
