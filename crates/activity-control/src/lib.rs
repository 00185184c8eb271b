//! The life of an activity: create, preheat, open, pause, resume, close; its rebuild after a total loss;
//! and the audit of its ledger.
//!
//! A library without a clock of its own and without a process: `seckillctl` calls it for operators,
//! and a controller may call it by itself. Every step writes PostgreSQL first and Redis after it, may
//! be taken again from wherever a crash left it, and says in its module what a crash leaves and who
//! repairs that.
//!
//! **Invariant:** live stock is never written here. What vanished after the first sale is a case for
//! the rebuild, which counts the orders; every other step that meets it refuses and says so.

mod audit;
mod compare;
mod control;
mod error;
mod figures;
mod lifecycle;
mod orders;
mod pointers;
mod preheat;
mod rebuild;
mod settings;
mod show;

pub use audit::{
    AuditOptions, AuditReport, BookFacts, BookFigures, BucketFacts, BucketFigures, DecisionFacts,
    Difference, DifferenceKind, Lag, Ledger, RedisFigures, ReservationFacts, Settledness,
    StockFacts, Subject, judge_book, judge_bucket,
};
pub use compare::{FieldDifference, Sides, Stage, meta_differences};
pub use control::Control;
pub use error::{Error, ErrorKind};
pub use figures::Figures;
pub use lifecycle::{Moved, Order, Pushed};
pub use orders::{OrderName, cancel_order};
pub use pointers::PointerState;
pub use preheat::Preheated;
pub use rebuild::Rebuilt;
pub use settings::{Violation, violations};
pub use show::{ActivityView, BookView, BucketView, ReservationName, ReservationView, StockView};
