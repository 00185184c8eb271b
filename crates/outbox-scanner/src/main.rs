//! Resends due reservations and relays the PostgreSQL outbox.
fn main() {}
