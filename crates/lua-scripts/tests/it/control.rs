//! A bucket's recovery and retention, and the small reads that go with them.

use seckill_lua_scripts::{
    EXTEND_KEYS_MAX, ErrorKind, Expiry, ExtendRetention, InitialiseBucket, InitialiseReply,
    Recovery, SCAN_STEP, SetRecovery, SetRecoveryReply,
};
use seckill_state_machine::{ActivityState, CompensateCode, RebuildCode, ReserveCode, TimestampMs};

use crate::orders::Order;
use crate::world::{MINUTE_MS, World, derived, user};

impl World {
    async fn initialise(&self, stock: u64, now: Option<i64>) -> InitialiseReply {
        self.initialise_held(stock, Some(0), now).await
    }

    async fn initialise_held(
        &self,
        stock: u64,
        held: Option<u64>,
        now: Option<i64>,
    ) -> InitialiseReply {
        let call = InitialiseBucket {
            keys: &self.keys,
            settings: &self.settings(stock),
            held,
            now_override: now.map(TimestampMs::new),
        };
        self.redis.initialise_bucket(&call).await.unwrap()
    }

    async fn recovery(&self, recovery: Recovery, expected: Option<Recovery>) -> SetRecoveryReply {
        let call = SetRecovery {
            keys: &self.keys,
            recovery,
            expected,
        };
        self.redis.set_recovery(&call).await.unwrap()
    }

    async fn extend(&self, names: &[String], until: i64) -> u64 {
        let call = ExtendRetention {
            keys: &self.keys,
            names,
            until: TimestampMs::new(until),
            now_override: None,
        };
        self.redis.extend_retention(&call).await.unwrap()
    }

    async fn meta_field(&self, field: &str) -> String {
        self.server.dump().await.hash(&self.keys.meta())[field].clone()
    }
}

const fn initialised(meta_written: bool, stock_written: bool) -> InitialiseReply {
    InitialiseReply::Initialised {
        meta_written,
        stock_written,
        stock_missing: false,
    }
}

/// From nothing to open again: nobody can buy before the orders have their units back.
#[tokio::test]
async fn a_total_loss_is_initialised_closed_to_buyers() {
    let world = World::empty().await;
    assert_eq!(world.initialise(2, None).await, initialised(true, true));
    world.sound_dump().await;
    assert_eq!(world.counters().await, (2, 2, 0));
    let meta = world.redis.meta(&world.keys).await.unwrap().unwrap();
    assert_eq!(
        (meta.state, meta.recovery),
        (ActivityState::Paused, Recovery::Rebuild)
    );
    // Refused for now, and remembered nowhere.
    assert_eq!(
        world.reserve("u9", "q9").await.code,
        ReserveCode::ConfigMissing
    );
    let order = Order::of("u1", "q1");
    assert_eq!(world.rebuild(&order).await.code, RebuildCode::Rebuilt);
    // A second initialiser gives no unit twice (M6).
    let before = world.sound_dump().await;
    assert_eq!(world.initialise(2, None).await, initialised(false, false));
    assert_eq!(world.dump().await, before);
    assert_eq!(
        world.recovery(Recovery::None, None).await,
        SetRecoveryReply::Set
    );
    world.set_state(ActivityState::Active).await;
    assert_eq!(world.reserve("u9", "q9").await.code, ReserveCode::Accepted);
    assert_eq!(world.reserve("u8", "q8").await.code, ReserveCode::SoldOut);
    world.sound_dump().await;
}

#[tokio::test]
async fn what_is_left_of_a_bucket_is_kept_and_closed() {
    let world = World::open(2).await;
    let open = world.dump().await;
    world.set_state(ActivityState::Paused).await;
    assert_eq!(world.initialise(9, None).await, initialised(true, false));
    assert_eq!(world.counters().await, (2, 2, 0));
    assert_eq!(world.meta_field("state").await, "PAUSED");
    assert_eq!(world.meta_field("recovery").await, "rebuild");
    world.cli(&["DEL", &world.keys.stock()]).await;
    assert_eq!(world.initialise(2, None).await, initialised(false, true));
    world.sound_dump().await;
    world.fail_over_to(&open).await;
    world.set_state(ActivityState::Closed).await;
    world.cli(&["DEL", &world.keys.stock()]).await;
    assert_eq!(world.initialise(2, None).await, initialised(true, true));
    assert_eq!(world.meta_field("state").await, "CLOSED");
    // Another scope, a passed retention and bad numbers change nothing.
    world
        .cli(&["HSET", &world.keys.meta(), "sku_id", "S2"])
        .await;
    let before = world.dump().await;
    assert_eq!(
        world.initialise(2, None).await,
        InitialiseReply::ScopeMismatch
    );
    let late = Some(world.times.retention);
    assert_eq!(
        world.initialise(2, late).await,
        InitialiseReply::RetentionPassed
    );
    let many = 1_000_000_000_000_000;
    let detail = "initial".to_owned();
    assert_eq!(
        world.initialise(many, None).await,
        InitialiseReply::BadArgument { detail }
    );
    assert_eq!(world.dump().await, before);
}

