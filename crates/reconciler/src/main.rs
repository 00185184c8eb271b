//! Compares Redis with PostgreSQL and settles what is decided.
fn main() {}
