//! A link that breaks in one of six ways.
//!
//! A stream never loses bytes in its middle and goes on: where some were thrown away, the connection
//! is reset before anything passes again.

use std::time::Duration;

use seckill_test_support::{Counters, Dir, FaultProxy, Mode, Sever, Traffic};
use tokio::net::TcpStream;
use tokio::time::sleep;

use super::Seen;
use crate::plan::Way;

pub(super) async fn make(proxy: &FaultProxy, way: Way, lasts: Duration) -> Seen {
    let before = proxy.counters();
    match way {
        Way::Refuse => refuse(proxy, before, lasts).await,
        Way::Cut => cut(proxy, before, lasts).await,
        Way::Swallow => {
            proxy.set_mode(Mode::Swallow(Dir::ToClient));
            sleep(lasts).await;
            let lost = missing(before, proxy.counters(), Dir::ToClient);
            reset_and_forward(proxy);
            bytes(lost, "bytes of answers were lost")
        }
        Way::BlackHole => {
            proxy.set_mode(Mode::BlackHole);
            sleep(lasts).await;
            let after = proxy.counters();
            let both = [Dir::ToServer, Dir::ToClient];
            let lost = both
                .into_iter()
                .map(|dir| missing(before, after, dir))
                .sum();
            reset_and_forward(proxy);
            bytes(lost, "bytes were lost")
        }
        Way::Delay => delay(proxy, before, lasts).await,
        Way::Hold => {
            proxy.set_mode(Mode::Hold(Dir::ToServer));
            sleep(lasts).await;
            let held = missing(before, proxy.counters(), Dir::ToServer);
            proxy.set_mode(Mode::Forward);
            bytes(held, "bytes of requests were kept back")
        }
    }
}

async fn refuse(proxy: &FaultProxy, before: Counters, lasts: Duration) -> Seen {
    proxy.set_mode(Mode::Refuse);
    let refused = TcpStream::connect(proxy.addr()).await.is_err();
    sleep(lasts).await;
    proxy.set_mode(Mode::Forward);
    if refused && before.open > 0 {
        Ok(format!(
            "{} connections reset, new ones refused",
            before.open
        ))
    } else {
        Err(format!("{} connections, refused {refused}", before.open))
    }
}

async fn cut(proxy: &FaultProxy, before: Counters, lasts: Duration) -> Seen {
    proxy.sever_all(Sever::Reset);
    sleep(lasts).await;
    let back = proxy.counters().connections - before.connections;
    if before.open > 0 && back > 0 {
        Ok(format!(
            "{} connections reset, {back} came back",
            before.open
        ))
    } else {
        Err(format!(
            "{} connections reset, {back} came back",
            before.open
        ))
    }
}

/// Late by a fifth of the time that the fault lasts, and by 300 ms at most: long enough to be felt
/// behind the time limits of a second, short enough that some answers come in time.
async fn delay(proxy: &FaultProxy, before: Counters, lasts: Duration) -> Seen {
    let late = (lasts / 5).min(Duration::from_millis(300));
    proxy.set_mode(Mode::Delay(late, Dir::ToClient));
    sleep(lasts).await;
    let frames = proxy.counters().frames(Dir::ToClient) - before.frames(Dir::ToClient);
    proxy.set_mode(Mode::Forward);
    if frames > 0 {
        Ok(format!("{frames} answers came {late:?} late"))
    } else {
        Err("nothing was answered".to_owned())
    }
}

/// Refusing resets every connection and lets no new one in until the mode changes once more.
fn reset_and_forward(proxy: &FaultProxy) {
    proxy.set_mode(Mode::Refuse);
    proxy.set_mode(Mode::Forward);
}

/// Bytes that have arrived since, and were not passed on.
fn missing(before: Counters, after: Counters, dir: Dir) -> u64 {
    let pending = |traffic: Traffic| traffic.bytes.saturating_sub(traffic.forwarded);
    pending(after.traffic(dir)).saturating_sub(pending(before.traffic(dir)))
}

fn bytes(count: u64, what: &str) -> Seen {
    let seen = format!("{count} {what}");
    if count > 0 { Ok(seen) } else { Err(seen) }
}
