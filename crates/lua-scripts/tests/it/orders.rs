//! Reservations as PostgreSQL knows them, and a server that forgets.

use seckill_lua_scripts::{
    Cancel, CancelReply, Compensate, CompensateReply, Error, OrderedReservation, RebuildReply,
    RebuildReservation, RepairMarker, RepairMarkerReply, TombstoneEnd, TombstoneReply,
    WriteTombstone,
};
use seckill_state_machine::{
    OrderId, Quantity, RequestId, ReservationId, ReservationStatus as S, TimestampMs, Traceparent,
    UserId,
};
use seckill_test_support::{Content, Dump};

use crate::world::{World, derived, request, user};

/// A buyer's order, with what a call borrows from it.
#[derive(Debug, Clone)]
pub struct Order {
    pub reservation_id: ReservationId,
    pub request_id: RequestId,
    pub user_id: UserId,
    pub quantity: Quantity,
    pub order_id: OrderId,
    pub reserved_at_ms: TimestampMs,
    pub traceparent: Traceparent,
}

impl Order {
    pub fn of(buyer: &str, request_id: &str) -> Self {
        Self {
            reservation_id: derived(buyer, request_id),
            request_id: request(request_id),
            user_id: user(buyer),
            quantity: Quantity::ONE,
            order_id: OrderId::parse(format!("order-{buyer}")).unwrap(),
            reserved_at_ms: TimestampMs::new(1_000),
            traceparent: Traceparent::from_ids(5, 6).unwrap(),
        }
    }

    pub fn units(mut self, units: u32) -> Self {
        self.quantity = Quantity::new(units).unwrap();
        self
    }

    pub const fn ordered(&self) -> OrderedReservation<'_> {
        OrderedReservation {
            reservation_id: &self.reservation_id,
            request_id: &self.request_id,
            user_id: &self.user_id,
            quantity: self.quantity,
            order_id: &self.order_id,
            reserved_at_ms: self.reserved_at_ms,
            traceparent: Some(&self.traceparent),
        }
    }

    pub const fn released(&self) -> TombstoneEnd<'_> {
        TombstoneEnd::Released { reason: "NO_STOCK" }
    }

    pub const fn cancelled(&self) -> TombstoneEnd<'_> {
        TombstoneEnd::OrderCancelled {
            order_id: &self.order_id,
        }
    }
}

impl World {
    pub async fn rebuild_at(&self, order: &Order, now: Option<i64>) -> Result<RebuildReply, Error> {
        let call = RebuildReservation {
            keys: &self.keys,
            order: order.ordered(),
            now_override: now.map(TimestampMs::new),
        };
        self.redis.rebuild_reservation(&call).await
    }

    pub async fn rebuild(&self, order: &Order) -> RebuildReply {
        self.rebuild_at(order, None).await.unwrap()
    }

    pub async fn tombstone_at(
        &self,
        order: &Order,
        end: TombstoneEnd<'_>,
        now: Option<i64>,
    ) -> Result<TombstoneReply, Error> {
        let call = WriteTombstone {
            keys: &self.keys,
            reservation_id: &order.reservation_id,
            request_id: &order.request_id,
            user_id: &order.user_id,
            quantity: order.quantity,
            reserved_at_ms: order.reserved_at_ms,
            traceparent: Some(&order.traceparent),
            end,
            now_override: now.map(TimestampMs::new),
        };
        self.redis.write_tombstone(&call).await
    }

    pub async fn tombstone(&self, order: &Order, end: TombstoneEnd<'_>) -> TombstoneReply {
        self.tombstone_at(order, end, None).await.unwrap()
    }

    pub async fn try_repair(
        &self,
        order: &Order,
        marker: Option<&ReservationId>,
    ) -> Result<RepairMarkerReply, Error> {
        let call = RepairMarker {
            keys: &self.keys,
            reservation_id: &order.reservation_id,
            user_id: &order.user_id,
            marker,
            now_override: None,
        };
        self.redis.repair_marker(&call).await
    }

    pub async fn try_cancel(
        &self,
        order: &Order,
        waiting: Option<&Order>,
    ) -> Result<CancelReply, Error> {
        let call = Cancel {
            keys: &self.keys,
            reservation_id: &order.reservation_id,
            user_id: &order.user_id,
            order_id: &order.order_id,
            waiting: waiting.map(Order::ordered),
            now_override: None,
        };
        self.redis.cancel(&call).await
    }

    pub async fn cancel(&self, order: &Order, waiting: Option<&Order>) -> CancelReply {
        self.try_cancel(order, waiting).await.unwrap()
    }

    pub async fn try_release(
        &self,
        order: &Order,
        waiting: Option<&Order>,
    ) -> Result<CompensateReply, Error> {
        let call = Compensate {
            keys: &self.keys,
            reservation_id: &order.reservation_id,
            user_id: &order.user_id,
            release_reason: "TEST",
            waiting: waiting.map(Order::ordered),
            now_override: None,
        };
        self.redis.compensate(&call).await
    }

    pub async fn release(&self, order: &Order, waiting: Option<&Order>) -> CompensateReply {
        self.try_release(order, waiting).await.unwrap()
    }

    /// Reserves for the order's buyer and takes the reservation to `ORDER_CREATED`.
    pub async fn order(&self, buyer: &str, request_id: &str) -> Order {
        let order = Order::of(buyer, request_id);
        assert_eq!(
            self.reserve(buyer, request_id)
                .await
                .reservation_id
                .as_ref(),
            Some(&order.reservation_id)
        );
        self.step(&order.reservation_id, S::Enqueued).await;
        let order_id = order.order_id.clone();
        self.step_with(&order.reservation_id, S::OrderCreated, |call| {
            call.order_id = Some(&order_id);
        })
        .await;
        order
    }

    /// Where a reservation stands; `None` when it is not there.
    pub async fn status(&self, order: &Order) -> Option<S> {
        let found = self.redis.reservation(&self.keys, &order.reservation_id);
        found.await.unwrap().map(|record| record.status)
    }

    /// The whole state, with I3 and every expiry checked.
    pub async fn sound_dump(&self) -> Dump {
        let dump = self.dump().await;
        assert!(crate::model::holders_match(&dump, &self.keys), "{dump:?}");
        for (key, entry) in &dump.0 {
            assert_eq!(entry.expires_at_ms, Some(self.times.retention), "{key}");
        }
        dump
    }

    /// What a failover does: the server is at an earlier state again.
    pub async fn fail_over_to(&self, earlier: &Dump) {
        self.cli(&["FLUSHALL"]).await;
        for (key, entry) in &earlier.0 {
            let mut command = vec![String::new(), key.clone()];
            match &entry.content {
                Content::Text(text) => {
                    "SET".clone_into(&mut command[0]);
                    command.push(text.clone());
                }
                Content::Hash(fields) => {
                    "HSET".clone_into(&mut command[0]);
                    for (field, value) in fields {
                        command.extend([field.clone(), value.clone()]);
                    }
                }
                Content::SortedSet(members) => {
                    "ZADD".clone_into(&mut command[0]);
                    for (member, score) in members {
                        command.extend([score.clone(), member.clone()]);
                    }
                }
                other => panic!("no bucket holds {other:?}"),
            }
            let command: Vec<&str> = command.iter().map(String::as_str).collect();
            self.cli(&command).await;
            let expiry = entry.expires_at_ms.unwrap().to_string();
            self.cli(&["PEXPIREAT", key, &expiry]).await;
        }
        assert_eq!(self.dump().await, *earlier);
    }
}