/// Goal: units that reservations still hold are not given out a second time (I1, I3). The first call
/// closes the bucket, so that nothing moves while they are added up.
#[tokio::test]
async fn counters_come_back_less_what_is_held() {
    let world = World::open(3).await;
    world.reserve("u1", "q1").await;
    world.reserve("u2", "q2").await;
    let given_up = derived("u2", "q2");
    world.to_release_pending(&given_up).await;
    world.cli(&["DEL", &world.keys.stock()]).await;
    let counted = |meta_written| InitialiseReply::Initialised {
        meta_written,
        stock_written: false,
        stock_missing: true,
    };
    assert_eq!(world.initialise_held(3, None, None).await, counted(true));
    assert_eq!(world.initialise_held(3, None, None).await, counted(false));
    assert_eq!(
        world.compensate(&given_up, "u2").await.code,
        CompensateCode::InvariantViolation
    );
    assert_eq!(
        world.reserve("u9", "q9").await.code,
        ReserveCode::ConfigMissing
    );
    let beyond = world.initialise_held(3, Some(4), None).await;
    assert_eq!(beyond, InitialiseReply::HeldBeyondInitial);
    assert_eq!(world.initialise_held(3, None, None).await, counted(false));
    assert_eq!(
        world.initialise_held(3, Some(2), None).await,
        initialised(false, true)
    );
    assert_eq!(world.counters().await, (3, 1, 2));
    world.sound_dump().await;
    assert_eq!(
        world.compensate(&given_up, "u2").await.code,
        CompensateCode::Released
    );
    assert_eq!(world.counters().await, (3, 2, 1));
}

/// Goal: a call that was on its way while another one finished the rebuild does not take the version off
/// sale again.
#[tokio::test]
async fn a_late_initialiser_leaves_a_version_that_sells_again() {
    let world = World::open(2).await;
    world.recovery(Recovery::Window, Some(Recovery::None)).await;
    let before = world.dump().await;
    for held in [None, Some(0), Some(9)] {
        let late = world.initialise_held(2, held, None).await;
        assert_eq!(late, initialised(false, false));
    }
    assert_eq!(world.dump().await, before);
}

#[tokio::test]
async fn recovery_is_written_only_over_what_was_expected() {
    let world = World::empty().await;
    assert_eq!(
        world.recovery(Recovery::Window, None).await,
        SetRecoveryReply::ConfigMissing
    );
    assert!(world.dump().await.0.is_empty());
    world.preheat(1).await;
    let open = Some(Recovery::None);
    assert_eq!(
        world.recovery(Recovery::Window, open).await,
        SetRecoveryReply::Set
    );
    assert_eq!(world.meta_field("recovery").await, "window");
    assert_eq!(
        world.recovery(Recovery::Window, open).await,
        SetRecoveryReply::Unchanged
    );
    world.recovery(Recovery::Rebuild, None).await;
    // Who closes the window does not end the rebuild that has begun meanwhile.
    let found = "rebuild".to_owned();
    let closing = world.recovery(Recovery::None, Some(Recovery::Window)).await;
    assert_eq!(closing, SetRecoveryReply::Moved { found });
    assert_eq!(world.meta_field("recovery").await, "rebuild");
    assert_eq!(
        world.recovery(Recovery::None, None).await,
        SetRecoveryReply::Set
    );
    assert_eq!(world.meta_field("recovery").await, "");
    world
        .cli(&["HSET", &world.keys.meta(), "version", "8"])
        .await;
    assert_eq!(
        world.recovery(Recovery::Window, None).await,
        SetRecoveryReply::ScopeMismatch
    );
    // A failover may have taken the field.
    world
        .cli(&["HSET", &world.keys.meta(), "version", "7"])
        .await;
    world.cli(&["HDEL", &world.keys.meta(), "recovery"]).await;
    assert_eq!(
        world.recovery(Recovery::Window, open).await,
        SetRecoveryReply::Set
    );
    world.sound_dump().await;
}

