//! Fences and releases reservations that will not become orders.
fn main() {}
