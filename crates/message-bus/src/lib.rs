//! The message bus: plain types at the edge, RocketMQ behind them.
//!
//! Services see an [`OutgoingMessage`], an [`IncomingMessage`] and a [`BatchHandler`]; no type of the
//! broker's client leaves this crate, so only this crate pays for compiling it and only this crate
//! knows its traps. Delivery is at least once and in any order.
//!
//! **Invariant:** a send is [`SendOutcome::Sent`] only after the broker's plain OK. Everything else,
//! errors included, is [`SendOutcome::Unknown`]: messages of failed calls were seen to be stored.

// The client's nested futures exceed the default limit of 128.
#![recursion_limit = "512"]

mod admin;
mod codec;
mod config;
mod consumer;
mod error;
mod link;
mod listener;
mod member;
mod message;
mod names;
mod producer;
mod runtime;

pub use admin::{Admin, MayCome, QueuePosition, Redeliveries, TopicState, has_reached};
pub use codec::{
    BODY_BYTES_MAX, DecodeError, decode_order_event, decode_order_request, placed_reservation,
    placed_scope,
};
pub use config::BusConfig;
pub use consumer::{Consumer, ConsumerConfig, HANDLER_DEADLINE_MAX};
pub use error::{Error, ErrorKind};
pub use listener::{BatchHandler, BatchVerdict};
pub use message::{IncomingMessage, OutgoingMessage, property};
pub use names::{Group, Topic};
pub use producer::{BATCH_BYTES_MAX, BATCH_COUNT_MAX, IN_FLIGHT_MAX, Producer, SendOutcome};
pub use runtime::{BusRuntime, LISTENER_THREADS_MAX};
