//! What names a reservation is removed only when the reservation does not need it.

use seckill_lua_scripts::{ErrorKind, Index, RemoveStray, RemoveStrayReply as Reply, Stray};

use crate::orders::Order;
use crate::world::{World, rid, user};

impl World {
    async fn remove(&self, stray: Stray<'_>) -> Reply {
        let keys = &self.keys;
        let call = RemoveStray { keys, stray };
        self.redis.remove_stray(&call).await.unwrap()
    }

    /// Removes it, and does nothing the second time.
    async fn removes_once(&self, stray: Stray<'_>) {
        assert_eq!(self.remove(stray).await, Reply::Removed, "{stray:?}");
        let dump = self.dump().await;
        assert_eq!(self.remove(stray).await, Reply::Gone, "{stray:?}");
        assert_eq!(self.dump().await, dump, "{stray:?}");
    }

    /// Leaves everything as it is.
    async fn keeps(&self, stray: Stray<'_>, reply: Reply) {
        let dump = self.dump().await;
        assert_eq!(self.remove(stray).await, reply, "{stray:?}");
        assert_eq!(self.dump().await, dump, "{stray:?}");
    }
}

#[tokio::test]
async fn a_member_is_removed_when_its_reservation_does_not_exist() {
    let world = World::open(3).await;
    world.reserve("u1", "q1").await;
    let (own, lost) = (Order::of("u1", "q1"), rid("x"));
    for index in [Index::SendPending, Index::ReservationExpiry] {
        let member = |reservation_id| Stray::Member {
            index,
            reservation_id,
        };
        world
            .keeps(member(&own.reservation_id), Reply::Needed)
            .await;
        world.keeps(member(&lost), Reply::Gone).await;
        let key = match index {
            Index::SendPending => world.keys.send_pending(),
            Index::ReservationExpiry => world.keys.reservation_expiry(),
        };
        world.cli(&["ZADD", &key, "1", lost.as_str()]).await;
        world.removes_once(member(&lost)).await;
    }
}

#[tokio::test]
async fn a_marker_is_removed_when_its_reservation_is_not_the_users_or_has_ended() {
    let world = World::open(3).await;
    world.reserve("u1", "q1").await;
    let (order, stranger) = (Order::of("u1", "q1"), user("stranger"));
    let id = &order.reservation_id;
    let marker = |user_id, reservation_id| Stray::Marker {
        user_id,
        reservation_id,
    };
    let own = marker(&order.user_id, id);
    world.keeps(own, Reply::Needed).await;
    // It names another one by now.
    let other = rid("x");
    world
        .keeps(marker(&order.user_id, &other), Reply::Gone)
        .await;
    let retention = world.times.retention.to_string();
    let mark = async |user_id, named: &str| {
        let key = world.keys.user(user_id);
        world.cli(&["SET", &key, named, "PXAT", &retention]).await;
    };
    mark(&stranger, id.as_str()).await;
    world.removes_once(marker(&stranger, id)).await;
    mark(&stranger, other.as_str()).await;
    world.removes_once(marker(&stranger, &other)).await;
    world.to_release_pending(id).await;
    world.keeps(own, Reply::Needed).await;
    world.compensate(id, "u1").await;
    mark(&order.user_id, id.as_str()).await;
    world.removes_once(own).await;
}

#[tokio::test]
async fn an_answer_is_removed_when_a_repeat_can_make_it_again() {
    let world = World::open(3).await;
    world.reserve("u1", "q1").await;
    let order = Order::of("u1", "q1");
    let (request_id, reservation_id) = (&order.request_id, &order.reservation_id);
    let answer = Stray::Answer {
        request_id,
        reservation_id,
    };
    let shard = world.keys.request(request_id);
    world.cli(&["HSET", &shard, "q1", "gibberish"]).await;
    world.removes_once(answer).await;
    assert_eq!(
        world.reserve("u1", "q1").await.reservation_id.as_ref(),
        Some(reservation_id)
    );
    // Nothing would be there to answer from.
    let another = rid("x");
    let unfounded = Stray::Answer {
        request_id,
        reservation_id: &another,
    };
    world.keeps(unfounded, Reply::Needed).await;
    world.to_release_pending(reservation_id).await;
    world.compensate(reservation_id, "u1").await;
    world.cli(&["HSET", &shard, "q1", "gibberish"]).await;
    world.keeps(answer, Reply::Needed).await;
}

#[tokio::test]
async fn a_sold_out_mark_is_removed_while_units_are_available() {
    let world = World::open(1).await;
    world.keeps(Stray::SoldOut, Reply::Gone).await;
    let (mark, retention) = (world.keys.soldout(), world.times.retention.to_string());
    let set = ["SET", &mark, "1", "PXAT", &retention];
    world.cli(&set).await;
    world.removes_once(Stray::SoldOut).await;
    world.reserve("u1", "q1").await;
    world.cli(&set).await;
    world.keeps(Stray::SoldOut, Reply::Needed).await;
}

#[tokio::test]
async fn a_wrong_type_or_a_lost_counter_removes_nothing() {
    let world = World::open(1).await;
    world.reserve("u1", "q1").await;
    let order = Order::of("u1", "q1");
    let (user_id, reservation_id) = (&order.user_id, &order.reservation_id);
    let keys = &world.keys;
    let retention = world.times.retention.to_string();
    let mark = keys.soldout();
    world.cli(&["SET", &mark, "1", "PXAT", &retention]).await;
    world.cli(&["DEL", &keys.stock()]).await;
    world.keeps(Stray::SoldOut, Reply::Needed).await;
    for (key, stray) in [
        (keys.stock(), Stray::SoldOut),
        (
            keys.reservation(reservation_id),
            Stray::Marker {
                user_id,
                reservation_id,
            },
        ),
    ] {
        world.cli(&["DEL", &key]).await;
        world.cli(&["RPUSH", &key, "x"]).await;
        world.cli(&["PEXPIREAT", &key, &retention]).await;
        let before = world.dump().await;
        let call = RemoveStray { keys, stray };
        let error = world.redis.remove_stray(&call).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Broken, "{key}");
        assert_eq!(world.dump().await, before, "{key}");
    }
}
