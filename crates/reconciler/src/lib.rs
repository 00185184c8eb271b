//! Compares Redis with PostgreSQL, settles what is decided, and reports the rest.
//!
//! Two systems that are read at different instants always differ by what is on its way between them.
//! So nothing is corrected because of a difference in numbers, ever: reservations are settled one by
//! one, by the decision that PostgreSQL holds for each, and a difference in numbers is reported once
//! it has stayed the same for longer than anything is on its way.
//!
//! **Invariant:** no unit is given back here and no reservation is given up by a timer. What must be
//! released is handed to the compensation worker, which fences it first (I6).

mod expiry;
mod findings;
mod holders;
mod persistence;
mod rounds;
mod run;
mod settings;
mod totals;

pub use run::run;
pub use settings::Settings;
