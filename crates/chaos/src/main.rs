//! `seckill-chaos`: see `docs/chaos.md`.

use std::process::ExitCode;

use clap::Parser;
use seckill_chaos::args::Args;

/// Something that must hold does not.
const VIOLATED: u8 = 1;

/// The run could not be carried out.
const BROKEN: u8 = 69;

fn main() -> ExitCode {
    let args = Args::parse();
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .enable_all()
        .build();
    let ended = runtime
        .map_err(anyhow::Error::from)
        .and_then(|runtime| runtime.block_on(Box::pin(seckill_chaos::run(args))));
    match ended {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::from(VIOLATED),
        Err(error) => {
            eprintln!("the run broke off: {error:#}");
            ExitCode::from(BROKEN)
        }
    }
}