#[tokio::test]
async fn an_extension_lengthens_every_life_and_shortens_none() {
    let world = World::open(2).await;
    world.reserve("u1", "q1").await;
    let names: Vec<String> = world.dump().await.0.into_keys().collect();
    let stock = world.keys.stock();
    // A key that would live for ever gets an end as well: to GT alone it lives longest already.
    world.cli(&["PERSIST", &stock]).await;
    let retention = world.times.retention;
    assert_eq!(world.extend(&names, retention).await, 1);
    let same = world.sound_dump().await;
    assert_eq!(world.extend(&names, retention - 1).await, 0);
    assert_eq!(
        world
            .extend(&names, retention - 14 * 24 * 60 * MINUTE_MS)
            .await,
        0
    );
    assert_eq!(world.dump().await, same);
    let later = retention + MINUTE_MS;
    let mut asked = names.clone();
    asked.push(world.keys.soldout());
    assert_eq!(world.extend(&asked, later).await, names.len() as u64);
    let dump = world.server.dump().await;
    assert!(
        dump.0
            .values()
            .all(|entry| entry.expires_at_ms == Some(later))
    );
    assert_eq!(dump.0.len(), names.len(), "an absent key is not made");
    assert_eq!(
        world.meta_field("retention_until_ms").await,
        later.to_string()
    );
    assert_eq!(world.extend(&asked, later).await, 0);
    // What is written from now on lives as long.
    world.reserve("u2", "q2").await;
    let dump = world.server.dump().await;
    assert_eq!(
        dump.0[&world.keys.user(&user("u2"))].expires_at_ms,
        Some(later)
    );
    // Without meta its field stays.
    assert_eq!(world.extend(&[stock], later + 1).await, 1);
    assert_eq!(
        world.meta_field("retention_until_ms").await,
        later.to_string()
    );
}

#[tokio::test]
async fn an_extension_takes_only_keys_of_its_bucket_and_not_too_many() {
    let world = World::open(2).await;
    let before = world.dump().await;
    let foreign = world.keys.meta().replace("b:0", "b:1");
    let many = vec![world.keys.stock(); EXTEND_KEYS_MAX + 1];
    for names in [vec![], vec![foreign], many] {
        let call = ExtendRetention {
            keys: &world.keys,
            names: &names,
            until: TimestampMs::new(world.times.retention + 1),
            now_override: None,
        };
        let error = world.redis.extend_retention(&call).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Broken, "{error}");
    }
    assert_eq!(world.dump().await, before);
    let most = vec![world.keys.stock(); EXTEND_KEYS_MAX];
    assert_eq!(world.extend(&most, world.times.retention + 1).await, 1);
}

#[tokio::test]
async fn expiries_are_read() {
    let world = World::open(1).await;
    let (meta, stock, soldout) = (world.keys.meta(), world.keys.stock(), world.keys.soldout());
    world.cli(&["PERSIST", &stock]).await;
    let names = [meta, stock, soldout];
    let found = world.redis.expiries(&world.keys, &names).await.unwrap();
    let retention = TimestampMs::new(world.times.retention);
    assert_eq!(
        found,
        [Expiry::At(retention), Expiry::Never, Expiry::Missing]
    );
    let many = vec![world.keys.meta(); SCAN_STEP as usize + 1];
    assert!(world.redis.expiries(&world.keys, &many).await.is_err());
}

/// Goal: a restart and a promotion begin a history, also one of a server that was a primary before; the
/// coming of a replica does not. Method: the same process throughout, but for the last step.
#[tokio::test]
async fn who_becomes_a_primary_begins_a_history() {
    let world = World::open(1).await;
    let server = async || world.redis.who_serves(&world.keys).await.unwrap();
    let first = server().await;
    assert_eq!((first.run_id.len(), first.replication_id.len()), (40, 40));
    assert!(first.is_primary && !first.took_over);
    assert_eq!(server().await, first);

    world.cli(&["REPLICAOF", "127.0.0.1", "1"]).await;
    let demoted = server().await;
    assert!(!demoted.is_primary);
    world.cli(&["REPLICAOF", "NO", "ONE"]).await;
    let again = server().await;
    assert!(again.is_primary && again.took_over);
    assert_eq!(again.run_id, first.run_id);
    assert_ne!(again.replication_id, first.replication_id);

    world.server.restart().await;
    let restarted = seckill_test_support::eventually(
        std::time::Duration::from_secs(20),
        "the server answers again",
        || world.redis.who_serves(&world.keys),
    )
    .await;
    assert_ne!(restarted.run_id, first.run_id);
    assert_ne!(restarted.replication_id, again.replication_id);
}
