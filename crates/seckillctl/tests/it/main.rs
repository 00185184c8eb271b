//! The operator's command line on real servers: what it does, what it refuses, and how it ends.

mod audit;
mod cli;
mod lifecycle;
mod sale;
mod world;
