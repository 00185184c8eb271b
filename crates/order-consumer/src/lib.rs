//! Turns order requests into decisions and orders.
