//! Proof by force: a sale goes on while everything around it breaks.
//!
//! Two replicas of every service run against servers of their own, behind fault proxies. A plan drawn
//! from a seed kills, stops, cuts, restarts and fails over; buyers come all the while, and repeat the
//! same request until they know. Then the faults end, everything must settle within a minute, and what
//! the stores hold is compared with what the buyers were told, by queries of this crate's own.
//!
//! Nothing here calls the product's code, except through its executables.

pub mod args;
mod clock;
mod faults;
mod installation;
mod load;
mod oracle;
mod plan;
mod random;
mod recorder;
mod replicas;
mod report;
mod run;
mod settle;
mod watch;

pub use run::run;
