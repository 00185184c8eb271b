//! The gRPC reservation front.
