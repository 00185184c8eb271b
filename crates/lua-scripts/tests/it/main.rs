//! The scripts and their client against real servers.

mod client;
mod cluster;
mod codes;
mod concurrency;
mod differential;
mod faults;
mod model;
mod refusals;
mod transitions;
mod world;
