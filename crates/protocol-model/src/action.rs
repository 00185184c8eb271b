//! The steps, in words: a path that a search finds reads as a story.

use std::fmt;

use seckill_state_machine::ReservationStatus;

use crate::transfer::TransferStep;

/// How a consumer ends with a message.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum End {
    /// It commits, settles Redis and acknowledges.
    Settles,
    /// It commits and acknowledges; its settlement of Redis is lost.
    SettlementLost,
    /// It commits and dies: the message comes again.
    Dies,
    /// It acknowledges and dies before its transaction. Only without a safeguard.
    AcknowledgesEarly,
}

/// One step. Requests, reservations and workers by number.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Action {
    /// A client calls; the reply arrives or is lost.
    Call {
        /// Whose request.
        request: u8,
        /// Whether the caller learns nothing, and the front that had it dies.
        reply_lost: bool,
    },
    /// A front or a scanner sends what it holds in memory.
    Send {
        /// Whose message.
        request: u8,
        /// Whether it dies before it records the outcome.
        dies: bool,
    },
    /// A front or a scanner dies before the send.
    SenderDies(u8),
    /// A scanner claims a member of `send_pending`, and sends it unless it is late.
    Scan(u8),
    /// Somebody records the outcome of a send, now or much later.
    Record(u8, ReservationStatus),
    /// A consumer handles a message.
    Consume {
        /// Whose message.
        request: u8,
        /// How that ends.
        end: End,
    },
    /// A consumer parks a message undecided.
    Park(u8),
    /// The broker loses a message.
    Drop(u8),
    /// A reconciler compares and repairs.
    Reconcile(u8),
    /// A reconciler compares; it acts later or never.
    Look(u8),
    /// A reconciler acts on what it saw.
    Act(usize),
    /// A reconciler hands an overdue reservation to the compensation worker.
    HandOver(u8),
    /// A worker claims a task.
    Claim(u8),
    /// A worker does its next step.
    Work(usize),
    /// A worker is gone for good.
    WorkerDies(usize),
    /// An operator cancels an order.
    Cancel(u8),
    /// A slot falls back to an earlier state.
    Failover {
        /// Which slot.
        slot: usize,
        /// Which of its earlier states, counted from the first.
        to: usize,
    },
    /// A slot loses everything.
    Lose(usize),
    /// An operator initialises a lost slot.
    Initialise(usize),
    /// An operator opens a rebuilt slot.
    Resume(usize),
    /// A reconciler ends a slot's recovery window.
    CloseWindow(usize),
    /// A step of the bucket transfer.
    Transfer(TransferStep),
}

impl Action {
    /// Whether the system itself does this step, and goes on doing such steps once faults stop.
    #[must_use]
    pub fn is_own_step(self) -> bool {
        match self {
            Self::Call { .. }
            | Self::Send { dies: true, .. }
            | Self::SenderDies(_)
            | Self::Record(_, ReservationStatus::SendUnknown)
            | Self::Consume {
                end: End::SettlementLost | End::Dies | End::AcknowledgesEarly,
                ..
            }
            | Self::Park(_)
            | Self::Drop(_)
            | Self::WorkerDies(_)
            | Self::Cancel(_)
            | Self::Failover { .. }
            | Self::Lose(_)
            | Self::Transfer(TransferStep::Start) => false,
            Self::Send { dies: false, .. }
            | Self::Scan(_)
            | Self::Record(..)
            | Self::Consume {
                end: End::Settles, ..
            }
            | Self::Reconcile(_)
            | Self::Look(_)
            | Self::Act(_)
            | Self::HandOver(_)
            | Self::Claim(_)
            | Self::Work(_)
            | Self::Initialise(_)
            | Self::Resume(_)
            | Self::CloseWindow(_)
            | Self::Transfer(_) => true,
        }
    }
}

impl fmt::Display for Action {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let r = |number: &u8| format!("r{}", number + 1);
        match self {
            Self::Call {
                request,
                reply_lost: false,
            } => write!(f, "{} calls", r(request)),
            Self::Call { request, .. } => write!(f, "{} calls, the reply is lost", r(request)),
            Self::Send {
                request,
                dies: false,
            } => write!(f, "{} is sent", r(request)),
            Self::Send { request, .. } => write!(f, "{} is sent, the sender dies", r(request)),
            Self::SenderDies(request) => write!(f, "the sender of {} dies", r(request)),
            Self::Scan(request) => write!(f, "the scanner claims {}", r(request)),
            Self::Record(request, status) => write!(f, "{} is recorded as {status}", r(request)),
            Self::Consume { request, end } => {
                let end = match end {
                    End::Settles => "decides, settles and acknowledges",
                    End::SettlementLost => "decides and acknowledges, its settlement is lost",
                    End::Dies => "decides and dies",
                    End::AcknowledgesEarly => "acknowledges and dies before it decides",
                };
                write!(f, "{}: the consumer {end}", r(request))
            }
            Self::Park(request) => write!(f, "{} is parked undecided", r(request)),
            Self::Drop(request) => write!(f, "the broker loses {}", r(request)),
            Self::Reconcile(request) => write!(f, "{} is reconciled", r(request)),
            Self::Look(request) => write!(f, "a reconciler looks at {}", r(request)),
            Self::Act(_) => write!(f, "a reconciler acts"),
            Self::HandOver(request) => write!(f, "{} is handed over", r(request)),
            Self::Claim(request) => write!(f, "a worker claims {}", r(request)),
            Self::Work(_) => write!(f, "the worker does its next step"),
            Self::WorkerDies(_) => write!(f, "the worker dies"),
            Self::Cancel(request) => write!(f, "{}'s order is cancelled", r(request)),
            Self::Failover { slot, to } => write!(f, "b{slot} fails over to its state {to}"),
            Self::Lose(slot) => write!(f, "b{slot} loses everything"),
            Self::Initialise(slot) => write!(f, "b{slot} is initialised"),
            Self::Resume(slot) => write!(f, "b{slot} is opened"),
            Self::CloseWindow(slot) => write!(f, "b{slot}'s recovery window ends"),
            Self::Transfer(step) => step.fmt(f),
        }
    }
}
