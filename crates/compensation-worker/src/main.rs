//! Fences and releases reservations that will not become orders.

use std::process::ExitCode;

fn main() -> ExitCode {
    seckill_service_kit::main("compensation-worker", seckill_compensation_worker::run)
}
