//! The calls that release units, bring lost reservations back, and control a bucket's recovery.

use seckill_lua_scripts::{
    Cancel, Compensate, ExtendRetention, InitialiseBucket, OrderedReservation, RebuildReservation,
    Recovery, RepairMarker, SetRecovery, TombstoneEnd, WriteTombstone,
};
use seckill_state_machine::{
    OrderId, Quantity, RequestId, ReservationId, TimestampMs, Traceparent, UserId,
};
use seckill_test_support::Dump;

use super::Run;
use super::damage::Place;
use super::plan::{Known, Op, Target, buyer, request_name};
use crate::model;
use crate::world::{derived, quantity, request, user};

/// A reservation as PostgreSQL knows it, with what its fields borrow.
struct Row {
    reservation_id: ReservationId,
    request_id: RequestId,
    user_id: UserId,
    quantity: Quantity,
    order_id: OrderId,
    reserved_at_ms: TimestampMs,
    traceparent: Option<Traceparent>,
}

impl Row {
    fn ordered(&self) -> OrderedReservation<'_> {
        OrderedReservation {
            reservation_id: &self.reservation_id,
            request_id: &self.request_id,
            user_id: &self.user_id,
            quantity: self.quantity,
            order_id: &self.order_id,
            reserved_at_ms: self.reserved_at_ms,
            traceparent: self.traceparent.as_ref(),
        }
    }
}

fn order(number: u8) -> OrderId {
    OrderId::parse(format!("order-{number}")).unwrap()
}

