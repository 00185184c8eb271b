//! Compiles the protocol definitions with `protox`, so that no `protoc` is needed, and keeps the
//! descriptor set for server reflection.

use std::error::Error;
use std::path::PathBuf;
use std::{env, fs};

const ROOT: &str = "../../proto";
const FILES: [&str; 3] = [
    "seckill/v1/reservation_service.proto",
    "seckill/events/v1/order_request.proto",
    "seckill/events/v1/order_event.proto",
];

fn main() -> Result<(), Box<dyn Error>> {
    println!("cargo::rerun-if-changed={ROOT}");
    let descriptors = protox::compile(FILES, [ROOT])?;
    let out = PathBuf::from(env::var("OUT_DIR")?);
    fs::write(
        out.join("descriptors.bin"),
        prost::Message::encode_to_vec(&descriptors),
    )?;
    tonic_prost_build::configure().compile_fds(descriptors)?;
    Ok(())
}
