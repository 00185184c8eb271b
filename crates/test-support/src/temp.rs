//! A folder for one test's data and logs.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};

static NEXT: AtomicU64 = AtomicU64::new(0);

/// A folder that is removed with its handle, unless the test is failing: then its logs are wanted.
#[derive(Debug)]
pub struct TempDir {
    path: PathBuf,
}

impl TempDir {
    /// Makes a new folder whose name tells what it is for.
    ///
    /// # Errors
    ///
    /// When the folder for temporary files cannot be written.
    pub fn new(purpose: &str) -> io::Result<Self> {
        let name = format!(
            "seckill-test-{}-{}-{purpose}",
            std::process::id(),
            NEXT.fetch_add(1, Ordering::Relaxed)
        );
        let path = std::env::temp_dir().join(name);
        // A process with the same number may have left one behind.
        if path.exists() {
            std::fs::remove_dir_all(&path)?;
        }
        std::fs::create_dir_all(&path)?;
        Ok(Self { path })
    }

    /// The folder.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }
}

impl Drop for TempDir {
    fn drop(&mut self) {
        if std::thread::panicking() {
            eprintln!("kept for inspection: {}", self.path.display());
        } else {
            // A file that a server still writes may appear during the removal; the folder is then
            // left to the machine's own cleaning of temporary files.
            let _ = std::fs::remove_dir_all(&self.path);
        }
    }
}