impl Run<'_> {
    fn row(&self, before: &Dump, known: &Known) -> Row {
        let (name, request_name) = (buyer(known.user), request_name(known.request));
        Row {
            reservation_id: known.id.map_or_else(
                || derived(name, request_name),
                |target| self.pick(before, target),
            ),
            request_id: request(request_name),
            user_id: user(name),
            quantity: quantity(known.units),
            order_id: order(known.order),
            // The lowest offset stands for a time that no record may hold.
            reserved_at_ms: TimestampMs::new(
                (self.times.starts.saturating_add(known.reserved_at)).max(-1),
            ),
            traceparent: known.traced.then(|| Traceparent::from_ids(3, 4).unwrap()),
        }
    }

    /// A reservation, and its owner or somebody else.
    fn held(
        &self,
        before: &Dump,
        target: Target,
        owner: bool,
        user_index: usize,
    ) -> (ReservationId, UserId) {
        let id = self.pick(before, target);
        let owned = before
            .hash(&self.world.keys.reservation(&id))
            .remove("user_id");
        let name = match owned {
            Some(name) if owner && !name.is_empty() => name,
            _ => buyer(user_index).to_owned(),
        };
        (id, user(&name))
    }

    pub(super) async fn compensate(&mut self, before: Dump, op: &Op) -> Result<(), String> {
        let Op::Compensate {
            target,
            owner,
            user,
            waiting,
            at,
        } = op
        else {
            return Ok(());
        };
        let (id, user_id) = self.held(&before, *target, *owner, *user);
        let waiting = waiting.as_ref().map(|known| self.row(&before, known));
        let now = self.times.starts + at;
        let call = Compensate {
            keys: &self.world.keys,
            reservation_id: &id,
            user_id: &user_id,
            release_reason: "PAYMENT_REFUSED",
            waiting: waiting.as_ref().map(Row::ordered),
            now_override: Some(TimestampMs::new(now)),
        };
        let mut expected = before.clone();
        let answer = model::compensate(&mut expected, &call, now);
        let reply = self.world.redis.compensate(&call).await;
        self.compare(&before, &expected, answer, reply, PartialEq::eq)
            .await
    }

    pub(super) async fn cancel(&mut self, before: Dump, op: &Op) -> Result<(), String> {
        let Op::Cancel {
            target,
            owner,
            user,
            order: number,
            waiting,
            at,
        } = op
        else {
            return Ok(());
        };
        let (id, user_id) = self.held(&before, *target, *owner, *user);
        let waiting = waiting.as_ref().map(|known| self.row(&before, known));
        let now = self.times.starts + at;
        let call = Cancel {
            keys: &self.world.keys,
            reservation_id: &id,
            user_id: &user_id,
            order_id: &order(*number),
            waiting: waiting.as_ref().map(Row::ordered),
            now_override: Some(TimestampMs::new(now)),
        };
        let mut expected = before.clone();
        let answer = model::cancel(&mut expected, &call, now);
        let reply = self.world.redis.cancel(&call).await;
        self.compare(&before, &expected, answer, reply, PartialEq::eq)
            .await
    }

    pub(super) async fn rebuild(
        &mut self,
        before: Dump,
        known: &Known,
        at: i64,
    ) -> Result<(), String> {
        let row = self.row(&before, known);
        let now = self.times.starts + at;
        let call = RebuildReservation {
            keys: &self.world.keys,
            order: row.ordered(),
            now_override: Some(TimestampMs::new(now)),
        };
        let mut expected = before.clone();
        let answer = model::rebuild(&mut expected, &call, now);
        let reply = self.world.redis.rebuild_reservation(&call).await;
        self.compare(&before, &expected, answer, reply, PartialEq::eq)
            .await
    }

    pub(super) async fn tombstone(
        &mut self,
        before: Dump,
        known: &Known,
        cancelled: bool,
        at: i64,
    ) -> Result<(), String> {
        let row = self.row(&before, known);
        let now = self.times.starts + at;
        let call = WriteTombstone {
            keys: &self.world.keys,
            reservation_id: &row.reservation_id,
            request_id: &row.request_id,
            user_id: &row.user_id,
            quantity: row.quantity,
            reserved_at_ms: row.reserved_at_ms,
            traceparent: row.traceparent.as_ref(),
            end: if cancelled {
                TombstoneEnd::OrderCancelled {
                    order_id: &row.order_id,
                }
            } else {
                TombstoneEnd::Released { reason: "NO_STOCK" }
            },
            now_override: Some(TimestampMs::new(now)),
        };
        let mut expected = before.clone();
        let answer = model::tombstone(&mut expected, &call, now);
        let reply = self.world.redis.write_tombstone(&call).await;
        self.compare(&before, &expected, answer, reply, PartialEq::eq)
            .await
    }

    pub(super) async fn repair_marker(&mut self, before: Dump, op: &Op) -> Result<(), String> {
        let Op::RepairMarker {
            target,
            owner,
            user,
            read,
            at,
        } = op
        else {
            return Ok(());
        };
        let (id, user_id) = self.held(&before, *target, *owner, *user);
        let found = match before.get(&self.world.keys.user(&user_id)) {
            Some(seckill_test_support::Content::Text(text)) => {
                ReservationId::parse(text.clone()).ok()
            }
            _ => None,
        };
        let marker = match read {
            0 => found,
            1 => None,
            _ => Some(self.pick(&before, Target::Pool(*user))),
        };
        let now = self.times.starts + at;
        let call = RepairMarker {
            keys: &self.world.keys,
            reservation_id: &id,
            user_id: &user_id,
            marker: marker.as_ref(),
            now_override: Some(TimestampMs::new(now)),
        };
        let mut expected = before.clone();
        let answer = model::repair_marker(&mut expected, &call, now);
        let reply = self.world.redis.repair_marker(&call).await;
        self.compare(&before, &expected, answer, reply, PartialEq::eq)
            .await
    }

    pub(super) async fn initialise(
        &mut self,
        before: Dump,
        stock: u64,
        held: Option<u64>,
        at: i64,
    ) -> Result<(), String> {
        let settings = self.settings(stock);
        let now = self.times.starts + at;
        let call = InitialiseBucket {
            keys: &self.world.keys,
            settings: &settings,
            held,
            now_override: Some(TimestampMs::new(now)),
        };
        let mut expected = before.clone();
        let answer = model::initialise(&mut expected, &call, now);
        let reply = self.world.redis.initialise_bucket(&call).await;
        self.compare(&before, &expected, answer, reply, PartialEq::eq)
            .await
    }

    pub(super) async fn set_recovery(
        &mut self,
        before: Dump,
        recovery: Recovery,
        expected: Option<Recovery>,
    ) -> Result<(), String> {
        let call = SetRecovery {
            keys: &self.world.keys,
            recovery,
            expected,
        };
        let mut expected = before.clone();
        let answer = model::set_recovery(&mut expected, &call);
        let reply = self.world.redis.set_recovery(&call).await;
        self.compare(&before, &expected, answer, reply, PartialEq::eq)
            .await
    }

    pub(super) async fn extend(
        &mut self,
        before: Dump,
        places: &[Place],
        until: i64,
        at: i64,
    ) -> Result<(), String> {
        let names: Vec<String> = places
            .iter()
            .map(|place| self.key_of(&before, place))
            .collect();
        let now = self.times.starts + at;
        let call = ExtendRetention {
            keys: &self.world.keys,
            names: &names,
            until: TimestampMs::new(self.times.starts + until),
            now_override: Some(TimestampMs::new(now)),
        };
        let mut expected = before.clone();
        let answer = model::extend(&mut expected, &call, now);
        let reply = self.world.redis.extend_retention(&call).await;
        self.compare(&before, &expected, answer, reply, PartialEq::eq)
            .await
    }
}
