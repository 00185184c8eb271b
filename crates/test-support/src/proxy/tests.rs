//! Each mode on a real Redis, and the framing byte by byte.
