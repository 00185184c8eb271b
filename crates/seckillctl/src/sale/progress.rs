//! Shows how far the sale is: a bar on a terminal, else a line now and then.

use std::io::IsTerminal as _;
use std::sync::Arc;
use std::time::{Duration, Instant};

use indicatif::{ProgressBar, ProgressStyle};

use super::load::{Load, Progress};

/// Between two looks; a bar that moves ten times a second looks alive.
const TICK: Duration = Duration::from_millis(100);

/// Between two lines where there is no terminal: a sale of 20 s leaves ten lines in a log.
const LINE_EVERY: Duration = Duration::from_secs(2);

/// Shows the progress until every call is answered.
pub async fn show(load: Arc<Load>) {
    let total = load.total();
    let mut view = View::new(total);
    loop {
        let at = load.progress();
        let is_done = at.done >= total;
        view.update(at, is_done);
        if is_done {
            return;
        }
        tokio::time::sleep(TICK).await;
    }
}

enum View {
    Bar(ProgressBar),
    Lines {
        total: u64,
        started: Instant,
        told: Option<Instant>,
    },
}

impl View {
    fn new(total: u64) -> Self {
        if !std::io::stderr().is_terminal() {
            return Self::Lines {
                total,
                started: Instant::now(),
                told: None,
            };
        }
        let bar = ProgressBar::new(total);
        let template = "{elapsed_precise} [{bar:40}] {pos}/{len} calls, {per_sec}, {msg}";
        if let Ok(style) = ProgressStyle::with_template(template) {
            bar.set_style(style);
        }
        Self::Bar(bar)
    }

    fn update(&mut self, at: Progress, is_done: bool) {
        match self {
            Self::Bar(bar) => {
                bar.set_position(at.done);
                bar.set_message(words(at));
                if is_done {
                    bar.finish();
                }
            }
            Self::Lines {
                total,
                started,
                told,
            } => {
                if is_done || told.is_none_or(|told| told.elapsed() >= LINE_EVERY) {
                    let seconds = started.elapsed().as_secs_f64();
                    eprintln!("{seconds:6.1} s  {}/{total} calls, {}", at.done, words(at));
                    *told = Some(Instant::now());
                }
            }
        }
    }
}

fn words(at: Progress) -> String {
    format!("{} accepted, {} errors", at.accepted, at.errors)
}
