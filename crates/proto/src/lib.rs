//! Generated gRPC and message types, and their conversion into domain types.
//!
//! Generated types stop here: everything behind the edge works with domain values that cannot hold
//! a wrong id or an unknown state.

mod events_convert;
mod reserve;
mod violation;

pub use reserve::{ACTIVITY_TOKEN_BYTES_MAX, QueryKey, ReservationQuery, ReserveCall};
pub use violation::{Collector, Violation, Violations};

/// Package `seckill.v1`: the reservation front's API.
#[expect(
    clippy::doc_markdown,
    clippy::too_many_lines,
    reason = "generated code keeps other rules"
)]
pub mod v1 {
    tonic::include_proto!("seckill.v1");
}

/// Package `seckill.events.v1`: message bodies.
pub mod events {
    /// Version 1 of the message bodies.
    pub mod v1 {
        tonic::include_proto!("seckill.events.v1");
    }
}

/// The descriptor set of every package, for server reflection.
pub const FILE_DESCRIPTOR_SET: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/descriptors.bin"));
