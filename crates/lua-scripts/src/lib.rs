//! The Redis scripts, embedded, each with a typed call.
