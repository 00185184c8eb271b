//! One look, and the one step that follows from it.

use seckill_key_layout::BucketKeys;
use seckill_lua_scripts::{
    Cancel, RebuildReservation, RepairMarker, ReservationRecord, TombstoneEnd, WriteTombstone,
};
use seckill_state_machine::{
    CancelCode, OrderId, RebuildCode, RepairMarkerCode, Replay, ReservationId, ReservationStatus,
    TombstoneCode, TransitionCode,
};

use super::{Replayed, Replayer};
use crate::facts::ordered;
use crate::waiting::WaitingOrder;
use crate::{Error, Facts, Settled, settle_ordered, settle_rejected};

/// What Redis has for a reservation.
pub(super) struct Seen {
    record: Option<ReservationRecord>,
    /// The reservation that the user's marker names, for an active order's user alone.
    marker: Option<ReservationId>,
}

impl Seen {
    fn status(&self) -> Option<ReservationStatus> {
        self.record.as_ref().map(|record| record.status)
    }
}

/// How a marker stands after it was looked at.
enum Marker {
    Right,
    Repaired,
    /// It names another reservation of the user, which holds units and which PostgreSQL refuses or will
    /// refuse. That one's release deletes the marker and writes no other, so the order must be looked at
    /// again.
    Elsewhere,
    Moved,
}

impl Marker {
    /// The ending, when all else is as in `done`.
    fn ends(self, done: Replayed) -> Option<Replayed> {
        match self {
            Self::Right => Some(done),
            Self::Repaired if done == Replayed::Agreed => Some(Replayed::MarkerRepaired),
            Self::Repaired => Some(done),
            Self::Elsewhere => Some(Replayed::Moving),
            Self::Moved => None,
        }
    }
}

/// What `rebuild_reservation` says where the bucket has settings and no counters.
const STOCK_MISSING: &str = "STOCK_MISSING";

impl Replayer {
    pub(super) async fn look(&self, keys: &BucketKeys, facts: &Facts) -> Result<Seen, Error> {
        let request = &facts.request;
        let marker = async {
            match facts.active_order() {
                Some(_) => self.redis.marker(keys, &request.user_id).await,
                None => Ok(None),
            }
        };
        let record = self.redis.reservation(keys, &request.reservation_id);
        let (record, marker) = futures::join!(record, marker);
        Ok(Seen {
            record: record?,
            marker: marker?,
        })
    }

    /// Takes the step that follows. `None`: something moved, look again.
    pub(super) async fn take(
        &self,
        keys: &BucketKeys,
        facts: &Facts,
        seen: &Seen,
    ) -> Result<Option<Replayed>, Error> {
        let status = seen.status();
        let foreign = seen
            .record
            .as_ref()
            .and_then(|record| facts.foreign(record));
        if let Some(foreign) = foreign {
            let detail = format!("{}, {foreign}", facts.words(status));
            return Ok(Some(Replayed::Contradiction { detail }));
        }
        match (facts.step(status), facts.order_id()) {
            (Replay::Agreed, _) => self.check_marker(keys, facts, seen).await,
            (Replay::MarkOrdered, Some(order_id)) => {
                self.mark_ordered(keys, facts, order_id, seen).await
            }
            (Replay::Cancel, Some(order_id)) => self.cancel(keys, facts, order_id, seen).await,
            (Replay::Rebuild, Some(order_id)) => self.rebuild(keys, facts, order_id).await,
            (Replay::TombstoneCancelled, Some(order_id)) => {
                let end = TombstoneEnd::OrderCancelled { order_id };
                self.tombstone(keys, facts, end).await
            }
            (Replay::TombstoneReleased, _) => {
                let reason = facts.reason.as_deref().unwrap_or_default();
                self.tombstone(keys, facts, TombstoneEnd::Released { reason })
                    .await
            }
            (Replay::MarkRejected, _) => self.mark_rejected(keys, facts).await,
            (Replay::Release, _) => self.hand_over(facts).await,
            (
                Replay::Contradiction
                | Replay::MarkOrdered
                | Replay::Cancel
                | Replay::Rebuild
                | Replay::TombstoneCancelled,
                _,
            ) => Ok(Some(Replayed::Contradiction {
                detail: facts.words(status),
            })),
        }
    }

