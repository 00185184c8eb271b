//! The operator's command line; see the library for what it does.

use std::process::ExitCode;

fn main() -> ExitCode {
    seckill_seckillctl::main()
}
