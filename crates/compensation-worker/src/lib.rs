//! Gives back the units of reservations that will not become orders, and repeats settlements.
//!
//! A task is worked on in one order: first the fence in PostgreSQL, then Redis. With the fence up, a
//! late message can never turn a released unit into an order (I6), so nobody needs to know whether
//! that message is still somewhere in the bus.
//!
//! **Invariant:** no unit is moved in Redis before [`Store::fence`] has answered that the reservation
//! can never become an order.
//!
//! [`Store::fence`]: seckill_order_store::Store::fence

mod events;
mod release;
mod run;
mod settings;
mod tasks;

pub use run::run;
pub use settings::Settings;
