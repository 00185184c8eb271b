//! The gRPC reservation front.

use std::process::ExitCode;

fn main() -> ExitCode {
    seckill_service_kit::main("reservation-front", seckill_reservation_front::run)
}
