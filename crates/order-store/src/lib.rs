//! The PostgreSQL side: decisions, orders, stock, outbox, tasks.
