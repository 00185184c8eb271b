//! Private servers, a fault proxy and process handles for tests.

mod eventually;
mod fail;
mod ports;
mod process;
mod proxy;
mod redis;
mod resp;
mod temp;

pub use eventually::eventually;
pub use ports::loopback;
pub use proxy::{Counters, Dir, FaultProxy, Frame, FrameAction, Framing, Mode, Sever, Traffic};
pub use redis::{Content, Dump, Entry, PrivateRedis, RedisCluster};
pub use resp::{RedisConnection, Value, encode_command, parse_value};
pub use temp::TempDir;
