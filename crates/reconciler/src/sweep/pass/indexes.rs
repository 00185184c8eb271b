//! A page of one of the two indexes, due or not: members that nobody needs any more, and members
//! without a reservation.

use futures::StreamExt;
use seckill_lua_scripts::{Error as RedisError, ErrorKind, Index, IndexMember, ReservationRecord};
use seckill_order_store::Error as StoreError;
use seckill_settlement::Class;
use seckill_state_machine::{ReservationId, TimestampMs};

use super::{CALLS_IN_FLIGHT, Pass, Read, Sides, of, record};
use crate::finding::Finding;
use crate::sweep::Error;

/// Members of one page.
const MEMBERS_PER_PAGE: usize = 500;

/// Later than any time an index can hold.
const END_OF_TIME: TimestampMs = TimestampMs::new(1 << 52);

impl Pass {
    /// One page; the last member of it, unless it was the last page.
    pub(super) async fn index_page(
        &mut self,
        sides: &Sides,
        index: Index,
        after: Option<IndexMember>,
    ) -> Result<Option<IndexMember>, Error> {
        let page = sides
            .redis
            .due(
                &self.keys,
                index,
                END_OF_TIME,
                after.as_ref(),
                MEMBERS_PER_PAGE,
            )
            .await;
        let page = match page {
            Ok(page) => page,
            Err(error) if error.kind() == ErrorKind::Broken => {
                let what = format!("{}: {error}", name(index));
                self.found
                    .push(Finding::of_bucket(Class::Unreadable, what, ""));
                return Ok(None);
            }
            Err(error) => return Err(error.into()),
        };
        let next = (page.len() == MEMBERS_PER_PAGE)
            .then(|| page.last().cloned())
            .flatten();
        let mut ids = Vec::with_capacity(page.len());
        for member in page {
            match ReservationId::parse(member.member.as_str()) {
                Ok(id) => ids.push(id),
                Err(_) => {
                    let member = member.member.escape_debug();
                    let what = format!("{} names {member}", name(index));
                    self.found
                        .push(Finding::of_bucket(Class::IndexStray, what, ""));
                }
            }
        }
        self.members(sides, index, ids).await?;
        Ok(next)
    }

    async fn members(
        &mut self,
        sides: &Sides,
        index: Index,
        ids: Vec<ReservationId>,
    ) -> Result<(), Error> {
        let keys = &self.keys;
        let read: Vec<Result<(ReservationId, Read), RedisError>> = futures::stream::iter(ids)
            .map(|id| async move {
                let read = record(&sides.redis, keys, &id).await?;
                Ok((id, read))
            })
            .buffer_unordered(CALLS_IN_FLIGHT)
            .collect()
            .await;
        let mut missing = Vec::new();
        for read in read {
            match read? {
                (id, Ok(None)) => missing.push(id),
                (_, Ok(Some(record))) => self.found_left_over(index, &record),
                // Told by its own key.
                (_, Err(_)) => {}
            }
        }
        self.strays(sides, index, &missing).await
    }

    fn found_left_over(&mut self, index: Index, record: &ReservationRecord) {
        let status = record.status;
        let needs_it = match index {
            Index::ReservationExpiry => !status.is_settled(),
            Index::SendPending => status.awaits_send(),
        };
        if !needs_it {
            let what = format!("{status}, member of {}", name(index));
            let id = &record.reservation_id;
            self.found
                .push(Finding::of(Class::IndexLeftOver, id, what, "").about(name(index)));
        }
    }

    /// A member without a reservation is one only if PostgreSQL does not know it either; otherwise
    /// the lost reservation is the difference.
    async fn strays(
        &mut self,
        sides: &Sides,
        index: Index,
        ids: &[ReservationId],
    ) -> Result<(), Error> {
        if ids.is_empty() {
            return Ok(());
        }
        let decisions = match sides.store.decisions(ids).await {
            Ok(decisions) => decisions,
            Err(StoreError::Stored { .. }) => return Ok(()),
            Err(error) => return Err(error.into()),
        };
        for id in ids {
            if of(&decisions, id).is_none() {
                let what = format!("no reservation, member of {}", name(index));
                self.found
                    .push(Finding::of(Class::IndexStray, id, what, "undecided").about(name(index)));
            }
        }
        Ok(())
    }
}

const fn name(index: Index) -> &'static str {
    match index {
        Index::ReservationExpiry => "reservation_expiry",
        Index::SendPending => "send_pending",
    }
}
