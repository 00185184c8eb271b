//! All end-to-end tests are one executable: each links every service's client once.

mod sandbox;
