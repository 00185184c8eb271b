//! The gRPC reservation front.
fn main() {}
