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

/// Shows the progress until it is dropped or aborted.
pub async fn show(load: Arc<Load>) {
    if std::io::stderr().is_terminal() {
        bar(&load).await;
    } else {
        lines(&load).await;
    }
}

async fn bar(load: &Load) {
    let bar = ProgressBar::new(load.total());
    if let Ok(style) = ProgressStyle::with_template(
        "{elapsed_precise} [{bar:40}] {pos}/{len} calls, {per_sec}, {msg}",
    ) {
        bar.set_style(style);
    }
    loop {
        let at = load.progress();
        bar.set_position(at.done);
        bar.set_message(words(at));
        if at.done >= load.total() {
            bar.finish();
            return;
        }
        tokio::time::sleep(TICK).await;
    }
}

async fn lines(load: &Load) {
    let started = Instant::now();
    loop {
        tokio::time::sleep(LINE_EVERY).await;
        let (at, seconds) = (load.progress(), started.elapsed().as_secs_f64());
        eprintln!(
            "{seconds:6.1} s  {}/{} calls, {}",
            at.done,
            load.total(),
            words(at)
        );
        if at.done >= load.total() {
            return;
        }
    }
}

fn words(at: Progress) -> String {
    format!("{} accepted, {} errors", at.accepted, at.errors)
}
