//! Generated gRPC and message types, and their conversion into domain types.