    async fn check_marker(
        &self,
        keys: &BucketKeys,
        facts: &Facts,
        seen: &Seen,
    ) -> Result<Option<Replayed>, Error> {
        if facts.active_order().is_none() {
            return Ok(Some(Replayed::Agreed));
        }
        let marker = self.right_marker(keys, facts, seen.marker.as_ref()).await?;
        Ok(marker.ends(Replayed::Agreed))
    }

    /// An ordered user without a marker, or with one that names nothing held, could reserve again:
    /// PostgreSQL would refuse the order, but a unit would be held meanwhile.
    async fn right_marker(
        &self,
        keys: &BucketKeys,
        facts: &Facts,
        marker: Option<&ReservationId>,
    ) -> Result<Marker, Error> {
        let request = &facts.request;
        if marker == Some(&request.reservation_id) {
            return Ok(Marker::Right);
        }
        let reply = self
            .redis
            .repair_marker(&RepairMarker {
                keys,
                reservation_id: &request.reservation_id,
                user_id: &request.user_id,
                marker,
                now_override: None,
            })
            .await?;
        Ok(match reply.code {
            RepairMarkerCode::Repaired => Marker::Repaired,
            RepairMarkerCode::AlreadyRight => Marker::Right,
            RepairMarkerCode::HeldByAnother => Marker::Elsewhere,
            RepairMarkerCode::NotOrdered | RepairMarkerCode::Retry => Marker::Moved,
        })
    }

    async fn mark_ordered(
        &self,
        keys: &BucketKeys,
        facts: &Facts,
        order_id: &OrderId,
        seen: &Seen,
    ) -> Result<Option<Replayed>, Error> {
        let id = &facts.request.reservation_id;
        let settled = settle_ordered(&self.redis, keys, id, order_id).await?;
        if let Some(ended) = ended(facts, &settled) {
            return Ok(Some(ended));
        }
        if !stands_at(&settled, ReservationStatus::OrderCreated) {
            return Ok(None);
        }
        let marker = self.right_marker(keys, facts, seen.marker.as_ref()).await?;
        Ok(marker.ends(Replayed::Settled))
    }

    async fn mark_rejected(
        &self,
        keys: &BucketKeys,
        facts: &Facts,
    ) -> Result<Option<Replayed>, Error> {
        let id = &facts.request.reservation_id;
        if let Some(reason) = facts.reject_reason() {
            let settled = settle_rejected(&self.redis, keys, id, reason).await?;
            if let Some(ended) = ended(facts, &settled) {
                return Ok(Some(ended));
            }
            if !stands_at(&settled, ReservationStatus::Rejected) {
                return Ok(None);
            }
        }
        self.hand_over(facts).await
    }

    /// Every time it is seen: the task may have been closed by a release that a failover then undid. A
    /// task that is open keeps its claim and its backoff; the claim of another worker counts for nothing
    /// any more.
    async fn hand_over(&self, facts: &Facts) -> Result<Option<Replayed>, Error> {
        self.store.hand_over(&facts.request, self.own).await?;
        Ok(Some(Replayed::HandedOver))
    }

    async fn cancel(
        &self,
        keys: &BucketKeys,
        facts: &Facts,
        order_id: &OrderId,
        seen: &Seen,
    ) -> Result<Option<Replayed>, Error> {
        let request = &facts.request;
        if seen.status() != Some(ReservationStatus::OrderCreated) {
            let id = &request.reservation_id;
            let settled = settle_ordered(&self.redis, keys, id, order_id).await?;
            if let Some(ended) = ended(facts, &settled) {
                return Ok(Some(ended));
            }
            if !stands_at(&settled, ReservationStatus::OrderCreated) {
                return Ok(None);
            }
        }
        let waiting = self.waiting.next(&request.bucket);
        let reply = self
            .redis
            .cancel(&Cancel {
                keys,
                reservation_id: &request.reservation_id,
                user_id: &request.user_id,
                order_id,
                waiting: waiting.as_ref().map(WaitingOrder::reservation),
                now_override: None,
            })
            .await?;
        match waiting {
            Some(order) if reply.rebuilt => self.waiting.rebuilt(&order),
            Some(order) if reply.code == CancelCode::Cancelled => {
                self.waiting.declined(&order, request.quantity);
            }
            Some(_) | None => {}
        }
        Ok(match reply.code {
            CancelCode::Cancelled => Some(Replayed::Cancelled),
            CancelCode::AlreadyCancelled => Some(Replayed::Agreed),
            CancelCode::ReservationNotFound | CancelCode::NotCancellable => None,
            CancelCode::InvariantViolation | CancelCode::ReservationIdConflict => {
                Some(refused("cancel", reply.code.as_str()))
            }
        })
    }

