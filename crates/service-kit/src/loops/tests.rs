//! Loops that panic, end, fail and stall, in a context as `main` makes it.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use clap::Parser;
use seckill_message_bus::BusRuntime;

use super::*;
use crate::ProcessArgs;

#[derive(Parser)]
struct Arguments {
    #[command(flatten)]
    process: ProcessArgs,
}

/// Runs a test in a context. The bus runtime must be made outside of any other.
fn with_context<F: Future<Output = ()>>(test: impl FnOnce(Context) -> F) {
    let arguments = Arguments::parse_from(["test", "--grace-period-ms", "5000"]);
    let bus = Arc::new(BusRuntime::new().unwrap());
    let runtime = tokio::runtime::Runtime::new().unwrap();
    let ctx = Context::new("test", arguments.process, Arc::clone(&bus));
    runtime.block_on(async {
        tokio::time::timeout(Duration::from_secs(20), test(ctx))
            .await
            .expect("in time");
    });
    drop(runtime);
    if let Some(bus) = Arc::into_inner(bus) {
        bus.shutdown();
    }
}

#[test]
fn a_loop_that_panics_ends_the_process_with_its_name() {
    with_context(async |ctx| {
        ctx.spawn("relay", async {
            assert!(std::hint::black_box(false), "a broken row");
        });
        assert!(ctx.drained().await);
        let failure = ctx.take_failure().map(|failure| failure.to_string());
        assert_eq!(failure.as_deref(), Some("relay panicked"));
        assert!(!ctx.readiness().borrow().is_ready());
    });
}

#[test]
fn a_loop_that_ends_by_itself_or_fails_does_too() {
    with_context(async |ctx| {
        ctx.spawn("relay", async {});
        assert!(ctx.drained().await);
        let failure = ctx.take_failure().map(|failure| failure.to_string());
        assert_eq!(failure.as_deref(), Some("relay ended by itself"));
    });
    with_context(async |ctx| {
        ctx.spawn("relay", async { Err::<(), _>("no socket") });
        assert!(ctx.drained().await);
        let failure = ctx.take_failure().map(|failure| failure.to_string());
        assert_eq!(failure.as_deref(), Some("relay failed: no socket"));
    });
}

#[test]
fn a_stop_waits_for_the_tick_in_hand_and_is_no_failure() {
    with_context(async |ctx| {
        let (began, mut beginning) = tokio::sync::mpsc::channel(1);
        let finished = Arc::new(AtomicU32::new(0));
        let counted = Arc::clone(&finished);
        ctx.every("work", Duration::from_millis(1), move || {
            let (began, counted) = (began.clone(), Arc::clone(&counted));
            async move {
                // Nobody listens to the second one.
                let _ = began.try_send(());
                sleep(Duration::from_millis(100)).await;
                counted.fetch_add(1, Ordering::SeqCst);
                Ok::<(), String>(())
            }
        });
        beginning.recv().await.unwrap();
        ctx.begin_drain(Duration::ZERO);
        assert!(ctx.drained().await);
        assert_eq!(finished.load(Ordering::SeqCst), 1);
        assert!(ctx.take_failure().is_none());
    });
}

#[test]
fn failed_ticks_are_repeated_and_shown() {
    with_context(async |ctx| {
        let (ticked, mut ticks) = tokio::sync::mpsc::unbounded_channel();
        let mut count = 0;
        ctx.every("work", Duration::from_millis(1), move || {
            count += 1;
            // The test may have ended.
            let _ = ticked.send(count);
            let result = if count < 3 { Err("away") } else { Ok(()) };
            async move { result }
        });
        while ticks.recv().await.unwrap() < 5 {}
        let heartbeats = ctx.loops().heartbeats();
        assert!(heartbeats["work"].ticks >= 4);
        assert_eq!(heartbeats["work"].failures_in_row, 0);
        assert!(!heartbeats["work"].stalled);
        ctx.begin_drain(Duration::ZERO);
        assert!(ctx.drained().await);
    });
}

#[test]
fn work_that_outlasts_the_grace_period_is_cut_off_and_named() {
    with_context(async |ctx| {
        ctx.spawn("stuck", std::future::pending::<()>());
        ctx.begin_drain(Duration::ZERO);
        assert!(!ctx.drained().await);
        assert_eq!(ctx.loops().running(), "stuck");
    });
}

#[test]
fn pauses_grow_with_failures_and_stay_bounded() {
    let interval = Duration::from_millis(200);
    let mut failures = Failures::default();
    assert!(failures.pause(interval) <= interval.mul_f64(1.1));
    failures.note("sample", Err("away".to_owned()));
    assert!(failures.pause(interval) >= interval.mul_f64(1.8));
    for _ in 0..100 {
        failures.note("sample", Err("away".to_owned()));
    }
    assert!(failures.pause(interval) <= BACKOFF_MAX.mul_f64(1.1));
    assert!(failures.pause(Duration::from_secs(60)) >= Duration::from_secs(54));
    failures.note("sample", Ok(()));
    assert!(failures.pause(interval) <= interval.mul_f64(1.1));
}

#[test]
fn ends_of_loops_tell_their_failure() {
    assert_eq!(().failure(), None);
    assert_eq!(Ok::<(), String>(()).failure(), None);
    assert_eq!(Err::<(), _>("lost").failure(), Some("lost".to_owned()));
}
