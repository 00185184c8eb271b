//! Private servers, a fault proxy and process handles for tests.

mod database;
mod eventually;
mod fail;
mod ports;
mod postgres;
mod process;
mod proxy;
mod redis;
mod resp;
mod stack;
mod temp;

pub use database::TestDatabase;
pub use eventually::eventually;
pub use ports::loopback;
pub use postgres::PrivatePostgres;
pub use proxy::{Counters, Dir, FaultProxy, Frame, FrameAction, Framing, Mode, Sever, Traffic};
pub use redis::{Content, Dump, Entry, PrivateRedis, RedisCluster};
pub use resp::{RedisConnection, Value, encode_command, parse_value};
pub use stack::TestStack;
pub use temp::TempDir;
