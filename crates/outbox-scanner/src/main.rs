//! Resends due reservations and relays the PostgreSQL outbox.

use std::process::ExitCode;

fn main() -> ExitCode {
    seckill_service_kit::main("outbox-scanner", seckill_outbox_scanner::run)
}
