//! Structured logging and trace context propagation.