    async fn rebuild(
        &self,
        keys: &BucketKeys,
        facts: &Facts,
        order_id: &OrderId,
    ) -> Result<Option<Replayed>, Error> {
        let request = &facts.request;
        let reply = self
            .redis
            .rebuild_reservation(&RebuildReservation {
                keys,
                order: ordered(request, order_id),
                now_override: None,
            })
            .await?;
        Ok(match reply.code {
            RebuildCode::Rebuilt if reply.marker_kept => {
                self.marker_of_rebuilt(keys, facts).await?
            }
            RebuildCode::Rebuilt => Some(Replayed::Rebuilt),
            RebuildCode::AlreadyThere => None,
            RebuildCode::Waits => {
                self.waiting.note(WaitingOrder {
                    request: request.clone(),
                    order_id: order_id.clone(),
                });
                // Its task is what outlives this process, and what tells the other replicas.
                self.store.hand_over(request, self.own).await?;
                Some(Replayed::Waits)
            }
            RebuildCode::ConfigMissing if reply.detail == STOCK_MISSING => {
                Some(Replayed::NoCounters)
            }
            RebuildCode::ConfigMissing => Some(Replayed::BucketGone),
            RebuildCode::InvariantViolation | RebuildCode::ReservationIdConflict => {
                Some(refused("rebuild", reply.code.as_str()))
            }
        })
    }

    /// The script left a marker that names another reservation. Whoever hears "rebuilt" looks no more, so
    /// the marker's turn is now.
    async fn marker_of_rebuilt(
        &self,
        keys: &BucketKeys,
        facts: &Facts,
    ) -> Result<Option<Replayed>, Error> {
        let found = self.redis.marker(keys, &facts.request.user_id).await?;
        let marker = self.right_marker(keys, facts, found.as_ref()).await?;
        Ok(marker.ends(Replayed::Rebuilt))
    }

    async fn tombstone(
        &self,
        keys: &BucketKeys,
        facts: &Facts,
        end: TombstoneEnd<'_>,
    ) -> Result<Option<Replayed>, Error> {
        let request = &facts.request;
        let reply = self
            .redis
            .write_tombstone(&WriteTombstone {
                keys,
                reservation_id: &request.reservation_id,
                request_id: &request.request_id,
                user_id: &request.user_id,
                quantity: request.quantity,
                reserved_at_ms: request.reserved_at_ms,
                traceparent: request.traceparent.as_ref(),
                end,
                now_override: None,
            })
            .await?;
        Ok(match reply.code {
            TombstoneCode::Written => Some(Replayed::Tombstoned),
            TombstoneCode::AlreadyThere => None,
            TombstoneCode::ConfigMissing => Some(Replayed::BucketGone),
            TombstoneCode::InvariantViolation | TombstoneCode::ReservationIdConflict => {
                Some(refused("tombstone", reply.code.as_str()))
            }
        })
    }
}

/// The endings that a settlement already is; the others go on, or look again.
fn ended(facts: &Facts, settled: &Settled) -> Option<Replayed> {
    match settled {
        Settled::BucketGone => Some(Replayed::BucketGone),
        Settled::Contradiction { code, status } if *code == TransitionCode::IdConflict => {
            let detail = format!("{} ({code})", facts.words(*status));
            Some(Replayed::Contradiction { detail })
        }
        Settled::Agreed { .. } | Settled::Missing | Settled::Contradiction { .. } => None,
    }
}

fn stands_at(settled: &Settled, wanted: ReservationStatus) -> bool {
    matches!(settled, Settled::Agreed { status, .. } if *status == wanted)
}

fn refused(step: &str, code: &str) -> Replayed {
    Replayed::Refused {
        detail: format!("the {step} was refused: {code}"),
    }
}
