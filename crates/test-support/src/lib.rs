//! Private servers, a fault proxy and process handles for tests.
//!
//! Every test has its own Redis ([`PrivateRedis`]), database ([`TestDatabase`]) and namespace on the
//! shared broker ([`MqNamespace`]), so that tests run side by side. A [`FaultProxy`] in front of any of
//! them makes faults on purpose. Nothing here imitates a server: what a test sees is what the real one
//! does. What cannot be set up ends the test with a panic that says why.

mod database;
mod eventually;
mod fail;
mod namesrv;
mod ports;
mod postgres;
mod process;
mod proxy;
mod redis;
pub mod remoting;
mod resp;
mod service;
mod soak;
mod stack;
mod temp;

pub use database::{TestDatabase, query_texts};
pub use eventually::eventually;
pub use fail::OrFail;
pub use namesrv::{MqNamespace, NamesrvProxy, broker_addr};
pub use ports::loopback;
pub use postgres::PrivatePostgres;
pub use proxy::{Counters, Dir, FaultProxy, Frame, FrameAction, Framing, Mode, Sever, Traffic};
pub use redis::{
    Content, Dump, Entry, Loss, PrivateRedis, RedisCluster, RedisPair, RedisSetup, SlotMigration,
};
pub use resp::{RedisConnection, Value, encode_command, parse_value};
pub use service::{
    Finished, HttpReply, RunFile, ServiceBuilder, ServiceProcess, all_ready, executable, http_get,
};
pub use soak::{at_full_length, at_length};
pub use stack::TestStack;
pub use temp::TempDir;
