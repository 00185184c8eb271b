//! One call to one front, and its line in the ledger.

use std::time::Duration;

use seckill_integration_tests::FrontClient;
use seckill_proto::v1::get_reservation_request::Key;
use seckill_proto::v1::{
    AnswerSource, GetReservationRequest, GetReservationResponse, ReservationStatus, ReserveResponse,
};
use tokio::time::{sleep, timeout};
use tonic::{Request, Status};

use super::{Answer, Load, Purchase, PurchaseId, Said, lock};
use crate::plan::Again;

/// What a buyer waits for an answer. The front itself gives up after a second and a half.
const PATIENCE: Duration = Duration::from_millis(2_500);

/// How often something is tried that a fault may be in the way of.
const TRIES: usize = 10;

/// Between two tries.
const PAUSE: Duration = Duration::from_millis(500);

impl Load {
    /// Asks any front and notes what it says.
    pub(crate) async fn call(&self, id: PurchaseId, repeat: bool) -> Said {
        let Some(purchase) = self.shared.ledger.get(id) else {
            return Said::Unknown("no such purchase".to_owned());
        };
        let asked = self.shared.installation.clock.now();
        let said = match self.front() {
            Some(client) => Said::of(reserve(&client, &purchase, repeat).await),
            None => Said::Unknown("no front".to_owned()),
        };
        let answer = Answer {
            asked,
            answered: self.shared.installation.clock.now(),
            said: said.clone(),
        };
        self.shared.ledger.note(id, answer);
        said
    }

    /// Uses the request id of a purchase for something else, as a purchase of its own.
    pub(crate) async fn call_as_impostor(&self, id: PurchaseId, again: Again) -> Said {
        let Some(mut purchase) = self.shared.ledger.get(id) else {
            return Said::Unknown("no such purchase".to_owned());
        };
        if again == Again::Quantity {
            purchase.quantity = 3 - purchase.quantity.min(2);
        } else {
            purchase.user.push('x');
        }
        purchase.answers.clear();
        let impostor = self.shared.ledger.open(purchase);
        // As a repeat, so that it is asked about in its own version, whether or not that is on sale.
        let mut said = self.call(impostor, true).await;
        for _ in 0..TRIES {
            if said.is_final() {
                break;
            }
            sleep(PAUSE).await;
            said = self.call(impostor, true).await;
        }
        said
    }

    /// A purchase of which Redis itself says that it is an order.
    pub(crate) async fn ordered_purchase(&self) -> Option<PurchaseId> {
        for _ in 0..TRIES {
            let found = self.accepted_purchase();
            let answer = self.look_up(found?).await;
            if answer.is_some_and(|answer| is_ordered_in_redis(&answer)) {
                return found;
            }
            sleep(PAUSE).await;
        }
        None
    }

    /// What a front says about a purchase, by its request.
    pub(super) async fn look_up(&self, id: PurchaseId) -> Option<GetReservationResponse> {
        let purchase = self.shared.ledger.get(id)?;
        let request = GetReservationRequest {
            activity_id: purchase.sale.activity_id,
            sku_id: purchase.sale.sku_id,
            user_id: purchase.user,
            activity_version: purchase.sale.version,
            key: Some(Key::RequestId(purchase.request)),
        };
        let mut client = self.front()?.raw();
        let answer = timeout(PATIENCE, client.get_reservation(request)).await;
        Some(answer.ok()?.ok()?.into_inner())
    }

    /// A client of any front that can be called now.
    fn front(&self) -> Option<FrontClient> {
        let fronts = self.shared.replicas.fronts();
        let address = self.draw(|random| random.pick(&fronts).copied())?;
        let mut clients = lock(&self.shared.clients);
        // A front that was killed never comes back at the same address.
        clients.retain(|known, _| fronts.contains(known));
        let client = clients
            .entry(address)
            .or_insert_with(|| FrontClient::connect(address));
        Some(client.clone())
    }
}

fn is_ordered_in_redis(answer: &GetReservationResponse) -> bool {
    answer.status() == ReservationStatus::OrderCreated && answer.source() == AnswerSource::Redis
}

async fn reserve(
    client: &FrontClient,
    purchase: &Purchase,
    repeat: bool,
) -> Result<ReserveResponse, Status> {
    let mut message = purchase.sale.reserve(&purchase.user, &purchase.request);
    message.quantity = purchase.quantity;
    message.repeat = repeat;
    let mut request = Request::new(message);
    request.set_timeout(PATIENCE);
    if let Ok(traceparent) = purchase.traceparent.parse() {
        request.metadata_mut().insert("traceparent", traceparent);
    }
    let mut client = client.raw();
    match timeout(PATIENCE, client.reserve(request)).await {
        Ok(answer) => answer.map(tonic::Response::into_inner),
        Err(_) => Err(Status::deadline_exceeded("no answer")),
    }
}
