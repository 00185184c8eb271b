//! A small sale against real services, and one whose front is killed on the way.

use std::net::TcpListener;
use std::time::Duration;

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use seckill_integration_tests::{Sandbox, Service};
use serde_json::Value;

const SOON: Duration = Duration::from_secs(60);

fn free_address() -> String {
    let candidates =
        std::iter::repeat_with(|| format!("127.0.0.1:{}", rand::random_range(20_000..32_000)));
    let mut free = candidates
        .take(100)
        .filter(|address| TcpListener::bind(address).is_ok());
    free.next().unwrap()
}

/// Ends the front that the command started, which nobody else would, however the test ends. It is
/// known by the address that no other front was given.
struct Successor(String);

impl Drop for Successor {
    fn drop(&mut self) {
        let mark = format!("SECKILL_FRONT_LISTEN={}", self.0);
        for process in std::fs::read_dir("/proc").into_iter().flatten().flatten() {
            let environment = std::fs::read(process.path().join("environ")).unwrap_or_default();
            let is_marked = environment
                .split(|byte| *byte == 0)
                .any(|entry| entry == mark.as_bytes());
            let pid = process
                .file_name()
                .to_str()
                .and_then(|name| name.parse().ok());
            if let Some(pid) = pid.filter(|_| is_marked) {
                let _ = kill(Pid::from_raw(pid), Signal::SIGKILL);
            }
        }
    }
}

/// The parts of every sale here.
fn arguments<'a>(front: &'a str, more: &[&'a str]) -> Vec<&'a str> {
    let sale = [
        "sale",
        "run",
        "--front-addr",
        front,
        "--buyers",
        "600",
        "--stock",
        "60",
        "--concurrency",
        "32",
        "--settle-timeout-ms",
        "40000",
        "--invalid",
        "10",
    ];
    [&sale[..], more].concat()
}

fn assert_sold_out(report: &Value) {
    let zeros = [
        "errors",
        "oversold",
        "duplicate_orders",
        "unsettled",
        "available",
        "inconsistent_repeats",
        "accepted_without_order",
        "orders_without_acceptance",
        "accepted_twice",
        "other",
    ];
    for field in zeros {
        assert_eq!(report[field], 0, "{field}: {report}");
    }
    for field in ["accepted", "orders", "reserved", "stock"] {
        assert_eq!(report[field], 60, "{field}: {report}");
    }
    let calls: u64 = report["by_code"]
        .as_object()
        .unwrap()
        .values()
        .filter_map(Value::as_u64)
        .sum();
    assert_eq!(report["calls"], calls);
    assert_eq!(report["calls"], 600 + 30 + 126 + 10);
    assert_eq!(report["invalid"], 10);
    assert_eq!(report["audit"], "ok");
    assert_eq!(report["failures"], serde_json::json!([]));
}

#[tokio::test]
async fn a_sale_sells_out_and_every_unit_is_accounted_for() {
    let sandbox = Sandbox::start().await;
    let services = sandbox.run_all().await;
    let front = services.front.grpc_addr().to_string();
    let file = std::env::temp_dir().join(format!("seckillctl-sale-{}.json", std::process::id()));
    let path = file.to_str().unwrap().to_owned();
    let ended = sandbox.ctl(&arguments(&front, &["--report", &path])).await;
    assert_eq!(ended.code, Some(0), "{ended:?}");
    let report = ended.json();
    assert_sold_out(&report);
    assert_eq!(report["retries"], 0, "{report}");
    let written: Value = serde_json::from_slice(&std::fs::read(&file).unwrap()).unwrap();
    std::fs::remove_file(&file).unwrap();
    assert_eq!(written, report);
    for service in services.all() {
        service.stop(SOON).await;
    }
}

#[tokio::test]
async fn a_front_that_is_killed_in_mid_sale_comes_back_and_nothing_is_lost() {
    let sandbox = Sandbox::start().await;
    // The successor must be found where the killed one was, so the port is a fixed one, and below
    // the range that outgoing connections take theirs from.
    let address = free_address();
    let _successor = Successor(address.clone());
    let settings = sandbox
        .service(Service::Front)
        .env("SECKILL_FRONT_LISTEN", &address);
    // Each is bound, for what is not bound ends at once.
    let (front, _scanner, _consumer, _compensation, _reconciler) = tokio::join!(
        settings.start(),
        sandbox.run(Service::Scanner),
        sandbox.run(Service::Consumer),
        sandbox.run(Service::Compensation),
        sandbox.run(Service::Reconciler),
    );
    let flags = ["--kill-front-after", "20"];
    let ended = sandbox.ctl(&arguments(&address, &flags)).await;
    assert_eq!(ended.code, Some(0), "{ended:?}");
    let report = ended.json();
    assert_sold_out(&report);
    assert_eq!(report["front_killed"]["pid"], front.pid());
    assert!(report["front_killed"]["accepted"].as_u64().unwrap() >= 20);
}
