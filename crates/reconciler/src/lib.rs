//! Compares Redis with PostgreSQL, settles what is decided, and reports the rest.
//!
//! Two systems that are read at different instants always differ by what is on its way between them.
//! So nothing is corrected because of a difference in numbers, ever: reservations are settled one by
//! one, by the decision that PostgreSQL holds for each, and a difference counts only once it has stayed
//! the same for longer than anything is on its way. What is repaired by itself is what replaying
//! PostgreSQL through guarded scripts repairs; the rest waits for a person.
//!
//! | loop | does | how often |
//! | --- | --- | --- |
//! | `watch` | notes whether order requests can be consumed: patience counts only then | seconds |
//! | `recovery` | sees failovers, replays at once, opens and ends recovery windows | seconds |
//! | `expiry` | settles what is due and decided, hands over what is undecided beyond patience | seconds |
//! | `totals` | counters, settings, state and pointer against PostgreSQL | half a minute |
//! | `sweep` | every decision, key and index member, paced | minutes |
//! | `retention` | proves that an ending version has nothing open, archives or extends it | a minute |
//!
//! **Invariant:** no unit is given back here and no reservation is given up by a timer. What must be
//! released is handed to the compensation worker, which fences it first (I6).

// The bus client's nested futures exceed the default limit of 128.
#![recursion_limit = "256"]

mod apply;
mod expiry;
mod finding;
mod persistence;
mod recovery;
mod retention;
mod rounds;
mod run;
mod settings;
mod sweep;
mod tally;
mod totals;
mod watch;

pub use run::run;
pub use settings::Settings;
