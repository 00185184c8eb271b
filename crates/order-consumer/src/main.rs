//! Turns order requests into decisions and orders.

use std::process::ExitCode;

fn main() -> ExitCode {
    seckill_service_kit::main("order-consumer", seckill_order_consumer::run)
}
