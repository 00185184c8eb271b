//! Where the built executables are.

use std::path::{Path, PathBuf};
use std::time::SystemTime;

use anyhow::{Context, ensure};

/// The path of an executable of this workspace: beside the one that asks, or in the folder above a
/// test's own.
///
/// # Errors
///
/// When it has not been built: Cargo builds for a test only the executables of its own package.
pub fn executable(name: &str) -> anyhow::Result<PathBuf> {
    let own = std::env::current_exe().context("asking for the own path")?;
    let folder = own.parent().context("a program without a folder")?;
    let is_test = folder.ends_with("deps") || folder.ends_with("examples");
    let above = folder.parent().filter(|_| is_test);
    let path = above.unwrap_or(folder).join(name);
    ensure!(
        path.is_file(),
        "{} is not built; run: cargo build --workspace --bins",
        path.display()
    );
    if let Some(source) = newer_source(&path) {
        // Not an error: somebody may be editing while the tests run.
        eprintln!(
            "{} is older than {source}; to test what is there now, run: cargo build --workspace --bins",
            path.display()
        );
    }
    Ok(path)
}

/// A source that was changed after the executable was built, by the list that Cargo keeps beside it.
fn newer_source(path: &Path) -> Option<String> {
    let built = modified(path)?;
    let list = std::fs::read_to_string(path.with_extension("d")).ok()?;
    let (_, sources) = list.split_once(": ")?;
    // A blank in a path is escaped there; such a path is not found here, and is left out.
    sources
        .split_whitespace()
        .find(|source| modified(Path::new(source)).is_some_and(|changed| changed > built))
        .map(str::to_owned)
}

fn modified(path: &Path) -> Option<SystemTime> {
    std::fs::metadata(path).ok()?.modified().ok()
}
