//! Compares Redis with PostgreSQL and settles what is decided.

use std::process::ExitCode;

fn main() -> ExitCode {
    seckill_service_kit::main("reconciler", seckill_reconciler::run)
}
