//! Rebuilds the crate when a migration is added: the embedding macro only sees files that it already
//! knows.

fn main() {
    println!("cargo::rerun-if-changed=../../migrations");
}
