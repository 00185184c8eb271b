//! A short run, with everything that a long one has.

use std::path::Path;
use std::process::Command;

/// One round of faults.
const SECONDS: &str = "40";

/// Of the 25 that a round has, some meet nobody.
const FAULTS_MIN: &str = "20";

/// Failovers take longer to be looked into than a test may last: `make chaos` has them.
const KINDS: &str = "kill,pause,redis_link,broker_link,postgres_link,broker_restart,postgres_restart,\
                     repeat,replay";

/// I1 to I12: forty seconds of faults, and nothing is lost, doubled or left undone.
#[test]
fn a_short_run_of_faults_of_every_kind_loses_nothing() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let output = Command::new(root.join("scripts/chaos"))
        .env("CHAOS_PROGRAM", env!("CARGO_BIN_EXE_seckill-chaos"))
        .env("CHAOS_SECONDS", SECONDS)
        .env("CHAOS_KINDS", KINDS)
        .env("CHAOS_FAULTS_MIN", FAULTS_MIN)
        .env("CHAOS_STACK", root.join(".local/chaos-short"))
        .env("CHAOS_OUTPUT", root.join("target/chaos/short"))
        .stdin(std::process::Stdio::null())
        .output()
        .unwrap();
    let (said, complained) = (
        String::from_utf8_lossy(&output.stdout),
        String::from_utf8_lossy(&output.stderr),
    );
    assert!(
        output.status.success(),
        "{}\n{said}\n{complained}",
        output.status
    );
    assert!(said.contains(" holds: "), "{said}");
}
